"""Acquisition, rule by rule (R5, R9, R11, R14, R36-R42), for handlers and for clients of Kafka."""

from __future__ import annotations

import pytest

from share_spark.model.records import InFlightBatch
from share_spark.model.requests import ArchiveReason, MoveLogStart
from share_spark.partition import PartitionLimits
from share_spark.partition.kafka_modes import (
    AcquireBatches,
    AcquireMode,
    AcquireReadAhead,
    KafkaLimits,
    KafkaPartition,
    LogBatch,
    ReadAhead,
)
from tests.support.kafka_partition import ClientPartition
from tests.support.share_partition import ACCEPT, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")

STRICT = AcquireMode.RECORD_LIMIT


def test_r5_counts_rise_at_each_acquisition_only() -> None:
    partition = Partition()
    assert partition.fetch("a", (0, 9)) == [(0, 9, 1)]
    partition.ack("a", (2, 3, RELEASE))
    assert partition.fetch("b", (2, 9)) == [(2, 3, 2)]
    assert partition.window == "0-10: 0-1 Q1, 2-3 Q2, 4-9 Q1"


def test_a_million_records_are_one_range() -> None:
    partition = Partition(limits=PartitionLimits(max_record_locks=10**7))
    assert partition.fetch("a", (0, 10**9), most=10**6) == [(0, 10**6 - 1, 1)]
    assert len(partition.state.in_flight) == 1


def test_r11_what_is_acquired_together_shares_one_deadline_through_every_split() -> None:
    partition = Partition()
    partition.now_ms = 5
    partition.fetch("a", (0, 9))
    partition.ack("a", (4, 4, RELEASE))
    assert {run.lock_deadline_ms for run in partition.state.in_flight} == {30_005, None}


def test_r14_acquired_is_never_handed_to_another() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    assert partition.fetch("b", (0, 12)) == [(10, 12, 1)]


def test_r36_next_fetch_offset_is_the_lowest_available() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    assert partition.next_fetch_offset == 10
    partition.ack("a", (3, 4, RELEASE), (7, 7, RELEASE))
    assert partition.next_fetch_offset == 3


def test_r37_the_window_not_the_locks_is_limited() -> None:
    partition = Partition(limits=PartitionLimits(max_record_locks=10))
    assert partition.fetch("a", (0, 99)) == [(0, 9, 1)]
    partition.ack("a", (1, 9, ACCEPT))
    assert partition.fetch("a", (10, 99)) == []
    assert not KafkaPartition(state=partition.state).can_acquire(partition.limits)
    partition.ack("a", (0, 0, RELEASE))
    assert KafkaPartition(state=partition.state).can_acquire(partition.limits)
    assert partition.fetch("a", (0, 99)) == [(0, 0, 2)]


def test_exact_takes_redeliveries_and_new_records_in_one_go() -> None:
    partition = Partition(limits=PartitionLimits(max_record_locks=100))
    partition.fetch("a", (0, 9))
    partition.ack("a", (2, 3, RELEASE), (6, 6, RELEASE))
    assert partition.fetch("b", (2, 50), most=5) == [(2, 3, 2), (6, 6, 2), (10, 11, 1)]
    assert partition.fetch("b", (12, 50), most=500) == [(12, 50, 1)]


def test_exact_stops_in_the_middle_of_a_range() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.ack("a", (0, 9, RELEASE))
    assert partition.fetch("b", (0, 99), most=4) == [(0, 3, 2)]
    assert partition.window == "0-10: 0-3 Q2, 4-9 V1"


def test_nothing_to_read_nothing_acquired() -> None:
    partition = Partition()
    assert partition.fetch("a") == []
    assert partition.fetch("a", (0, 9), most=0) == []
    assert partition.record is None


def test_before_the_start_is_chosen_nothing_is_acquired() -> None:
    """R26: -1 means not chosen yet."""
    assert Partition(start=None).fetch("a", (0, 9)) == []


def test_r39_a_log_batch_is_acquired_to_its_end() -> None:
    partition = ClientPartition()
    assert partition.fetch("a", (0, 4), (5, 9), (10, 14), most=7) == [(0, 9, 1)]


def test_r41_ranges_are_cut_at_log_batches_by_batch_size() -> None:
    partition = ClientPartition()
    got = partition.fetch("a", (0, 4), (5, 9), (10, 14), batch_size=6)
    assert got == [(0, 9, 1), (10, 14, 1)]


def test_redelivery_is_reported_by_what_was_fetched_together() -> None:
    """Conformance fact 7."""
    partition = ClientPartition()
    partition.fetch("a", (0, 4))
    partition.fetch("a", (5, 9))
    partition.release("a")
    assert partition.window == "0-10: 0-9 V1", "one run in the state"
    assert partition.fetch("b", (0, 9)) == [(0, 4, 2), (5, 9, 2)]


