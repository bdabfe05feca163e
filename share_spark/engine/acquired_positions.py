"""Delivery counts of many records: one look-up for those of thousands of topic-partitions.

A section is a stretch of offsets of one topic-partition. Sections and the acquired ranges in them are laid end to end,
so that an offset becomes a position, and the positions of all of them ascend:

    sections     orders-0 [10 ........... 19]   orders-1 [5 .... 9]
    positions              0 ............ 9               10 .. 14
    acquired              [10..12]   [17..19]             [5 .. 9]
    positions              0 .. 2     7 .. 9               10 .. 14
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from share_spark.engine.ranges import AcquiredRanges, Offsets, look_up

Sections = npt.NDArray[np.integer]
"""Numbers of sections, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquiredPositions:
    """Acquired ranges by position. ``first``, ``last``, ``shift``: of each section its offsets, and position - offset.
    ``low``, ``high``, ``count``: of each acquired range its first and last position, and its delivery count."""

    first: Offsets
    last: Offsets
    shift: Offsets
    low: Offsets
    high: Offsets
    count: npt.NDArray[np.int32]

    @classmethod
    def of(cls, first: Offsets, last: Offsets, ranges: AcquiredRanges, section: Sections) -> AcquiredPositions:
        """Lay the sections end to end. ``section``: the number of the section of each of ``ranges``. Both are in the
        order of the sections, and the ranges of a section ascend."""
        sizes = last - first + 1
        shift = np.cumsum(sizes) - sizes - first
        low, high, count = ranges.T
        low, high = low + shift[section], high + shift[section]
        return cls(first=first, last=last, shift=shift, low=low, high=high, count=count.astype(np.int32))

    def positions(self, offsets: Offsets, section: Sections) -> Offsets:
        """Return the positions of ``offsets``, each of which is inside the section with this number."""
        found: Offsets = offsets + self.shift[section]
        return found

    def delivery_counts(self, offsets: Offsets, section: Sections) -> npt.NDArray[np.int32]:
        """Return delivery counts; 0 where an offset was not acquired, or is not inside the section with this number."""
        at, is_acquired = look_up(self.low, self.high, self.positions(offsets, section))
        is_acquired &= (self.first[section] <= offsets) & (offsets <= self.last[section])
        return np.where(is_acquired, self.count[at], 0).astype(np.int32)
