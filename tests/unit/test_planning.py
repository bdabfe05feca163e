"""Which share-partitions are active and how much each may take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.engine.planning import Inputs, end_for, is_done, plan, share_out
from share_spark.engine.step import Control, Front
from share_spark.model.ids import SharePartitionKey
from share_spark.model.offsets import LogEnds

KEY, OTHER = (SharePartitionKey("g", "t", partition) for partition in (0, 1))


def front(start: int, end: int, available: int = 0, deadline: int | None = None) -> Front:
    return Front("orders", start, end, available, deadline)


def planned(fronts: dict[SharePartitionKey, Front], *, locks: int = 100, most: int = 1_000, **given: Any) -> Any:
    inputs = {"now_ms": 50, "ends": {KEY: LogEnds(0, 10)}, "initial_offsets": {}, "acknowledged": {}, **given}
    topics = {KEY.topic_id: "orders"}
    return plan(Inputs(topics=topics, **inputs), fronts, max_records=most, max_record_locks=locks)


def acknowledged(*rows: tuple[int, int, int]) -> dict[SharePartitionKey, Any]:
    return {KEY: np.array(rows, dtype=np.int64)}


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_spend_the_budget_and_are_fair(demands: list[int], budget: int) -> None:
    shares = share_out(demands, budget)
    assert sum(shares) == min(budget, sum(demands))
    assert all(share <= demand for share, demand in zip(shares, demands, strict=True))
    unsatisfied = [share for share, demand in zip(shares, demands, strict=True) if share < demand]
    assert max(unsatisfied, default=0) - min(unsatisfied, default=0) <= 1
    assert all(share <= min(unsatisfied) + 1 for share in shares) if unsatisfied else True


@pytest.mark.parametrize(
    ("found", "given"),
    [
        (front(10, 10), {}),
        (front(5, 10, deadline=51), {}),
        (front(10, 10), {"targets": {KEY: 10}}),
        (front(5, 5), {"targets": {KEY: 5}}),
        (front(0, 10, deadline=51), {"ends": {KEY: LogEnds(0, 20)}, "locks": 10}),
    ],
    ids=["all finished", "locked", "target reached", "beyond the target", "window full"],
)
def test_a_share_partition_with_nothing_to_do_gets_no_control_row(found: Front, given: dict[str, Any]) -> None:
    assert planned({KEY: found}, **given) == {}


@pytest.mark.parametrize(
    ("found", "given", "most"),
    [
        (front(5, 5), {}, 5),
        (front(2, 10, available=3), {}, 3),
        (front(2, 8, available=3), {}, 5),
        (front(0, 10, deadline=50), {}, 0),
        (front(5, 10), {"ends": {KEY: LogEnds(6, 10)}}, 0),
        (front(0, 0), {"ends": {KEY: LogEnds(4, 10)}}, 6),
        (front(0, 10), {"ends": {KEY: LogEnds(0, 20)}, "locks": 12}, 2),
        (front(0, 10), {"acknowledged": acknowledged((0, 3, 1), (4, 9, 2))}, 6),
        (front(0, 10), {"acknowledged": acknowledged((0, 9, 1)), "ends": {KEY: LogEnds(0, 30)}, "locks": 12}, 12),
        (front(-1, -1), {"initial_offsets": {KEY: 7}}, 3),
        (front(5, 5), {"stopping": True}, 0),
    ],
    ids=[
        "new records",
        "redeliveries",
        "both",
        "a lock has run out",
        "log start has passed",
        "the log start is past the window",
        "window nearly full",
        "acknowledgements wait, six released",
        "acknowledgements may empty a full window",
        "no offset chosen yet",
        "stopping takes nothing",
    ],
)
def test_an_active_share_partition_may_take(found: Front, given: dict[str, Any], most: int) -> None:
    assert planned({KEY: found}, **given)[KEY].max_records == most


def test_a_new_share_partition_is_told_where_to_begin() -> None:
    control: Control = planned({}, initial_offsets={KEY: 7})[KEY]
    assert (control.initial_offset, control.max_records, control.end_offset) == (7, 3, 10)


def test_an_engine_that_stops_settles_whoever_holds_locks() -> None:
    assert planned({KEY: front(0, 10, deadline=99)}, stopping=True)[KEY].release_member


def test_the_budget_goes_to_those_that_want_records() -> None:
    controls = planned(
        {KEY: front(0, 0), OTHER: front(10, 10)}, ends={KEY: LogEnds(0, 10), OTHER: LogEnds(0, 10)}, most=7
    )
    assert {key: control.max_records for key, control in controls.items()} == {KEY: 7}


def test_an_available_now_run_ignores_partitions_without_a_target() -> None:
    inputs = Inputs(
        now_ms=0, topics={}, ends={KEY: LogEnds(0, 10)}, initial_offsets={}, acknowledged={}, targets={OTHER: 3}
    )
    assert end_for(KEY, inputs) == 0


def test_done_is_every_start_offset_at_its_target() -> None:
    assert is_done({KEY: front(10, 12)}, {KEY: 10})
    assert not is_done({KEY: front(9, 12)}, {KEY: 10})
    assert not is_done({}, {KEY: 0})
    assert is_done({}, {})
