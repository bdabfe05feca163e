"""Conversion of a share-partition from our live form into the KIP's, and of writes in the KIP's form back. Pure.

What a write does not change stays as we know it, with the attempts that the KIP's form does not have (R8), and those
that are excused. Where it changes state or count, nothing is excused any more: the KIP's form has one count, by which
the writer judges the limit, so what it has written is what counts. A hole in the KIP's form is Available with count 0
(R22), and is written as such a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from share_spark import coordinator, partition
from share_spark.coordinator.messages import LAST_SNAPSHOT_EPOCH, ShareState
from share_spark.model.records import (
    UNCHANGED,
    UNINITIALIZED_START_OFFSET,
    DeliveryState,
    InFlightBatch,
    ShareUpdate,
    StateBatch,
)
from share_spark.partition import SharePartition
from share_spark.partition.kip import available_holes, past_finished


def durable_state(live: SharePartition) -> ShareState:
    """Return ``live`` as the share coordinator would hold it: Acquired as Available (R8), in canonical form (R82)."""
    return ShareState(
        key=live.key,
        snapshot_epoch=live.snapshot_epoch % (LAST_SNAPSHOT_EPOCH + 1),
        state_epoch=live.state_epoch,
        leader_epoch=live.leader_epoch,
        start_offset=live.start_offset,
        state_batches=coordinator.combine_batches((), partition.kip_batches(live), live.start_offset),
    )


def new_live_form(state: ShareState, snapshot_epoch: int = -1) -> SharePartition:
    """Return the live form of a share-partition of which only ``state`` is known (R29).

    ``snapshot_epoch``: that of the last snapshot in our log, -1 if there is none. Raises StateError like ``from_kip``.
    """
    return partition.from_kip(
        key=state.key,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        batches=state.state_batches,
        snapshot_epoch=snapshot_epoch,
    )


def after_write(live: SharePartition, after: ShareState) -> SharePartition:
    """Return ``live`` after a Write, or a Read by a new leader, that made its durable state ``after``."""
    if live.start_offset == UNINITIALIZED_START_OFFSET:
        return new_live_form(after, live.snapshot_epoch)
    changes = [_in_flight(batch) for batch in changed_batches(durable_state(live).state_batches, after.state_batches)]
    update = ShareUpdate(
        key=live.key,
        snapshot_epoch=live.snapshot_epoch,
        leader_epoch=after.leader_epoch,
        start_offset=after.start_offset if after.start_offset > live.start_offset else UNCHANGED,
        batches=sorted([*changes, *available_holes(changes, max(live.end_offset, after.start_offset))]),
    )
    return past_finished(partition.evolve(live, update))


def changed_batches(before: Sequence[StateBatch], after: Sequence[StateBatch]) -> Iterator[StateBatch]:
    """Yield where ``after`` differs from ``before``, ascending. Both are sorted and disjoint.

        before     [0 ------ A ------ 9][10 --- B --- 14]
        after             [5 ------ A ------ 12][13 B 14]
        changed                         [10 A 12]

    Offsets that only ``before`` has (0 to 4) are not reported: the start offset has passed them.
    """
    index = 0
    for batch in after:
        at = batch.first_offset
        while index < len(before) and before[index].last_offset < at:
            index += 1
        place = index
        while place < len(before) and before[place].first_offset <= batch.last_offset:
            known = before[place]
            if (known.delivery_state, known.delivery_count) == (batch.delivery_state, batch.delivery_count):
                if at < known.first_offset:
                    yield batch._replace(first_offset=at, last_offset=known.first_offset - 1)
                at = known.last_offset + 1
            place += 1
        if at <= batch.last_offset:
            yield batch._replace(first_offset=at)
        index = max(index, place - 1)  # the last one may reach into the next batch


def _in_flight(batch: StateBatch) -> InFlightBatch:
    first, last, state, count = batch
    return InFlightBatch(first, last, DeliveryState(state), count)
