"""Acknowledgements, rule by rule (R3, R4, R6, R12-R15, R47-R53)."""

from __future__ import annotations

import pytest

from share_spark.model.errors import ErrorCode
from share_spark.model.requests import ArchivedRange, ArchiveReason
from share_spark.partition import PartitionLimits
from share_spark.partition.kafka_modes.requests import RENEW
from tests.support.kafka_partition import WHOLE, ClientPartition
from tests.support.share_partition import ACCEPT, GAP, REJECT, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")

INVALID_REQUEST = ErrorCode.INVALID_REQUEST
INVALID_STATE = ErrorCode.INVALID_RECORD_STATE
OK = ErrorCode.NONE


@pytest.fixture(params=[Partition, ClientPartition], ids=["handler", "client"])
def held(request: pytest.FixtureRequest) -> Partition:
    """m holds 0-9; what an acknowledgement does is the same whoever holds them."""
    partition = request.param()
    partition.fetch("m", (0, 9))
    return partition


@pytest.fixture(params=[None, WHOLE], ids=["by offsets", "by log batches"])
def client(request: pytest.FixtureRequest) -> ClientPartition:
    """m, a client of Kafka, holds 0-9, however it was acquired."""
    partition = ClientPartition()
    partition.fetch("m", (0, 9), mode=request.param)
    return partition


@pytest.mark.parametrize(
    ("ack_type", "window", "reason"),
    [
        (ACCEPT, "0-10: 0-4 Q1, 5-6 D1, 7-9 Q1", None),
        (RELEASE, "0-10: 0-4 Q1, 5-6 V1, 7-9 Q1", None),
        (REJECT, "0-10: 0-4 Q1, 5-6 X1, 7-9 Q1", ArchiveReason.REJECTED),
        (GAP, "0-10: 0-4 Q1, 5-6 X1, 7-9 Q1", ArchiveReason.GAP),
    ],
)
def test_r47_one_type_goes_for_the_whole_range(
    held: Partition, ack_type: int, window: str, reason: ArchiveReason | None
) -> None:
    answer = held.answer("m", (5, 6, ack_type))
    assert answer.error is OK
    assert held.window == window
    assert answer.archived == ((ArchivedRange(5, 6, 1, reason),) if reason else ())
    assert (answer.accepted, answer.released) == (2 * (ack_type == 1), 2 * (ack_type == 2))


def test_r47_one_type_per_offset(client: ClientPartition) -> None:
    assert client.ack("m", (4, 8, (1, 2, 2, 3, 0))) is OK
    assert client.window == "0-10: 0-3 Q1, 4 D1, 5-6 V1, 7-8 X1, 9 Q1"


def test_r6_release_at_the_limit_archives() -> None:
    partition = Partition(limits=PartitionLimits(max_delivery_count=2))
    for _ in range(2):
        partition.fetch("m", (0, 0))
        answer = partition.answer("m", (0, 0, RELEASE))
    assert partition.window == "1-1"
    assert answer.archived == (ArchivedRange(0, 0, 2, ArchiveReason.DELIVERY_LIMIT),)
    assert answer.released == 0


def test_r15_the_start_moves_to_the_first_unfinished_record(held: Partition) -> None:
    held.ack("m", (0, 2, ACCEPT), (4, 5, REJECT))
    assert held.window == "3-10: 3 Q1, 4-5 X1, 6-9 Q1"
    held.ack("m", (3, 3, ACCEPT))
    assert held.window == "6-10: 6-9 Q1"


def test_r15_all_final_empties_the_window(held: Partition) -> None:
    held.ack("m", (0, 9, ACCEPT))
    assert held.window == "10-10"
    assert held.record is not None
    assert (held.record.start_offset, held.record.batches) == (10, ())


@pytest.mark.parametrize(
    "batches",
    [
        [(5, 4, ACCEPT)],
        [(5, 6, ACCEPT), (3, 4, ACCEPT)],
        [(0, 5, ACCEPT), (4, 6, ACCEPT)],
        [(0, 5, 5)],
        [(0, 5, -1)],
    ],
)
def test_r48_malformed_requests(held: Partition, batches: list[tuple[int, int, int]]) -> None:
    assert held.ack("m", *batches) is INVALID_REQUEST
    assert held.window == "0-10: 0-9 Q1"


@pytest.mark.parametrize("batch", [(0, 5, ()), (0, 5, (1, 1)), (0, 0, (1, 1)), (0, 1, (1, 5)), (0, 1, (1, -1))])
def test_r48_one_type_or_one_per_offset(client: ClientPartition, batch: tuple[int, int, tuple[int, ...]]) -> None:
    assert client.ack("m", batch) is INVALID_REQUEST
    assert client.window == "0-10: 0-9 Q1"


