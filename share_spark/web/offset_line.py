"""The window of a share-partition as slices of a line, legible at one range and at a hundred thousand. Pure.

Few ranges are slices of their own. Of many, most would be narrower than a pixel: then the line is cut into columns, and
a column says how many of its offsets are in which state; neighbours that are all of one state are one slice.

    ranges    |AAAAAAAAAAAA|D|V|D|V|D|DDDDDDDDDDDDD|
    columns   |  A  |  A  |  D 2 V 2  |  D  |  D   |
    slices    |     A     |  D 2 V 2  |      D     |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.partition import SharePartition
from share_spark.partition.columns import Columns, as_columns

_COLUMNS_PER_RANGE = 4
"""The number of columns for a range from which on ranges are wide enough to be shown by themselves."""


class Slice(NamedTuple):
    """A slice: offsets ``first_offset`` to ``last_offset``, both included. ``by_state``: how many of them are in each
    state, in the order of ``DeliveryState``; the others hold no record. ``run``: what they are, if they are one
    range."""

    first_offset: int
    last_offset: int
    by_state: tuple[int, ...]
    run: InFlightBatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLine:
    """A line from ``start_offset`` to ``end_offset`` (exclusive): SPSO to SPEO, and a range below the SPSO that is
    still Acquired. ``slices`` are ascending."""

    start_offset: int
    end_offset: int
    slices: tuple[Slice, ...] = ()

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end_offset - self.start_offset


def offset_line(state: SharePartition, columns: int) -> OffsetLine:
    """Return the line of a share-partition, with about ``columns`` slices at most."""
    runs = state.in_flight
    if not runs:
        return OffsetLine(start_offset=state.start_offset, end_offset=state.end_offset)
    line = OffsetLine(start_offset=min(state.start_offset, runs[0].first_offset), end_offset=state.end_offset)
    if len(runs) * _COLUMNS_PER_RANGE <= columns:
        slices = tuple(Slice(run.first_offset, run.last_offset, _all_in(run), run) for run in runs)
    else:
        slices = tuple(_joined(_columns(as_columns(runs), line, min(columns, line.size))))
    return OffsetLine(start_offset=line.start_offset, end_offset=line.end_offset, slices=slices)


def _all_in(run: InFlightBatch) -> tuple[int, ...]:
    offsets = run.last_offset - run.first_offset + 1
    return tuple(offsets if state is run.delivery_state else 0 for state in DeliveryState)


def _columns(runs: Columns[InFlightBatch], line: OffsetLine, columns: int) -> Iterator[Slice]:
    edges = line.start_offset + np.arange(columns + 1, dtype=np.int64) * line.size // columns
    below = [_below(runs, state, edges) for state in DeliveryState]
    counts = np.diff(np.stack(below, axis=1), axis=0)
    for first, end, found in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        yield Slice(first, end - 1, tuple(found))


def _below(runs: Columns[InFlightBatch], state: DeliveryState, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many offsets in ``state`` are below each edge."""
    chosen = runs.mask(lambda run: run.delivery_state is state)
    first, end = runs.first[chosen], runs.last[chosen] + 1
    total = np.concatenate([[0], np.cumsum(end - first)])
    before = np.searchsorted(first, edges)
    # The last range that begins below an edge may reach past it.
    reach = np.concatenate([[0], end])[before] - edges
    found: NDArray[np.int64] = total[before] - np.where(before > 0, np.maximum(reach, 0), 0)
    return found


def _joined(slices: Iterator[Slice]) -> Iterator[Slice]:
    """Join neighbours that are all of one state."""
    held = next(slices)
    for one in slices:
        if _only_state(held) is not None and _only_state(held) == _only_state(one):
            by_state = tuple(a + b for a, b in zip(held.by_state, one.by_state, strict=True))
            held = Slice(held.first_offset, one.last_offset, by_state)
        else:
            yield held
            held = one
    yield held


def _only_state(one: Slice) -> int | None:
    size = one.last_offset - one.first_offset + 1
    return next((at for at, offsets in enumerate(one.by_state) if offsets == size), None)
