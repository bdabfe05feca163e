"""State of a share-partition from its records: live and in recovery the same function (R74, R85-R87)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from share_spark.coordinator.combine import NO_PRUNING, combine_batches
from share_spark.coordinator.messages import (
    DELETED_SNAPSHOT_EPOCHS,
    NOT_GIVEN,
    ShareState,
    StateRecord,
    StateSnapshot,
    StateTombstone,
    StateUpdate,
)
from share_spark.model.ids import SharePartitionKey


def evolve(state: ShareState | None, record: StateRecord) -> ShareState | None:
    """Return the state after ``record``; None: the key is unknown.

    An update of another snapshot epoch is ignored (R85). So is one without any snapshot: the key stays unknown and
    its leader gets that error, which is better than to go on with a part of the state.
    """
    if isinstance(record, StateTombstone) or record.snapshot_epoch in DELETED_SNAPSHOT_EPOCHS:
        return None
    if isinstance(record, StateSnapshot):
        return _from_snapshot(state, record)
    if state is None or record.snapshot_epoch != state.snapshot_epoch:
        return state
    return _updated(state, record)


def replay(
    records: Iterable[StateRecord], states: Mapping[SharePartitionKey, ShareState] | None = None
) -> dict[SharePartitionKey, ShareState]:
    """Return the known keys and their states after ``records``, in log order, on top of ``states`` (R73, R85)."""
    after = dict(states or {})
    for record in records:
        state = evolve(after.pop(record.key, None), record)
        if state is not None:
            after[record.key] = state
    return after


def _from_snapshot(state: ShareState | None, record: StateSnapshot) -> ShareState:
    """Take all from the record, but epochs never fall (R86)."""
    return ShareState(
        key=record.key,
        snapshot_epoch=record.snapshot_epoch,
        state_epoch=max(record.state_epoch, state.state_epoch if state else NOT_GIVEN),
        leader_epoch=max(record.leader_epoch, state.leader_epoch if state else NOT_GIVEN),
        start_offset=record.start_offset,
        state_batches=combine_batches((), record.state_batches, NO_PRUNING),
    )


def _updated(state: ShareState, record: StateUpdate) -> ShareState:
    """Apply an update: the SPSO only moves up, so that a late write cannot bring finished offsets back.

    (-1, not changed, is below every other.)
    """
    start_offset = max(state.start_offset, record.start_offset)
    return replace(
        state,
        leader_epoch=max(state.leader_epoch, record.leader_epoch),
        start_offset=start_offset,
        state_batches=combine_batches(state.state_batches, record.state_batches, start_offset),
        updates=state.updates + 1,
    )
