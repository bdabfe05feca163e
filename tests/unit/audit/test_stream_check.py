"""What ``verify`` finds wrong with the records of one share-partition, fault by fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from share_spark.audit.stream_check import LogRecord, first_fault, kip_record
from share_spark.coordinator import normal_form
from share_spark.coordinator.messages import StateSnapshot, StateUpdate
from share_spark.model.records import (
    DeliveryState,
    Doubt,
    InFlightBatch,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
)
from share_spark.partition import take_snapshot
from tests.support.share_partition import ACCEPT, KEY, RELEASE, Partition

V, Q, D, X = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED


def update(start_offset: int = -1, *batches: tuple[int, int, DeliveryState, int], epoch: int = 0) -> ShareUpdate:
    return ShareUpdate(
        key=KEY,
        snapshot_epoch=epoch,
        leader_epoch=2,
        start_offset=start_offset,
        batches=tuple(InFlightBatch(*batch) for batch in batches),
    )


def snapshot(epoch: int = 0, **fields: int) -> ShareSnapshot:
    known = {"state_epoch": 3, "leader_epoch": 2, "start_offset": 100, **fields}
    return ShareSnapshot(key=KEY, snapshot_epoch=epoch, batches=(), **known)


def fault(*records: ShareRecord) -> str | None:
    return first_fault([LogRecord(10 + place, record) for place, record in enumerate(records)])


def test_a_share_partition_at_work_holds_together() -> None:
    worked = Partition(start=100)
    worked.fetch("a", (100, 119))
    worked.ack("a", (100, 104, ACCEPT), (107, 107, RELEASE), (110, 114, ACCEPT))
    worked.fetch("b", (107, 107))
    worked.log_start(106)
    worked.log.append(take_snapshot(worked.state))
    worked.state = replace(worked.state, snapshot_epoch=1)
    worked.advance(60_000)
    worked.ack("b", (107, 107, ACCEPT))
    assert len(worked.log) > 5
    assert fault(*worked.log) is None


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([update(110)], "10: an update without a snapshot before it"),
        ([snapshot(), update(110, epoch=1)], "11: snapshot epoch is 1 where it should be 0"),
        ([snapshot(), snapshot()], "11: snapshot epoch is 0 where it should be 1"),
        ([snapshot(), snapshot(2)], "11: snapshot epoch is 2 where it should be 1"),
        ([snapshot(), snapshot(1, state_epoch=2)], "11: state epoch falls from 3 to 2"),
        ([snapshot(), update(110), snapshot(1, leader_epoch=1)], "12: leader epoch falls from 2 to 1"),
        ([snapshot(), update(110), update(), update(105)], "13: start offset falls from 110 to 105"),
        ([snapshot(), update(-1, (100, 109, V, 1), (105, 112, D, 1))], "11: batches 100-109 and 105-112 overlap"),
        ([snapshot(), update(-1, (100, 109, Q, 1), (109, 112, V, 1))], "11: batches 100-109 and 109-112 overlap"),
        ([snapshot(), update(-1, (109, 100, V, 1))], "11: batch 109-100 with count 1 cannot be"),
        ([snapshot(), update(-1, (100, 109, V, -1))], "11: batch 100-109 with count -1 cannot be"),
        (
            [snapshot(), update(-1, (100, 109, V, 2, None, None, Doubt.NONE, 3))],
            "11: batch 100-109 with count 2 has 3 excused deliveries",
        ),
    ],
)
def test_a_record_out_of_place_is_named_with_its_micro_batch(records: list[ShareRecord], expected: str) -> None:
    assert fault(*records) == f"micro-batch {expected}"


def test_where_the_log_was_truncated_the_start_offset_goes_back_with_a_snapshot() -> None:
    worked = Partition(start=100)
    worked.fetch("a", (100, 119))
    worked.ack("a", (100, 109, ACCEPT))
    worked.truncate(105)
    worked.fetch("b", (105, 112))
    worked.ack("b", (105, 106, ACCEPT), (107, 107, RELEASE))
    assert worked.window == "107-113: 107 V1, 108-112 Q1"
    assert fault(*worked.log) is None
    assert fault(snapshot(), update(110), snapshot(1, start_offset=105), update(106, epoch=1)) is None
    found = fault(snapshot(), update(110), snapshot(1, start_offset=105), update(104, epoch=1))
    assert found == "micro-batch 13: start offset falls from 105 to 104"


def cut(*batches: tuple[int, int, DeliveryState, int], start_offset: int = 100) -> str | None:
    """What is said of a snapshot with these batches, after some of every state."""
    before = update(-1, (95, 99, Q, 2), (100, 104, V, 2), (105, 109, D, 1), (110, 114, Q, 3), (115, 119, V, 0))
    after = snapshot(1, start_offset=start_offset)
    return fault(snapshot(), before, replace(after, batches=tuple(InFlightBatch(*batch) for batch in batches)))


@pytest.mark.parametrize(
    ("batches", "start_offset"),
    [
        ([(95, 99, Q, 2), (100, 104, V, 2), (105, 109, D, 1), (110, 114, Q, 3), (115, 119, V, 0)], 100),
        ([(95, 99, Q, 2), (100, 104, V, 2), (105, 109, D, 1), (110, 111, Q, 3)], 100),
        ([(100, 104, Q, 3), (105, 109, D, 1), (110, 111, D, 3)], 100),
        ([(100, 104, X, 2), (105, 109, D, 1), (110, 114, V, 2), (115, 116, Q, 1)], 100),
        ([(100, 104, V, 2), (105, 105, D, 1), (106, 130, Q, 1)], 100),
        ([(112, 114, V, 3), (115, 130, Q, 1)], 112),
        ([(95, 96, Q, 2)], 97),
        ([], 40),
        ([(40, 60, Q, 1)], 40),
    ],
)
def test_a_snapshot_cuts_the_state_off_and_the_rest_goes_on(
    batches: list[tuple[int, int, DeliveryState, int]], start_offset: int
) -> None:
    assert cut(*batches, start_offset=start_offset) is None


@pytest.mark.parametrize(
    ("batches", "start_offset", "expected"),
    [
        ([(40, 60, V, 1)], 40, "start offset falls from 100 to 40, and 40-60 Available (1) is left above it"),
        ([(95, 99, Q, 2)], 50, "start offset falls from 100 to 50, and 95-99 Acquired (2) is left above it"),
        ([(105, 109, D, 1)], 90, "start offset falls from 100 to 90, and 105-109 Acknowledged (1) is left above it"),
        ([(95, 96, Q, 1)], 97, "95-96 Acquired (1) below the start offset 97 does not follow from 95-96 Acquired (2)"),
        ([(90, 94, Q, 1)], 97, "90-94 Acquired (1) below the start offset 97 does not follow from nothing"),
        ([(100, 104, V, 1)], 100, "100-104 Available (1) does not follow from 100-104 Available (2)"),
        ([(100, 104, Q, 4)], 100, "100-104 Acquired (4) does not follow from 100-104 Available (2)"),
        ([(100, 104, D, 2)], 100, "100-104 Acknowledged (2) does not follow from 100-104 Available (2)"),
        (
            [(100, 104, V, 2), (105, 106, V, 1)],
            100,
            "105-106 Available (1) does not follow from 105-106 Acknowledged (1)",
        ),
        (
            [(100, 104, V, 2), (110, 114, V, 3)],
            100,
            "offset 105 is forgotten, and 110-114 Available (3) is left above it",
        ),
    ],
)
def test_a_snapshot_that_does_more_than_cut_is_named(
    batches: list[tuple[int, int, DeliveryState, int]], start_offset: int, expected: str
) -> None:
    assert cut(*batches, start_offset=start_offset) == f"micro-batch 12: {expected}"


def test_two_records_in_one_commit() -> None:
    stream = [LogRecord(10, snapshot()), LogRecord(11, update(110)), LogRecord(11, update(120))]
    assert first_fault(stream) == "micro-batch 11: two records of one share-partition in one commit"


def test_with_a_new_state_epoch_the_start_offset_may_go_back() -> None:
    assert fault(snapshot(), update(110), snapshot(1, state_epoch=4, start_offset=5)) is None


@pytest.mark.parametrize(
    ("then", "live", "durable"),
    [
        ((105, 109, V, 1), "105-109 Available (1)", "105-109 Available (2)"),
        ((107, 109, V, 0), "105-106 Available (2)", "105-109 Available (2)"),
        ((105, 109, V, 0), "nothing more", "105-109 Available (2)"),
        ((105, 109, D, 1), "105-109 Acknowledged (1)", "105-109 Available (2)"),
    ],
)
def test_r81_a_count_that_falls_is_where_the_two_replays_differ(
    then: tuple[int, int, DeliveryState, int], live: str, durable: str
) -> None:
    """Kafka's coordinator keeps the greater count, so ours must never write a lower one. Reported where it began."""
    counted, later = update(-1, (105, 109, V, 2)), update(-1, (120, 120, V, 1))
    expected = f"micro-batch 12: {live} in the live state, {durable} in the KIP's form"
    assert fault(snapshot(), counted, update(-1, then), later) == expected
    assert fault(snapshot(), counted, update(-1, then), later, snapshot()) == expected, "before what comes later"


