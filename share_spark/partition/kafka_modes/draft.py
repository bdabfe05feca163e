"""A share-partition while ``kafka_modes.decide`` works on it: the core's draft, and what is remembered beside it.

The functions of the core change this draft as they do theirs; what is remembered follows the runs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from share_spark.model.ids import OffsetRange
from share_spark.partition.draft import Draft
from share_spark.partition.kafka_modes.state import (
    FetchedBatch,
    KafkaPartition,
    active,
    is_split,
    next_fetch_offset,
)
from share_spark.partition.kip import available_holes
from share_spark.partition.runs import Runs, holes, pieces

_first = itemgetter(0)


class KafkaDraft(Draft):
    """The working copy. ``fetched`` and ``read_gap`` have the meaning that they have in ``KafkaPartition``. ``now_ms``:
    delays that end later have not ended."""

    __slots__ = ("fetched", "now_ms", "read_gap")

    def __init__(self, partition: KafkaPartition, now_ms: float = math.inf) -> None:
        super().__init__(partition.state)
        self.now_ms = now_ms
        self.fetched = list(partition.fetched)
        self.read_gap = partition.read_gap

    @property
    def active_read_gap(self) -> OffsetRange | None:
        """The read gap while it counts."""
        return active(self.read_gap, self.end)

    def next_fetch_offset(self) -> int:
        """Return where the log is to be read next (R36)."""
        return next_fetch_offset(self.runs, self.end, self.read_gap, self.now_ms)

    def apply(self, changes: Runs) -> None:
        """Replace the state of the offsets that ``changes`` cover; batches of two states are tracked by offset."""
        super().apply(changes)
        if not changes or not self.fetched:
            return
        touched = [batch for batch in self.fetched if any(pieces(changes, batch.first_offset, batch.last_offset))]
        self.track_by_offset(batch for batch in touched if is_split(self.runs, batch))
        for hole in [hole for run in changes for hole in holes(touched, run.first_offset, run.last_offset)]:
            self.put_fetched(FetchedBatch(*hole, by_offset=True))

    def put_fetched(self, batch: FetchedBatch) -> None:
        """Remember a batch, or that it is tracked by offset from now on."""
        index = bisect_right(self.fetched, batch.first_offset, key=_first)
        if index and self.fetched[index - 1].first_offset == batch.first_offset:
            self.fetched[index - 1] = batch
        else:
            self.fetched.insert(index, batch)

    def track_by_offset(self, batches: Iterable[FetchedBatch]) -> None:
        """Let the offsets of these batches have states of their own; Kafka never joins them again."""
        for batch in batches:
            if self.fetched and not batch.by_offset:
                self.put_fetched(batch._replace(by_offset=True))

    def tracking(self) -> list[FetchedBatch]:
        """Return the fetched batches; the whole window as one batch if none are remembered."""
        if self.fetched or not self.runs:
            return self.fetched
        return [FetchedBatch(self.runs[0].first_offset, self.runs[-1].last_offset, by_offset=True)]

    def advance_start(self) -> None:
        """Move the SPSO up over final records (R15), unless something below it is still Acquired.

        Offsets of the read gap have not been fetched since the load, so they are not finished. Kafka stops at the
        beginning of the fetched batch that reaches into the gap.
        """
        if not self.runs:
            return
        target = self.first_unfinished()
        gap = self.active_read_gap
        if gap is not None:
            reaching = (batch.first_offset for batch in self.fetched if batch.last_offset >= gap.first)
            target = min(target, gap.first, next(reaching, gap.first))
        left_below = self.fetched and self.fetched[0].first_offset < self.start  # by a move of the log start
        if target > self.start and (target != self.runs[0].first_offset or left_below):
            self.drop_below(target)
            self.fetched = [batch for batch in self.fetched if batch.last_offset >= target]

    def close_read_gap(self) -> None:
        """State the holes of the read gap as Available with count 0, which is what they mean (R22). The gap has held
        back the SPSO: final records at the begin of the window are passed now."""
        gap = self.active_read_gap
        self.read_gap = None
        if gap is not None:
            self.apply(available_holes(self.runs, gap.first))
            self.advance_start()

    def truncate(self, end: int) -> None:
        """Forget everything at and above ``end``, whatever its state."""
        gap = self.active_read_gap
        super().truncate(end)
        cut = (batch._replace(last_offset=min(batch.last_offset, end - 1)) for batch in self.fetched)
        self.fetched = [
            batch
            for batch in cut
            if batch.last_offset >= max(batch.first_offset, self.start)
            or any(pieces(self.runs, batch.first_offset, batch.last_offset))
        ]
        # Cut to the window, the gap stays active. One that was not active must not become so because the window is
        # shorter now.
        self.read_gap = OffsetRange(gap.first, self.end - 1) if gap is not None and gap.first < self.end else None
