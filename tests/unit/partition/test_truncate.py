"""The log of a share-partition ends lower than before: what was above is forgotten, what lies below stays."""

from __future__ import annotations

import pytest

from share_spark.model.errors import ErrorCode
from share_spark.model.ids import OffsetRange
from share_spark.model.records import ShareSnapshot, ShareUpdate, StateBatch
from share_spark.model.requests import (
    Acknowledge,
    Acquire,
    AnsweredRange,
    ExpireLocks,
    TruncateLog,
)
from share_spark.partition import decide, evolve, restore
from share_spark.partition.kafka_modes import FetchedBatch, KafkaLimits, load_from_kip
from share_spark.partition.kafka_modes import decide as decide_for_clients
from share_spark.partition.kafka_modes import evolve as evolve_for_clients
from share_spark.partition.kafka_modes.state import active
from tests.support.kafka_partition import ClientPartition
from tests.support.share_partition import ACCEPT, KEY, REJECT, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")


def worked() -> Partition:
    """One run of every state."""
    found = Partition(start=10)
    found.fetch("a", (10, 29))
    found.ack("a", (12, 15, ACCEPT), (16, 19, REJECT), (20, 23, RELEASE))
    assert found.window == "10-30: 10-11 Q1, 12-15 D1, 16-19 X1, 20-23 V1, 24-29 Q1"
    return found


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (30, "10-30: 10-11 Q1, 12-15 D1, 16-19 X1, 20-23 V1, 24-29 Q1"),
        (31, "10-30: 10-11 Q1, 12-15 D1, 16-19 X1, 20-23 V1, 24-29 Q1"),
        (26, "10-26: 10-11 Q1, 12-15 D1, 16-19 X1, 20-23 V1, 24-25 Q1"),
        (24, "10-24: 10-11 Q1, 12-15 D1, 16-19 X1, 20-23 V1"),
        (21, "10-21: 10-11 Q1, 12-15 D1, 16-19 X1, 20 V1"),
        (17, "10-17: 10-11 Q1, 12-15 D1, 16 X1"),
        (13, "10-13: 10-11 Q1, 12 D1"),
        (10, "10-10"),
        (4, "4-4"),
        (0, "0-0"),
    ],
)
def test_what_was_above_is_forgotten_whatever_its_state(end: int, left: str) -> None:
    found = worked()
    found.truncate(end)
    assert found.window == left
    assert restore(found.log) == found.state


def test_what_is_written_there_later_is_new() -> None:
    found = worked()
    found.truncate(13)
    assert found.fetch("b", (13, 25)) == [(13, 25, 1)]
    assert found.ack("b", (13, 25, ACCEPT)) is ErrorCode.NONE
    assert found.ack("a", (10, 11, ACCEPT)) is ErrorCode.NONE
    assert found.window == "26-26"


def test_r61_r74_the_record_is_a_snapshot_and_only_if_something_is_gone() -> None:
    found = worked()
    before = len(found.log)
    found.truncate(30)
    assert len(found.log) == before
    found.truncate(29)
    found.ack("a", (10, 11, ACCEPT))
    kinds = [(type(record), record.snapshot_epoch) for record in found.log[before:]]
    assert kinds == [(ShareSnapshot, 1), (ShareUpdate, 1)]


def test_a_start_offset_that_is_not_chosen_yet_stays_so() -> None:
    found = Partition(start=None)
    found.truncate(0)
    assert (found.record, found.state.start_offset) == (None, -1)


def test_attempts_that_ended_so_are_told_as_they_were() -> None:
    response = worked().truncate(11)
    assert [(run.first_offset, run.last_offset, run.member_id) for run in response.ended] == [
        (11, 11, "a"),
        (24, 29, "a"),
    ]
    assert (response.archived, response.accepted, response.released) == ((), 0, 0)


def test_one_micro_batch_says_it_all() -> None:
    """Acknowledgements first, locks and new records after it; one record that makes the same state."""
    found = worked()
    found.now_ms = 10**9
    requests = (
        Acknowledge(member_id="a", batches=(AnsweredRange(10, 11, ACCEPT),)),
        TruncateLog(end_offset=22),
        ExpireLocks(lost=True),
        Acquire(member_id="b", max_records=99, readable=OffsetRange(10, 22)),
    )
    decision = decide(found.state, requests, found.limits, found.now_ms)
    assert decision.responses[2].ended == (), "the locks above the end are no longer there to expire"
    assert [tuple(run) for run in decision.responses[3].acquired] == [(20, 21, 2), (22, 22, 1)]
    assert decision.record is not None
    after = evolve(found.state, decision.record)
    assert (after.start_offset, after.end_offset) == (20, 23)
    assert restore([*found.log, decision.record]) == after


def test_what_is_held_below_the_start_offset_stays_with_its_owner() -> None:
    """R25."""
    found = Partition()
    found.fetch("a", (0, 9))
    found.log_start(6)
    found.truncate(3)
    assert found.window == "3-3: 0-2 Q1"
    assert found.ack("a", (0, 2, ACCEPT)) is ErrorCode.NONE


def test_fetched_batches_are_cut_with_the_runs() -> None:
    found = ClientPartition()
    for batch in ((0, 4), (5, 9), (10, 14)):
        found.fetch("a", batch)
    found.truncate(7)
    assert found.remembered.fetched == (FetchedBatch(0, 4), FetchedBatch(5, 6))
    assert found.fetch("b", (7, 8)) == [(7, 8, 1)]
    assert found.ack("a", (0, 4, ACCEPT), (5, 6, ACCEPT)) is ErrorCode.NONE
    assert found.window == "7-9: 7-8 Q1"


@pytest.mark.parametrize(
    ("end", "gap", "window"), [(33, (15, 32), "10-33"), (28, (15, 24), "10-25"), (18, None, "10-15"), (9, None, "9-9")]
)
def test_r22_a_read_gap_is_cut_with_the_window(end: int, gap: tuple[int, int] | None, window: str) -> None:
    loaded = load_from_kip(
        key=KEY,
        state_epoch=0,
        leader_epoch=0,
        start_offset=10,
        batches=[StateBatch(10, 14, 0, 1), StateBatch(20, 24, 2, 1), StateBatch(30, 34, 0, 1)],
    )
    assert loaded.read_gap == OffsetRange(15, 34)
    after = evolve_for_clients(loaded, decide_for_clients(loaded, [TruncateLog(end_offset=end)], KafkaLimits(), 0))
    assert after.read_gap == active(after.read_gap, after.state.end_offset) == (OffsetRange(*gap) if gap else None)
    assert f"{after.state.start_offset}-{after.state.end_offset}" == window
