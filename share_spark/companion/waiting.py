"""The records that wait for a call, in the order in which their hand-overs came, and which of them make the next one.

The records of a call follow one another in one ledger, so that two numbers name them all (``ledger``). So a call is cut
where that is not so: at the end of a ledger, and behind a hand-over that was forgotten.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from share_spark.companion.ledger import CallBlock
from share_spark.companion.reading import Handed, OffsetRun, offset_runs
from share_spark.handlers.handler import Record
from share_spark.model.ids import TopicPartition


class Waiting(NamedTuple):
    """A record that was read and not entered. ``position``: in its batch. ``since``: when it was read."""

    handed: Handed
    block: CallBlock
    position: int
    record: Record
    since: float


class WaitingRecords:
    """The records that wait. ``most``: of a call; ``linger_s``: how long the first of a call waits for others."""

    def __init__(self) -> None:
        self.most, self.linger_s = 1, 0.0
        self._records: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def first(self) -> Waiting:
        """The next one."""
        return self._records[0]

    def add(self, handed: Handed, block: CallBlock, records: Sequence[Record], now: float) -> None:
        """Add the records of a batch."""
        self._records += (Waiting(handed, block, at, record, now) for at, record in enumerate(records))

    def ready_in(self, now: float) -> float:
        """Return the time until the next call may begin, 0 if it may."""
        if self.first.handed.message.in_turn:
            return 0.0
        found = sum(1 for _ in self._next())
        is_whole = found == self.most or found < len(self._records)
        return 0.0 if is_whole else max(0.0, self.first.since + self.linger_s - now)

    def take(self) -> tuple[Waiting, ...]:
        """Take the records of the next call."""
        if self.most == 1:
            return (self._records.popleft(),)
        found = tuple(self._next())
        for _ in found:
            self._records.popleft()
        return found

    def clear(self) -> Iterator[tuple[Handed, Iterator[OffsetRun]]]:
        """Take all; yield their offsets by hand-over and topic-partition."""
        waiting, self._records = self._records, deque()
        found: dict[tuple[Handed, TopicPartition], list[int]] = {}
        for one in waiting:
            at = TopicPartition(one.record.topic, one.record.partition)
            found.setdefault((one.handed, at), []).append(one.record.offset)
        for (handed, at), offsets in found.items():
            yield handed, offset_runs(at, np.sort(np.array(offsets, np.int64)))

    def drop_forgotten(self) -> None:
        """Take those of hand-overs that were forgotten."""
        self._records = deque(one for one in self._records if not one.handed.is_forgotten)

    def _next(self) -> Iterator[Waiting]:
        """Yield the records of the next call. In turn means alone."""
        first = self.first
        yield first
        if first.handed.message.in_turn:
            return
        place = first.block.place(first.position)
        for at, one in enumerate(itertools.islice(self._records, 1, self.most), place + 1):
            is_next = one.block.file is first.block.file and one.block.place(one.position) == at
            if not is_next or one.handed.message.in_turn:
                return
            yield one
