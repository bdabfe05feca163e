"""Offset ranges. Inclusive on both ends everywhere (R165); an end offset on its own is exclusive, and documented so."""

from __future__ import annotations

from typing import NamedTuple


class OffsetRange(NamedTuple):
    """Offsets ``first`` to ``last``, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of offsets. Not ``len``: that counts the fields of a tuple, and ``_replace`` depends on it."""
        return self.last - self.first + 1

    def __bool__(self) -> bool:
        return self.last >= self.first


class LogEnds(NamedTuple):
    """Where the log of a topic-partition begins and ends, read once per micro-batch.

    ``end_offset`` is exclusive: the high watermark, or the last stable offset for ``read_committed`` (R23, R45).
    ``high_watermark``: given where it can differ from that.
    """

    log_start_offset: int
    end_offset: int
    high_watermark: int | None = None

    @property
    def log_end(self) -> int:
        """Where the log itself ends, exclusive, however much of it may be read yet. Never below its start: the three
        are not read in one instant."""
        return max(self.log_start_offset, self.end_offset, self.high_watermark or 0)
