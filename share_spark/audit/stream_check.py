"""Check of the records of one share-partition in one segment. Pure: records in, a sentence out.

The records are replayed twice: our ``evolve`` makes the live state, and the share coordinator's ``evolve``, which has
only the KIP's form (Acquired as Available, R8), makes the state that Kafka would hold. Both must agree
(R66).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from share_spark import coordinator, partition
from share_spark.audit.truncation_check import cut_fault
from share_spark.coordinator.messages import (
    DELETED_SNAPSHOT_EPOCHS,
    ShareState,
    StateRecord,
    StateSnapshot,
    StateUpdate,
)
from share_spark.model.records import UNCHANGED, DeliveryState, InFlightBatch, ShareRecord, ShareSnapshot, StateBatch

_SNAPSHOT_EPOCHS = max(DELETED_SNAPSHOT_EPOCHS)
"""The number of snapshot epochs in the KIP's form: a uint16 without its last value; our log counts on (O7)."""


class LogRecord(NamedTuple):
    """A record and the micro-batch that wrote it."""

    batch_id: int
    record: ShareRecord


def first_fault(stream: Sequence[LogRecord]) -> str | None:
    """Return the first fault in the records of one share-partition, in the order they count in; None: no fault.

    ``stream`` is one segment's, so it begins with a snapshot.
    """
    seen: _Seen | None = None
    for place, (batch_id, record) in enumerate(stream):
        fault = _malformed(record) or _out_of_place(seen, batch_id, record) or _badly_cut(stream, place, record)
        if fault is not None:
            return _difference(stream[:place]) or f"micro-batch {batch_id}: {fault}"
        seen = _seen(seen, batch_id, record)
    return _difference(stream)


def kip_record(record: ShareRecord) -> StateRecord:
    """Return ``record`` as Kafka's share coordinator would have written it."""
    batches = partition.kip_batches(record)
    if isinstance(record, ShareSnapshot):
        return StateSnapshot(
            key=record.key,
            snapshot_epoch=record.snapshot_epoch % _SNAPSHOT_EPOCHS,
            state_epoch=record.state_epoch,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            state_batches=batches,
        )
    return StateUpdate(
        key=record.key,
        snapshot_epoch=record.snapshot_epoch % _SNAPSHOT_EPOCHS,
        leader_epoch=record.leader_epoch,
        start_offset=record.start_offset,
        state_batches=batches,
    )


# ----------------------------------------------------------------------------------------------- one record


def _malformed(record: ShareRecord) -> str | None:
    for batch in record.batches:
        if batch.first_offset < 0 or batch.last_offset < batch.first_offset or batch.delivery_count < 0:
            return f"batch {_text(batch)} with count {batch.delivery_count} cannot be"
        if not 0 <= batch.excused <= batch.delivery_count:
            return f"batch {_text(batch)} with count {batch.delivery_count} has {batch.excused} excused deliveries"
    for left, right in pairwise(record.batches):
        if right.first_offset <= left.last_offset:
            return f"batches {_text(left)} and {_text(right)} overlap"
    return None


def _badly_cut(stream: Sequence[LogRecord], place: int, record: ShareRecord) -> str | None:
    """Return the fault of a later snapshot. A new state epoch makes it independent of what was before it (R101)."""
    if not place or not isinstance(record, ShareSnapshot):
        return None
    before = partition.restore(one for _, one in stream[:place])
    return cut_fault(before, record) if before is not None and before.state_epoch == record.state_epoch else None


class _Seen(NamedTuple):
    """The last values of a stream."""

    batch_id: int
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int


def _seen(before: _Seen | None, batch_id: int, record: ShareRecord) -> _Seen:
    start_offset, state_epoch = record.start_offset, getattr(record, "state_epoch", None)
    if before is not None and start_offset == UNCHANGED:
        start_offset = before.start_offset
    if before is not None and state_epoch is None:
        state_epoch = before.state_epoch
    return _Seen(batch_id, record.snapshot_epoch, state_epoch or 0, record.leader_epoch, start_offset)


def _out_of_place(before: _Seen | None, batch_id: int, record: ShareRecord) -> str | None:
    """Return what a record does against those before it (R75, R76, R86).

    The start offset goes back with a new state epoch (R101), and where the log was truncated, which a snapshot records
    (``truncation_check``); an update never takes it back (R61).
    """
    if before is None:
        return None if isinstance(record, ShareSnapshot) else "an update without a snapshot before it"
    if batch_id == before.batch_id:
        return "two records of one share-partition in one commit"
    now = _seen(before, batch_id, record)
    is_snapshot = isinstance(record, ShareSnapshot)
    for name, was, became in (
        ("state epoch", before.state_epoch, now.state_epoch),
        ("leader epoch", before.leader_epoch, now.leader_epoch),
        ("start offset", before.start_offset, now.start_offset),
    ):
        if became < was and not (name == "start offset" and is_snapshot):
            return f"{name} falls from {was} to {became}"
    expected = before.snapshot_epoch + int(is_snapshot)
    if record.snapshot_epoch != expected:
        return f"snapshot epoch is {record.snapshot_epoch} where it should be {expected}"
    return None


# ----------------------------------------------------------------------------------------- both replays


def _difference(stream: Sequence[LogRecord]) -> str | None:
    """Return whether the two replays differ at the end, and since when. Steps are compared only then: a comparison
    reads the whole state, a step only one record."""
    last = deque(_replays(stream), maxlen=1)
    if all(_disagreement(live, durable) is None for _, live, durable in last):
        return None
    faults = ((batch_id, _disagreement(live, durable)) for batch_id, live, durable in _replays(stream))
    return next(f"micro-batch {batch_id}: {fault}" for batch_id, fault in faults if fault is not None)


def _replays(stream: Iterable[LogRecord]) -> Iterator[tuple[int, partition.SharePartition, ShareState]]:
    live: partition.SharePartition | None = None
    durable: ShareState | None = None
    for batch_id, record in stream:
        live = partition.evolve(live, record)
        durable = coordinator.evolve(durable, kip_record(record))
        assert durable is not None, "a stream begins with a snapshot, and nothing in it deletes"
        yield batch_id, live, durable


def _disagreement(live: partition.SharePartition, durable: ShareState) -> str | None:
    ours, our_batches = coordinator.normal_form(live.start_offset, partition.kip_batches(live))
    theirs, their_batches = coordinator.normal_form(durable.start_offset, durable.state_batches)
    if ours != theirs:
        return f"start offset is {ours} in the live state, {theirs} in the KIP's form"
    for one, other in zip_longest(our_batches, their_batches):
        if one != other:
            return f"{_batch_text(one)} in the live state, {_batch_text(other)} in the KIP's form"
    return None


def _batch_text(batch: StateBatch | None) -> str:
    if batch is None:
        return "nothing more"
    return f"{_text(batch)} {DeliveryState(batch.delivery_state).name.capitalize()} ({batch.delivery_count})"


def _text(batch: StateBatch | InFlightBatch) -> str:
    return f"{batch.first_offset}-{batch.last_offset}"