def test_r19_holes_between_batches_of_one_read_are_acquired_between_two_reads_not() -> None:
    partition = ClientPartition()
    assert partition.fetch("a", (0, 2), (6, 9)) == [(0, 9, 1)]
    assert partition.fetch("a", (15, 19)) == [(15, 19, 1)]
    assert partition.window == "0-20: 0-9 Q1, 15-19 Q1"


def test_the_start_jumps_over_a_natural_gap_when_nothing_is_in_flight() -> None:
    """Conformance fact 2."""
    partition = ClientPartition()
    partition.fetch("a", (5, 9))
    assert partition.state.start_offset == 5


def test_r21_compacted_records_are_archived_when_the_read_passes_them() -> None:
    """Conformance fact 23."""
    partition = ClientPartition()
    partition.fetch("a", (0, 9))
    partition.release("a")
    request = AcquireBatches(member_id="b", max_records=9, log_batches=(LogBatch(6, 9),))
    answer = partition.ask(request)
    assert [tuple(found) for found in answer.acquired] == [(6, 9, 2)]
    assert [found.reason for found in answer.archived] == [ArchiveReason.GAP]
    assert partition.window == "0-10: 0-5 X1, 6-9 Q2"


def test_record_limit_leaves_the_rest_of_the_log_batch_available() -> None:
    """KIP-1206."""
    partition = ClientPartition()
    assert partition.fetch("a", (0, 9), most=4, mode=STRICT) == [(0, 3, 1)]
    assert partition.window == "0-10: 0-3 Q1, 4-9 V0"
    assert partition.fetch("b", (0, 9), most=4, mode=STRICT) == [(4, 7, 1)]


def test_r23_aborted_batches_are_archived_and_not_handed_out() -> None:
    partition = ClientPartition()
    batches = (LogBatch(0, 4, aborted=True), LogBatch(5, 5), LogBatch(6, 9))
    answer = partition.ask(AcquireBatches(member_id="a", max_records=99, log_batches=batches))
    assert [tuple(found) for found in answer.acquired] == [(5, 9, 1)]
    assert partition.window == "0-10: 0-4 X1, 5-9 Q1"


def _read_ahead(*batches: LogBatch) -> AcquireReadAhead:
    reads = (ReadAhead(batches[0].base_offset, batches),)
    return AcquireReadAhead(member_id="a", max_records=99, max_bytes=10**6, reads=reads)


def test_r15_a_window_of_aborted_batches_is_passed_at_once() -> None:
    """Nobody acknowledges them: a window full of them would stay full."""
    partition = ClientPartition(limits=KafkaLimits(max_record_locks=5))
    for first in range(0, 20, 5):
        answer = partition.ask(_read_ahead(LogBatch(first, first + 4, aborted=True)))
        assert (answer.acquired, answer.next_fetch_offset) == ((), first + 5)
        assert partition.window == f"{first + 5}-{first + 5}"


def test_r25_what_is_below_a_log_start_inside_of_a_batch_is_not_acquired_while_something_before_it_is_held() -> None:
    partition = ClientPartition()
    partition.ask(_read_ahead(LogBatch(0, 4)))
    partition.ask(MoveLogStart(log_start_offset=7, pass_finished=True))
    answer = partition.ask(_read_ahead(LogBatch(0, 4), LogBatch(5, 9)))
    assert [tuple(found) for found in answer.acquired] == [(7, 9, 1)]
    assert partition.window == "7-10: 0-4 Q1, 7-9 Q1"


@pytest.mark.parametrize("mode", [None, *AcquireMode])
def test_r42_an_acquisition_is_recorded_with_owner_and_deadline(mode: AcquireMode | None) -> None:
    """Kafka keeps it in memory only; here a crash must not lose the count (R7)."""
    partition = ClientPartition()
    partition.fetch("a", (0, 9), mode=mode)
    assert partition.record is not None
    assert partition.record.batches == (InFlightBatch(0, 9, 1, 1, "a", 30_000),)


def test_throttled_records_come_back_in_halves_and_at_last_alone() -> None:
    """KAFKA-17541, limit 5: from the third delivery on."""
    limits = KafkaLimits(delivery_throttling=True)
    partition = ClientPartition(limits=limits)
    sizes = []
    for _ in range(5):
        got = partition.fetch("a", (0, 99), most=500)
        sizes.append(sum(last - first + 1 for first, last, _ in got))
        partition.release("a")
    assert sizes == [100, 100, 100, 50, 1]


def test_a_handler_after_clients_keeps_the_fetches_covered() -> None:
    """A group can have handlers and clients at the same time."""
    partition = ClientPartition()
    partition.fetch("a", (0, 4))
    partition.fetch("a", (8, 9))
    partition.release("a")
    assert partition.fetch("b", (0, 14), mode=None) == [(0, 4, 2), (8, 9, 2), (10, 14, 1)]
    assert partition.ack("b", (0, 14, ACCEPT)) == 0
    assert partition.window == "15-15"
