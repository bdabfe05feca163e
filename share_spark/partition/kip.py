"""The KIP's durable form of a share-partition, in which Acquired is never written (R8, R22, R29, R60-R67).

It has one count, that of all deliveries. How many of them are excused is not in it: what is loaded from it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from share_spark.model.errors import StateError
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import (
    DeliveryState,
    InFlightBatch,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
)
from share_spark.partition.columns import in_best_form
from share_spark.partition.draft import Draft
from share_spark.partition.evolve import evolve
from share_spark.partition.runs import from_offset, holes, join
from share_spark.partition.state import SharePartition


def kip_batches(source: SharePartition | ShareSnapshot | ShareUpdate) -> tuple[StateBatch, ...]:
    """Return ``source`` as Kafka's share coordinator would hold it.

    A running attempt does not count: Acquired is written as Available with the count before it (R8), and not at all
    when it is the first attempt, because the hole is fetched again anyway (R22, R63). Nothing below the SPSO is
    written.
    """
    runs = source.in_flight if isinstance(source, SharePartition) else source.batches
    durable = [_durable(run) for run in from_offset(runs, source.start_offset)]
    return tuple(
        StateBatch(run.first_offset, run.last_offset, int(run.delivery_state), run.delivery_count)
        for run in join([run for run in durable if run is not None])
    )


def _durable(run: InFlightBatch) -> InFlightBatch | None:
    if run.delivery_state is not DeliveryState.ACQUIRED:
        return run
    if run.delivery_count <= 1:  # Available with count 0 is what a hole means
        return None
    return InFlightBatch(run.first_offset, run.last_offset, DeliveryState.AVAILABLE, run.delivery_count - 1)


def from_kip(
    *,
    key: SharePartitionKey,
    state_epoch: int,
    leader_epoch: int,
    start_offset: int,
    batches: Iterable[StateBatch],
    snapshot_epoch: int = 0,
) -> SharePartition:
    """Return what a leader makes of the KIP's durable form (R29), past final batches at the front (R15).

    Offsets between two batches are Available with count 0 (R22). Raises StateError for a batch that begins below
    ``start_offset``, one that overlaps another, or an unknown state.
    """
    runs = durable_runs(key, start_offset, batches)
    loaded = SharePartition(
        key=key,
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        in_flight=in_best_form(join(sorted([*runs, *available_holes(runs, start_offset)]))),
    )
    return past_finished(loaded)


def past_finished(state: SharePartition) -> SharePartition:
    """Return ``state`` with its SPSO past final runs at the front (R15)."""
    draft = Draft(state)
    draft.advance_start()
    record = draft.record()
    return state if record is None else evolve(state, record)


def durable_runs(key: SharePartitionKey, start_offset: int, batches: Iterable[StateBatch]) -> list[InFlightBatch]:
    """Return ``batches`` as runs, ascending. Raises StateError as ``from_kip`` does."""
    runs = [_loaded(key, start_offset, batch) for batch in sorted(batches)]
    for left, right in pairwise(runs):
        if left.last_offset >= right.first_offset:
            raise StateError(f"{key}: state batches {left[:2]} and {right[:2]} overlap")
    return runs


def available_holes(runs: Sequence[InFlightBatch], first: int) -> list[InFlightBatch]:
    """Return what no run covers, from ``first`` on to the last run, as Available with count 0 (R22)."""
    last = runs[-1].last_offset if runs else first - 1
    return [InFlightBatch(*hole, DeliveryState.AVAILABLE, 0) for hole in holes(runs, first, last)]


def _loaded(key: SharePartitionKey, start_offset: int, batch: StateBatch) -> InFlightBatch:
    first, last, state, count = batch
    if first < start_offset or last < first:
        raise StateError(f"{key}: state batch {first}-{last} does not fit start offset {start_offset}")
    if state not in (DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED):
        raise StateError(f"{key}: state batch {first}-{last} has the unknown state {state}")
    return InFlightBatch(first, last, DeliveryState(state), count)
