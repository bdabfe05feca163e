"""The records that wait for a call, in the order in which their hand-overs came, and which of them make the next one.

The records of a call are in one ledger, as one cell has to name them (``ledger``). So a call is cut at the end of one.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from share_spark.companion.ledger import CallBlock
from share_spark.companion.reading import Handed, OffsetRun, ReadBatch, offset_runs
from share_spark.handlers.handler import Record
from share_spark.model.ids import TopicPartition


class Waiting(NamedTuple):
    """A record that was read and not entered. ``position``: in its batch. ``since``: when it was read, or became
    the first of its key."""

    handed: Handed
    block: CallBlock
    position: int
    record: Record
    since: float

    @property
    def at(self) -> TopicPartition:
        """The topic-partition of the record."""
        return _place_of(self.record.topic, self.record.partition)


@functools.cache
def _place_of(topic: str, partition: int) -> TopicPartition:
    """Return one object for all of its records: a message has it once."""
    return TopicPartition(topic, partition)


class HeldBack(NamedTuple):
    """A record that is given back without a call, as an earlier one of its key is not finished. ``wait_ms``: how long
    that one waits at least; 0 if it is not known."""

    waiting: Waiting
    wait_ms: int


class WaitingRecords:
    """The records that wait. ``most``: of a call; ``linger_s``: how long the first of a call waits for others. The
    methods that are told of answers, and how many messages with answers were ``sent``, are for ``KeyQueues``."""

    def __init__(self) -> None:
        self.most, self.linger_s = 1, 0.0
        self._records: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def first(self) -> Waiting | None:
        """The next one that may be called."""
        return self._records[0] if self._records else None

    def add(self, handed: Handed, block: CallBlock, read: ReadBatch, now: float, sent: int) -> Sequence[HeldBack]:  # noqa: ARG002
        """Add the records of a batch. Return nothing: none is held back."""
        self._records += (Waiting(handed, block, at, record, now) for at, record in enumerate(read.records))
        return ()

    def ended(self, one: Waiting, *, is_finished: bool, delay_ms: int | None) -> None:
        """Do nothing: the end of a call is of no interest for others."""

    def follow(self, sent: int) -> Sequence[HeldBack]:  # noqa: ARG002
        """Return nothing: no record waits for the end of a call."""
        return ()

    def bar(self, sent: int) -> None:
        """Do nothing: no key is held back."""

    def ready_in(self, now: float) -> float:
        """Return the time until the next call may begin, 0 if it may."""
        if self._records[0].handed.message.in_turn:
            return 0.0
        found = sum(1 for _ in self._next())
        is_whole = found == self.most or found < len(self._records)
        return 0.0 if is_whole else max(0.0, self._records[0].since + self.linger_s - now)

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
            found.setdefault((one.handed, one.at), []).append(one.record.offset)
        for (handed, at), offsets in found.items():
            yield handed, offset_runs(at, np.sort(np.array(offsets, np.int64)))

    def drop_forgotten(self) -> None:
        """Take those of hand-overs that were forgotten."""
        self._records = deque(one for one in self._records if not one.handed.is_forgotten)

    def _next(self) -> Iterator[Waiting]:
        """Yield the records of the next call. In turn means alone."""
        first = self._records[0]
        yield first
        if first.handed.message.in_turn:
            return
        for one in itertools.islice(self._records, 1, self.most):
            if one.block.file is not first.block.file or one.handed.message.in_turn:
                return
            yield one
