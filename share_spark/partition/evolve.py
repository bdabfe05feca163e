"""Applies a record: the only function that makes a new state, for live traffic and for recovery."""

from __future__ import annotations

from collections.abc import Iterable

from share_spark.model.errors import StateError
from share_spark.model.records import (
    UNCHANGED,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
)
from share_spark.partition.columns import in_best_form
from share_spark.partition.runs import from_offset, overlay, without_finished_below
from share_spark.partition.state import SharePartition


def evolve(state: SharePartition | None, record: ShareRecord) -> SharePartition:
    """Return the state after ``record``. A snapshot replaces everything, an update changes what it names (R74, R85).

    An update of another snapshot epoch is ignored (R85). Raises StateError for an update of no known state.
    """
    if isinstance(record, ShareSnapshot):
        return _from_snapshot(record)
    if state is None:
        raise StateError(f"{record.key}: the first record is an update, its snapshot is missing")
    if record.snapshot_epoch != state.snapshot_epoch:  # it changes a state that was replaced
        return state
    return _updated(state, record)


def _from_snapshot(record: ShareSnapshot) -> SharePartition:
    return SharePartition(
        key=record.key,
        state_epoch=record.state_epoch,
        leader_epoch=record.leader_epoch,
        snapshot_epoch=record.snapshot_epoch,
        start_offset=record.start_offset,
        in_flight=in_best_form(record.batches),
    )


def _updated(state: SharePartition, record: ShareUpdate) -> SharePartition:
    moved = record.start_offset != UNCHANGED
    start = record.start_offset if moved else state.start_offset
    # A moved SPSO drops all below it; what stays there, because it is still Acquired, is stated again by the record.
    kept = from_offset(state.in_flight, start) if moved else state.in_flight
    return SharePartition(
        key=state.key,
        state_epoch=state.state_epoch,
        leader_epoch=max(state.leader_epoch, record.leader_epoch),
        snapshot_epoch=state.snapshot_epoch,
        start_offset=start,
        in_flight=in_best_form(without_finished_below(overlay(kept, record.batches), start)),
    )


def restore(records: Iterable[ShareRecord]) -> SharePartition | None:
    """Return the state after ``records`` of one share-partition in log order, None if there are none."""
    state: SharePartition | None = None
    for record in records:
        state = evolve(state, record)
    return state


def take_snapshot(state: SharePartition) -> ShareSnapshot:
    """Make a snapshot of ``state`` with the next snapshot epoch (R75); evolving by it changes nothing else."""
    return ShareSnapshot(
        key=state.key,
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        batches=state.in_flight,
    )
