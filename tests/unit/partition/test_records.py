"""Records and recovery: evolve, snapshots, the KIP's durable form (R7, R8, R15, R22, R29, R74-R76, R85)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from share_spark.model.errors import StateError
from share_spark.model.records import StateBatch
from share_spark.model.requests import Initialize, MoveLogStart
from share_spark.partition import (
    SharePartition,
    check_invariants,
    evolve,
    from_kip,
    kip_batches,
    restore,
    take_snapshot,
)
from tests.support.share_partition import ACCEPT, KEY, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")


def load(start_offset: int, *batches: tuple[int, int, int, int]) -> Partition:
    partition = Partition()
    partition.state = from_kip(
        key=KEY,
        state_epoch=0,
        leader_epoch=1,
        start_offset=start_offset,
        batches=[StateBatch(*batch) for batch in batches],
    )
    check_invariants(partition.state)
    return partition


def test_r7_recovery_knows_running_attempts() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.ack("a", (0, 3, ACCEPT), (5, 5, RELEASE))
    recovered = restore(partition.log)
    assert recovered == partition.state
    assert recovered is not None
    assert recovered.in_flight[0].member_id == "a"


def test_r74_a_snapshot_replaces_everything() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    snapshot = take_snapshot(partition.state)
    assert snapshot.snapshot_epoch == partition.state.snapshot_epoch + 1
    elsewhere = SharePartition(key=KEY, start_offset=77)
    after = evolve(elsewhere, snapshot)
    assert after == replace(partition.state, snapshot_epoch=snapshot.snapshot_epoch)


def test_r85_updates_of_another_snapshot_are_ignored() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    assert partition.record is not None
    newer = evolve(partition.state, take_snapshot(partition.state))
    assert evolve(newer, partition.record) == newer


def test_r85_an_update_without_a_snapshot_is_a_named_error() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    assert partition.record is not None
    with pytest.raises(StateError, match="snapshot is missing"):
        restore([partition.record])


def test_restore_of_nothing() -> None:
    assert restore([]) is None


def test_one_record_for_many_requests() -> None:
    partition = Partition(start=None)
    partition.ask(Initialize(start_offset=3), MoveLogStart(log_start_offset=8))
    assert partition.record is not None
    assert partition.record.start_offset == 8
    assert len(partition.log) == 2


def test_r26_the_first_start_is_chosen_once() -> None:
    partition = Partition(start=None)
    partition.ask(Initialize(start_offset=5))
    partition.ask(Initialize(start_offset=9))
    assert partition.state.start_offset == 5
    assert partition.record is None


def test_r8_r63_acquired_is_never_written_in_the_kip_form() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.ack("a", (2, 3, RELEASE), (8, 8, ACCEPT))
    partition.fetch("b", (2, 2))
    assert kip_batches(partition.state) == (
        StateBatch(2, 3, 0, 1),
        StateBatch(8, 8, 2, 1),
    )


def test_r22_holes_are_fetched_again_as_new() -> None:
    partition = load(0, (5, 6, 0, 2), (9, 9, 2, 1))
    assert partition.next_fetch_offset == 0
    assert partition.fetch("a", (0, 20)) == [(0, 4, 1), (5, 6, 3), (7, 8, 1), (10, 20, 1)]


def test_r29_a_batch_below_the_start_fails_the_load() -> None:
    with pytest.raises(StateError, match="does not fit start offset 10"):
        load(10, (5, 12, 0, 1))


def test_overlapping_batches_fail_the_load() -> None:
    with pytest.raises(StateError, match="overlap"):
        load(0, (0, 5, 0, 1), (4, 8, 0, 1))


def test_an_unknown_state_fails_the_load() -> None:
    with pytest.raises(StateError, match="unknown state 1"):
        load(0, (0, 5, 1, 1))


def test_r15_final_batches_at_the_front_are_skipped_at_load() -> None:
    assert load(0, (0, 4, 2, 1), (5, 9, 4, 1), (10, 12, 0, 1)).window == "10-13: 10-12 V1"
    assert load(0, (0, 4, 2, 1)).window == "5-5"


def test_r63_holes_may_also_come_as_available_with_count_0() -> None:
    """Both forms of the worked example's step 5 mean the same to the next member."""
    with_hole = load(110, (110, 110, 0, 1), (119, 119, 2, 1))
    stated = load(110, (110, 110, 0, 1), (111, 118, 0, 0), (119, 119, 2, 1))
    for partition in (with_hole, stated):
        assert partition.fetch("a", (110, 119)) == [(110, 110, 2), (111, 118, 1)]
        assert partition.ack("a", (110, 118, ACCEPT)) == 0
        assert partition.window == "120-120"
