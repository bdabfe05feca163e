"""How full the segment is that an engine writes, and when the next one begins."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEAST_RANGES = 1_000_000
"""Ranges of updates that a segment may hold whatever the size of its snapshot: a restart reads them in seconds."""

_GROWTH = 4
"""Beyond that, ranges of updates per range of the snapshot: snapshots are then at most a fifth of what is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSegment:
    """The segment that is being written. ``updates``: its commits, None before the first, which holds its snapshots.

    ``snapshot_ranges`` were written by that one, ``ranges`` by all later ones. A segment that ended by the number of
    its commits alone would grow with the size of each, and a restart with it.
    """

    number: int = 0
    updates: int | None = None
    snapshot_ranges: int = 0
    ranges: int = 0

    @property
    def begins(self) -> bool:
        """Is the next commit the first one of this segment?"""
        return self.updates is None

    def is_full(self, updates_per_snapshot: int, least_ranges: int = LEAST_RANGES) -> bool:
        """Does the next commit begin another segment?"""
        if self.updates is None:
            return False
        return self.updates >= updates_per_snapshot or self.ranges > max(least_ranges, _GROWTH * self.snapshot_ranges)

    def after(self, number: int, ranges: int) -> OpenSegment:
        """With a commit of ``ranges`` ranges to segment ``number``."""
        if self.updates is None or number != self.number:
            return OpenSegment(number=number, updates=1, snapshot_ranges=ranges)
        return replace(self, updates=self.updates + 1, ranges=self.ranges + ranges)