def test_r3_a_final_state_that_is_left() -> None:
    found = fault(snapshot(), update(-1, (105, 109, D, 1)), update(-1, (105, 109, V, 1)))
    assert found == (
        "micro-batch 12: 105-109 Available (1) in the live state, 105-109 Acknowledged (1) in the KIP's form"
    )


def test_r8_a_running_attempt_is_not_in_the_kips_form() -> None:
    found = kip_record(update(-1, (100, 104, Q, 1), (105, 109, Q, 3), (110, 110, D, 1)))
    assert isinstance(found, StateUpdate)
    assert found.state_batches == (StateBatch(105, 109, 0, 2), StateBatch(110, 110, 2, 1))


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (65_534, 65_534), (65_535, 0), (65_536, 1), (131_070, 0)])
def test_o7_snapshot_epochs_of_a_long_log_in_the_kips_form(ours: int, theirs: int) -> None:
    found = kip_record(snapshot(ours))
    assert isinstance(found, StateSnapshot)
    assert found.snapshot_epoch == theirs


def test_o7_a_long_log_counts_on() -> None:
    assert fault(snapshot(65_534), update(110, epoch=65_534), snapshot(65_535, start_offset=110)) is None
    assert fault(snapshot(65_535), update(110, epoch=65_535)) is None


def test_r66_one_form_of_all_equivalent_ones() -> None:
    said = [(90, 99, 2, 1), (100, 101, 2, 1), (102, 102, 4, 2), (103, 104, 0, 0), (105, 106, 2, 1), (110, 119, 0, 0)]
    batches = [StateBatch(*batch) for batch in said]
    assert normal_form(100, batches) == (103, (StateBatch(105, 106, 2, 1),))
    assert normal_form(103, batches[4:5]) == (103, (StateBatch(105, 106, 2, 1),))
    assert normal_form(-1, []) == (-1, ())
