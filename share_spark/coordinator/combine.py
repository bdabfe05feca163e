"""Merge durable state batches as the share coordinator does (R80-R84), in one sweep over their boundaries.

Per offset the greatest (delivery count, delivery state) wins, whatever was written last: a late or repeated write can
never undo a newer attempt (R84, R87). The result is canonical: sorted, disjoint, touching runs of equal state and
count joined. (Kafka's own procedure, R82, leaves some neighbours unjoined; per offset the two agree.)

    existing     [V1-----------------][D1------]         V: Available, D: Acknowledged, the digit is the delivery count
    new               [V2------][D1-----------------]
    sweep at     ^    ^         ^     ^         ^        where a batch begins, or the strongest one ends
    combined     [V1-][V2------][D1-----------------]    V2 is stronger than V1, D1 than V1

The normal form is one form for all durable states that mean the same (R66).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from share_spark.model.records import DeliveryState, StateBatch

NO_PRUNING = -1
"""Start offset of a write that does not know where the share-partition begins (R79)."""


def combine_batches(
    existing: Iterable[StateBatch], new: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the union of both, pruned below ``start_offset`` (-1: not pruned, R80), the stronger of two overlapping.

    Neither input needs to be sorted or disjoint. O(n log n), and linear where they are nearly sorted.
    """
    pruned = _pruned((*existing, *new), start_offset)
    pruned.sort()
    return tuple(_joined(_strongest(pruned)))


def _pruned(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Cut batches to begin at ``start_offset`` (R80)."""
    if start_offset == NO_PRUNING:
        return [StateBatch(*batch) for batch in batches]
    return [
        StateBatch(max(first, start_offset), last, state, count)
        for first, last, state, count in batches
        if last >= start_offset
    ]


def _strongest(batches: list[StateBatch]) -> Iterator[StateBatch]:
    """Yield disjoint pieces in offset order, of the strongest batch at each offset (R81).

    ``batches`` is sorted. The heap holds those that begin at or before ``at``, the strongest on top, as
    (-count, -state, last offset). One that ends before ``at`` is dropped only when it comes to the top: to find it
    earlier would cost a search of the heap.
    """
    heap: list[tuple[int, int, int]] = []
    at = 0
    following = 0
    while following < len(batches) or heap:
        if not heap:
            # A hole: nothing reaches past ``at``, so the sweep goes on where the next batch begins.
            at = batches[following].first_offset
        while following < len(batches) and batches[following].first_offset <= at:
            _, last, state, count = batches[following]
            heappush(heap, (-count, -state, last))
            following += 1
        count, state, last = heap[0]
        if last < at:
            heappop(heap)
            continue
        if following < len(batches):
            # The next batch may be stronger, so this piece ends before it, and the two are compared there.
            last = min(last, batches[following].first_offset - 1)
        yield StateBatch(at, last, -state, -count)
        at = last + 1


def _joined(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    """Join touching neighbours of equal state and count."""
    held: StateBatch | None = None
    for batch in batches:
        if held is not None and held.last_offset + 1 == batch.first_offset and held[2:] == batch[2:]:
            held = held._replace(last_offset=batch.last_offset)
            continue
        if held is not None:
            yield held
        held = batch
    if held is not None:
        yield held


def normal_form(start_offset: int, batches: Iterable[StateBatch]) -> tuple[int, tuple[StateBatch, ...]]:
    """Return the SPSO and the batches from there on, in the one form of all equivalent ones (R66).

    Nothing below the SPSO, the SPSO past final batches at the front, and no batch that states no more than a hole does
    (Available, count 0, R22).
    """
    settled = settled_start(start_offset, kept := combine_batches((), batches, start_offset))
    stated = (batch for batch in kept if batch.delivery_state != DeliveryState.AVAILABLE or batch.delivery_count > 0)
    return settled, tuple(batch for batch in stated if batch.first_offset >= settled)


def settled_start(start_offset: int, batches: Iterable[StateBatch]) -> int:
    """Return the SPSO past the final batches at the front, which a leader skips on loading (R15).

    ``batches``: ascending.
    """
    for first, last, delivery_state, _ in batches:
        if first != start_offset or not DeliveryState(delivery_state).is_final:
            break
        start_offset = last + 1
    return start_offset
