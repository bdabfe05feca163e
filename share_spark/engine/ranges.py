"""Runs of offsets of one topic-partition as an array, so that a million of them need no objects.

Shape (n, 3), int64: first offset, last offset (inclusive), and a value for all offsets between them. The meaning of the
value makes three types, which are the same at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NewType

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]
Offsets = NDArray[np.int64]

AcquiredRanges = NewType("AcquiredRanges", Ranges)
"""Ranges with the delivery count, which includes the delivery that begins."""

NumberedRanges = NewType("NumberedRanges", Ranges)
"""Ranges with the number of the dead letter that they are for."""

EarlierRanges = NewType("EarlierRanges", Ranges)
"""Ranges with the milliseconds for which their records will not be finished at least, 0 if that is not known."""

FIRST, LAST = 0, 1
DELIVERY_COUNT = NUMBER = WAIT_MS = 2

NONE_EARLIER = EarlierRanges(np.empty((0, 3), dtype=np.int64))


def offsets_in(ranges: Ranges) -> int:
    """Return how many offsets the ranges hold."""
    return int((ranges[:, LAST] - ranges[:, FIRST] + 1).sum())


def each_between(first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (each number from ``first`` to ``last``, the index of its pair), pair by pair.

    first, last     (3, 5)  (8, 8)
    numbers         3 4 5    8
    pairs           0 0 0    1
    """
    sizes = last - first + 1
    pairs = np.repeat(np.arange(len(sizes)), sizes)
    # Row i of the pair whose rows begin at row s is its first number + (i - s).
    begins = np.cumsum(sizes) - sizes
    numbers: NDArray[np.int64] = first[pairs] + np.arange(len(pairs)) - begins[pairs]
    return numbers, pairs


def ascending(ranges: Ranges) -> Ranges:
    """Return a copy in the order of the offsets."""
    sorted_ranges: Ranges = ranges[np.argsort(ranges[:, FIRST], kind="stable")]
    return sorted_ranges


def look_up(first: Offsets, last: Offsets, offsets: Offsets) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return, for each offset, (the index of the one range that may hold it, whether it does). The ranges ascend and
    are disjoint; if there are none, ``offsets`` must be empty."""
    at = np.maximum(first.searchsorted(offsets, side="right") - 1, 0)
    return at, (first[at] <= offsets) & (offsets <= last[at])


def laid(many: Iterable[Ranges]) -> Ranges:
    """Concatenate the arrays, so that thousands of small ones take one operation."""
    return np.concatenate([_NO_RANGES, *many])


def offsets_in_each(many: Sequence[Ranges]) -> list[int]:
    """Return ``offsets_in`` of each array."""
    together = laid(many)
    so_far = np.concatenate([[0], np.cumsum(together[:, LAST] - together[:, FIRST] + 1)])
    ends = np.cumsum([0, *map(len, many)])
    found: list[int] = np.diff(so_far[ends]).tolist()
    return found


_NO_RANGES: Ranges = np.empty((0, 3), dtype=np.int64)
