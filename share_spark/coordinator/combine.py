"""Merge durable state batches as the share coordinator does (R80-R84), in one sweep over their boundaries.

Per offset the greatest (delivery count, delivery state) wins, whatever was written last: a late or repeated write can
never undo a newer attempt (R84, R87). The result is canonical: sorted, disjoint, touching runs of equal state and
count joined. (Kafka's own procedure, R82, leaves some neighbours unjoined; per offset the two agree.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from share_spark.model.records import StateBatch

NO_PRUNING = -1
"""Start offset of a write that does not know where the share-partition begins (R79)."""


def combine_batches(
    existing: Iterable[StateBatch], new: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """The union of both, pruned below ``start_offset`` (-1: not pruned, R80), the stronger of two overlapping.

    Neither input needs to be sorted or disjoint. O(n log n), and linear where they are nearly sorted.
    """
    pruned = _pruned((*existing, *new), start_offset)
    pruned.sort()
    return tuple(_joined(_strongest(pruned)))


def _pruned(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Batches cut to begin at ``start_offset`` (R80)."""
    if start_offset == NO_PRUNING:
        return [StateBatch(*batch) for batch in batches]
    return [
        StateBatch(max(first, start_offset), last, state, count)
        for first, last, state, count in batches
        if last >= start_offset
    ]


def _strongest(batches: list[StateBatch]) -> Iterator[StateBatch]:
    """Disjoint pieces in offset order, of the strongest batch at each offset (R81).

    ``batches`` is sorted. The heap holds those that reach past ``at``, the strongest on top, as
    (-count, -state, last offset); one that ends before ``at`` is dropped when it comes up.
    """
    heap: list[tuple[int, int, int]] = []
    at = 0
    following = 0
    while following < len(batches) or heap:
        if not heap:
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
            last = min(last, batches[following].first_offset - 1)
        yield StateBatch(at, last, -state, -count)
        at = last + 1


def _joined(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    """Touching neighbours of equal state and count as one."""
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