def test_a_handler_cannot_renew() -> None:
    partition = Partition()
    partition.fetch("m", (0, 9))
    assert partition.ack("m", (0, 9, RENEW)) is INVALID_REQUEST


def test_r48_batches_that_share_one_offset_pass_the_check_and_fail_later(held: Partition) -> None:
    assert held.ack("m", (0, 5, ACCEPT), (5, 6, ACCEPT)) is INVALID_STATE
    assert held.window == "0-10: 0-9 Q1"


def test_r49_below_the_start_is_skipped(held: Partition) -> None:
    held.ack("m", (0, 4, ACCEPT))
    assert held.ack("stranger", (0, 4, REJECT)) is OK
    assert held.ack("m", (0, 6, ACCEPT)) is OK
    assert held.window == "7-10: 7-9 Q1"


@pytest.mark.parametrize("range_", [(10, 10), (12, 15), (5, 10)])
def test_r49_past_what_was_acquired(held: Partition, range_: tuple[int, int]) -> None:
    assert held.ack("m", (*range_, ACCEPT)) is INVALID_REQUEST


def test_r49_nothing_in_flight(held: Partition) -> None:
    held.ack("m", (0, 9, ACCEPT))
    assert held.ack("m", (10, 12, ACCEPT)) is INVALID_STATE


def test_r49_before_all_that_is_in_flight() -> None:
    partition = Partition(start=0)
    partition.fetch("m", (5, 9))
    assert partition.state.start_offset == 5, "nothing lies before the first record read"
    assert partition.ack("m", (3, 6, ACCEPT)) is OK


def test_r49_not_acquired_any_more(held: Partition) -> None:
    held.ack("m", (3, 3, RELEASE), (5, 5, ACCEPT))
    assert held.ack("m", (3, 3, ACCEPT)) is INVALID_STATE
    assert held.ack("m", (5, 5, ACCEPT)) is INVALID_STATE


def test_r49_of_another_member(held: Partition) -> None:
    assert held.ack("other", (3, 3, ACCEPT)) is INVALID_STATE


def test_r50_all_or_nothing(held: Partition) -> None:
    held.ack("m", (5, 5, RELEASE))
    before = held.state.in_flight
    assert held.ack("m", (0, 2, ACCEPT), (3, 6, ACCEPT)) is INVALID_STATE
    assert held.state.in_flight == before


def test_r53_no_batches(held: Partition) -> None:
    assert held.ack("m") is OK
    assert held.record is None


def test_r13_too_late_is_an_error_and_the_new_acquisition_counts(held: Partition) -> None:
    held.advance(30_000)
    assert held.ack("m", (0, 9, ACCEPT)) is INVALID_STATE
    held.fetch("m", (0, 9))
    assert held.ack("m", (0, 9, ACCEPT)) is OK


def test_renew_restarts_the_lock_and_keeps_the_count(client: ClientPartition) -> None:
    """KIP-1222."""
    client.now_ms = 20_000
    assert client.ack("m", (0, 4, RENEW)) is OK
    client.advance(10_000)
    assert client.window == "0-10: 0-4 Q1, 5-9 V1"
    client.advance(20_000)
    assert client.window == "0-10: 0-9 V1"


def test_renew_needs_a_request_that_may(client: ClientPartition) -> None:
    assert client.ack("m", (0, 4, RENEW), renew=False) is INVALID_REQUEST


def test_renewals_before_a_failing_entry_stay(client: ClientPartition) -> None:
    """Kafka 4.2 (conformance fact 11)."""
    client.now_ms = 20_000
    assert client.ack("m", (0, 4, RENEW), (5, 12, ACCEPT)) is INVALID_REQUEST
    client.advance(10_000)
    assert client.window == "0-10: 0-4 Q1, 5-9 V1"


def test_natural_gap_inside_an_acknowledged_range_is_passed_over() -> None:
    """Conformance fact 13."""
    partition = ClientPartition()
    partition.fetch("m", (0, 4))
    partition.fetch("m", (8, 9))
    assert partition.window == "0-10: 0-4 Q1, 8-9 Q1"
    assert partition.ack("m", (0, 9, ACCEPT)) is OK
    assert partition.window == "10-10"


def test_ending_in_a_natural_gap_is_an_invalid_request() -> None:
    partition = ClientPartition()
    partition.fetch("m", (0, 4))
    partition.fetch("m", (8, 9))
    assert partition.ack("m", (0, 6, ACCEPT)) is INVALID_REQUEST
    assert partition.ack("m", (6, 6, ACCEPT)) is INVALID_REQUEST


def test_one_type_per_offset_from_inside_a_natural_gap() -> None:
    partition = ClientPartition()
    partition.fetch("m", (0, 4))
    partition.fetch("m", (8, 9))
    assert partition.ack("m", (6, 9, (1, 1, 2, 1))) is OK
    assert partition.window == "0-10: 0-4 Q1, 8 V1, 9 D1"
