"""Which share-partitions are active and how much each may take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.engine.attempts import MemberTrace
from share_spark.engine.planning import PlanInputs, SuspectPiece, end_for, is_done, plan, share_out, targets_within
from share_spark.engine.step import PartitionInput, PartitionSummary
from share_spark.model.ids import LogEnds, SharePartitionKey, TopicPartition
from share_spark.model.records import Doubt
from share_spark.model.requests import Loss, Trace, TracedRange
from tests.support.answers import answered

KEY, OTHER = (SharePartitionKey("g", "t", partition) for partition in (0, 1))


def summary(
    start: int, end: int, available: int = 0, deadline: int | None = None, suspected: tuple[int, int, int] = (0, 0, 0)
) -> PartitionSummary:
    return PartitionSummary("orders", start, end, available, deadline, deadline, suspected)


def piece(searched: Doubt, **records: int) -> SuspectPiece:
    """Of ``key`` and ``other``."""
    return SuspectPiece(
        searched=searched, records={{"key": KEY, "other": OTHER}[name]: n for name, n in records.items()}
    )


def planned(
    summaries: dict[SharePartitionKey, PartitionSummary], *, locks: int = 100, most: int = 1_000, **given: Any
) -> Any:
    inputs = {"now_ms": 50, "ends": {KEY: LogEnds(0, 10)}, "initial_offsets": {}, "acknowledged": {}, **given}
    topics = {KEY.topic_id: "orders"}
    return plan(PlanInputs(topics=topics, **inputs), summaries, max_records=most, max_record_locks=locks)


def acknowledged(*rows: tuple[int, int, int]) -> dict[SharePartitionKey, Any]:
    return {KEY: answered(rows)}


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
        (summary(10, 10), {}),
        (summary(5, 10, deadline=51), {}),
        (summary(10, 10), {"targets": {KEY: 10}}),
        (summary(5, 5), {"targets": {KEY: 5}}),
        (summary(0, 10, deadline=51), {"ends": {KEY: LogEnds(0, 20)}, "locks": 10}),
    ],
    ids=["all finished", "locked", "target reached", "beyond the target", "window full"],
)
def test_a_share_partition_with_nothing_to_do_gets_no_control_row(
    found: PartitionSummary, given: dict[str, Any]
) -> None:
    assert planned({KEY: found}, **given) == {}


@pytest.mark.parametrize(
    ("found", "given", "most"),
    [
        (summary(5, 5), {}, 5),
        (summary(2, 10, available=3), {}, 3),
        (summary(2, 8, available=3), {}, 5),
        (summary(0, 10, deadline=50), {}, 0),
        (summary(5, 10), {"ends": {KEY: LogEnds(6, 10)}}, 0),
        (summary(0, 0), {"ends": {KEY: LogEnds(4, 10)}}, 6),
        (summary(0, 10), {"ends": {KEY: LogEnds(0, 20)}, "locks": 12}, 2),
        (summary(0, 10), {"acknowledged": acknowledged((0, 3, 1), (4, 9, 2))}, 6),
        (summary(0, 10), {"acknowledged": acknowledged((0, 3, 1), (4, 9, Loss.NOT_ENTERED))}, 6),
        (summary(0, 10), {"acknowledged": acknowledged((0, 9, 1)), "ends": {KEY: LogEnds(0, 30)}, "locks": 12}, 12),
        (summary(-1, -1), {"initial_offsets": {KEY: 7}}, 3),
        (summary(5, 5), {"stopping": True}, 0),
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
        "six were not entered",
        "acknowledgements may empty a full window",
        "no offset chosen yet",
        "stopping takes nothing",
    ],
)
def test_an_active_share_partition_may_take(found: PartitionSummary, given: dict[str, Any], most: int) -> None:
    assert planned({KEY: found}, **given)[KEY].max_records == most


def test_a_new_share_partition_is_told_where_to_begin() -> None:
    partition_input: PartitionInput = planned({}, initial_offsets={KEY: 7})[KEY]
    assert (partition_input.initial_offset, partition_input.max_records, partition_input.end_offset) == (7, 3, 10)


def test_an_engine_that_stops_settles_what_holds_locks() -> None:
    held = summary(0, 10)._replace(by_state=(0, 10, 0, 0))
    assert planned({KEY: held}, stopping=True)[KEY].release_member


def test_the_budget_goes_to_those_that_want_records() -> None:
    partition_inputs = planned(
        {KEY: summary(0, 0), OTHER: summary(10, 10)}, ends={KEY: LogEnds(0, 10), OTHER: LogEnds(0, 10)}, most=7
    )
    assert {key: partition_input.max_records for key, partition_input in partition_inputs.items()} == {KEY: 7}


def test_an_available_now_run_ignores_partitions_without_a_target() -> None:
    inputs = PlanInputs(
        now_ms=0, topics={}, ends={KEY: LogEnds(0, 10)}, initial_offsets={}, acknowledged={}, targets={OTHER: 3}
    )
    assert end_for(KEY, inputs) == 0


def test_done_is_every_start_offset_at_its_target() -> None:
    assert is_done({KEY: summary(10, 12)}, {KEY: 10})
    assert not is_done({KEY: summary(9, 12)}, {KEY: 10})
    assert not is_done({}, {KEY: 0})
    assert is_done({}, {})


TWO = {KEY: LogEnds(0, 10), OTHER: LogEnds(0, 10)}


def test_suspects_run_in_a_micro_batch_of_their_own() -> None:
    """Other share-partitions have records to give, and must wait; their locks and acknowledgements need not."""
    summaries = {KEY: summary(0, 8, available=3, suspected=(0, 0, 5)), OTHER: summary(0, 8, deadline=50)}
    partition_inputs = planned(summaries, ends=TWO, suspects=piece(Doubt.ACCUSED, key=2))
    assert {key: (c.max_records, c.suspects, c.searched) for key, c in partition_inputs.items()} == {
        KEY: (2, True, Doubt.ACCUSED),
        OTHER: (0, True, Doubt.ACCUSED),
    }


def test_every_second_micro_batch_is_for_others_and_leaves_suspects_alone() -> None:
    summaries = {KEY: summary(0, 8, available=3, suspected=(0, 0, 5))}
    partition_input = planned(summaries, suspects=piece(Doubt.ACCUSED, key=5), suspects_next=False)[KEY]
    assert (partition_input.max_records, partition_input.suspects, partition_input.searched) == (
        5,
        False,
        Doubt.ACCUSED,
    )


def test_if_there_is_nothing_else_suspects_run_each_time() -> None:
    summaries = {KEY: summary(5, 10, suspected=(0, 0, 5))}
    partition_input = planned(summaries, suspects=piece(Doubt.ACCUSED, key=5), suspects_next=False)[KEY]
    assert (partition_input.max_records, partition_input.suspects) == (5, True)


@pytest.mark.parametrize(("searched", "most"), [(Doubt.LOST_TWICE, 0), (Doubt.LOST_IN_PIECE, 4), (Doubt.ACCUSED, 7)])
def test_a_deeper_search_lets_the_others_come_with_everybody(searched: Doubt, most: int) -> None:
    """Four were lost twice, three in a piece, two are accused."""
    summaries = {KEY: summary(1, 10, suspected=(4, 3, 2)), OTHER: summary(0, 8)}
    partition_inputs = planned(summaries, ends=TWO, suspects=piece(searched, key=1), suspects_next=False)
    assert partition_inputs[OTHER].max_records == 2
    assert partition_inputs.get(KEY, PartitionInput("orders", 0, 0)).max_records == most


@pytest.mark.parametrize(("records", "is_alone"), [({"key": 1}, True), ({"key": 1, "other": 1}, False)])
def test_a_suspect_is_alone_if_the_whole_micro_batch_is_one_record(records: dict[str, int], is_alone: bool) -> None:
    summaries = {KEY: summary(0, 10, suspected=(0, 0, 1)), OTHER: summary(0, 10, suspected=(0, 0, 1))}
    partition_inputs = planned(summaries, ends=TWO, suspects=piece(Doubt.ACCUSED, **records))
    assert {partition_input.alone for partition_input in partition_inputs.values()} == {is_alone}


def test_an_engine_that_stops_acquires_no_suspects() -> None:
    held = summary(0, 10, suspected=(0, 0, 5))._replace(by_state=(5, 5, 0, 0))
    partition_input = planned({KEY: held}, suspects=piece(Doubt.ACCUSED, key=5), stopping=True)[KEY]
    assert (partition_input.max_records, partition_input.suspects) == (0, False)


def test_each_share_partition_is_given_the_traces_of_ended_members() -> None:
    """A member that entered nothing there has left an empty trace, which differs from no trace at all."""
    entered = (TracedRange(3, 4, 1, Loss.FINISHED),)
    traces = [MemberTrace("dead", {TopicPartition("orders", 0): entered})]
    partition_inputs = planned(
        {KEY: summary(0, 10, deadline=50), OTHER: summary(0, 10, deadline=50)}, ends=TWO, traces=traces
    )
    assert partition_inputs[KEY].traces == (Trace("dead", entered),)
    assert partition_inputs[OTHER].traces == (Trace("dead", ()),)


@pytest.mark.parametrize(
    ("ends", "truncated_to"),
    [
        (LogEnds(0, 10), None),
        (LogEnds(0, 9), 9),
        (LogEnds(0, 0), 0),
        (LogEnds(8, 3), 8),
        (LogEnds(12, 3), None),
        (LogEnds(0, -1), None),
        (LogEnds(0, 4, high_watermark=10), None),
        (LogEnds(0, 4, high_watermark=7), 7),
    ],
    ids=[
        "all there",
        "one gone",
        "all gone",
        "the log begins above its end",
        "and above the window",
        "not known",
        "the last stable offset is lower since the isolation level was raised",
        "both",
    ],
)
def test_a_log_that_ends_below_the_window_was_truncated(ends: LogEnds, truncated_to: int | None) -> None:
    partition_input = planned({KEY: summary(5, 10, deadline=99)}, ends={KEY: ends}).get(KEY)
    assert (partition_input.truncated_to if partition_input else None) == truncated_to


def test_a_truncated_share_partition_is_settled_while_suspects_run_and_while_the_engine_stops() -> None:
    found = {KEY: summary(10, 10), OTHER: summary(0, 10, suspected=(0, 0, 1))}
    ends = {KEY: LogEnds(0, 4), OTHER: LogEnds(0, 10)}
    assert planned(found, ends=ends, suspects=piece(Doubt.ACCUSED, other=1))[KEY].truncated_to == 4
    assert planned(found, ends=ends, stopping=True)[KEY].truncated_to == 4


def test_the_real_end_and_not_the_target_of_an_available_now_run_says_so() -> None:
    partition_input = planned({KEY: summary(0, 20, deadline=50)}, ends={KEY: LogEnds(0, 20)}, targets={KEY: 10})[KEY]
    assert (partition_input.end_offset, partition_input.truncated_to) == (10, None)


def test_a_share_partition_without_state_cannot_be_truncated() -> None:
    partition_input = planned({KEY: summary(-1, -1)}, initial_offsets={KEY: 12})[KEY]
    assert partition_input.truncated_to is None, "more was written while the first offset was asked for"


def test_targets_follow_a_log_end_that_goes_back() -> None:
    targets = {KEY: 10, OTHER: 10}
    assert targets_within(targets, {KEY: LogEnds(0, 6)}) == {KEY: 6, OTHER: 10}
    assert targets_within(targets, {KEY: LogEnds(0, 60)}) == targets
    assert targets_within(targets, {KEY: LogEnds(8, 6)}) == {KEY: 8, OTHER: 10}
    assert targets_within(targets, {KEY: LogEnds(0, 6, high_watermark=11)}) == targets
    assert targets_within(None, {KEY: LogEnds(0, 6)}) is None
