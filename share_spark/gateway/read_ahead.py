"""Reads of the log that are made ahead of the clients: the micro-batch decides which of them a client gets.

A read is a stretch of the log without holes: from the offset where it began to the last batch that it has. For each
topic-partition some are kept, ascending. What is behind all fetches is dropped, and so is the oldest read where a
redelivery has made another one:

    reads           [  700 ... 899  ]                  [ 5000 ... 5399 ][ 5400 ... 5799 ]
    fetch offset         ^ 720, redelivered                                  next read at ^ 5800
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from share_spark.engine.batch_reader import BATCH_RECORDS, BatchReader, RecordBatch
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcquiredRange
from share_spark.partition.kafka_modes import LogBatch, ReadAhead

MOST_READS = 4
"""The most stretches of one topic-partition that are kept."""

READ_BYTES = 1 << 20
"""The size of a read: one answer to a client has some hundred kilobytes."""

_base_offset, _last_offset = attrgetter("base_offset"), attrgetter("last_offset")


class Read(NamedTuple):
    """A read of the log: its ``header``, by which a micro-batch decides, and the batches. ``offsets_before``: how many
    offsets the batches before each have; at the end, how many all have."""

    header: ReadAhead
    batches: Sequence[RecordBatch]
    offsets_before: Sequence[int]

    @property
    def end_offset(self) -> int:
        """The end, exclusive."""
        return self.batches[-1].last_offset + 1

    def stretches(self, acquired: Sequence[AcquiredRange]) -> Iterator[tuple[int, int]]:
        """Yield (number of the first batch, number behind the last) of those that hold each range."""
        for one in acquired:
            first = bisect_left(self.batches, one.first_offset, key=_last_offset)
            yield first, bisect_right(self.batches, one.last_offset, key=_base_offset)

    def offsets_from(self, offset: int) -> int:
        """Return the number of offsets that its batches have, from this one on."""
        first = bisect_left(self.batches, offset, key=_last_offset)
        if first == len(self.batches):
            return 0
        passed = max(0, offset - self.batches[first].base_offset)
        return self.offsets_before[-1] - self.offsets_before[first] - passed

    @classmethod
    def at(cls, offset: int, batches: Sequence[RecordBatch]) -> Read:
        """Return the read that began at ``offset``."""
        logged = tuple(LogBatch(one.base_offset, one.last_offset, one.is_aborted, len(one.content)) for one in batches)
        sizes = (one.last_offset - one.base_offset + 1 for one in batches)
        header = ReadAhead(min(offset, batches[0].base_offset), logged)
        return cls(header, batches, tuple(itertools.accumulate(sizes, initial=0)))


def content_of(reads: Sequence[Read], acquired: Sequence[AcquiredRange]) -> list[bytes]:
    """Return the batches, each once, that hold these ranges."""
    found, last = list[bytes](), -1
    for read in reads:
        for first, until in read.stretches(acquired):
            for batch in read.batches[first:until]:
                if batch.base_offset > last:
                    found.append(batch.content)
                    last = batch.last_offset
    return found


@dataclass(slots=True)
class PartitionReads:
    """The reads of one topic-partition, for the thread of the event loop. ``reads``: ascending; a new tuple for each
    change, so that what was asked with some can be answered with the same. ``next_fetch_offset``: as the last answer of
    a micro-batch has said. ``batch_records``: what a client wants at most; as it gets whole batches, it would get more
    by larger ones."""

    reader: BatchReader
    partition: TopicPartition
    next_fetch_offset: int = 0
    batch_records: int = BATCH_RECORDS
    reads: tuple[Read, ...] = ()
    _running: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def holds(self, offset: int) -> bool:
        """Return whether a client could be given what is at this offset."""
        return any(read.header.holds(offset) for read in self.reads)

    @property
    def records_ahead(self) -> int:
        """The number of offsets that were read, from the fetch offset on: what a client could be given at once."""
        return sum(read.offsets_from(self.next_fetch_offset) for read in self.reads)

    def begin(self) -> None:
        """Begin to read at the fetch offset, beside all else."""
        self._begin(self.next_fetch_offset)

    async def fill(self) -> None:
        """Read at the fetch offset unless that was read; wait for it. Raises as ``BatchReader.read``."""
        if not self.holds(self.next_fetch_offset):
            await asyncio.shield(self._begin(self.next_fetch_offset))

    def read_on(self) -> None:
        """Begin to read, beside all else, what follows the read that is used now."""
        used = next((read for read in self.reads if read.header.holds(self.next_fetch_offset)), None)
        if used is not None and not self.holds(used.end_offset):
            self._begin(used.end_offset)

    def _begin(self, offset: int) -> asyncio.Task[None]:
        """Begin a read; one at a time begins at an offset, for all who wait for it."""

        def ended(task: asyncio.Task[None]) -> None:
            self._running.pop(offset, None)
            if not task.cancelled():
                task.exception()  # who waits for it has it; nobody may

        if offset not in self._running:
            task = self._running[offset] = asyncio.create_task(self._read(offset))
            task.add_done_callback(ended)
        return self._running[offset]

    async def _read(self, offset: int) -> None:
        batches = await asyncio.to_thread(self.reader.read, self.partition, offset, READ_BYTES, self.batch_records)
        if batches and not self.holds(offset):
            self.reads = self._kept(Read.at(offset, batches))

    def _kept(self, new: Read) -> tuple[Read, ...]:
        """Return the reads that are kept beside a new one: those that a fetch may still use, the last ones of them."""
        lowest = min(self.next_fetch_offset, new.header.first_offset)
        used = [read for read in self.reads if read.end_offset > lowest][-(MOST_READS - 1) :]
        return tuple(sorted([*used, new], key=lambda read: read.header.first_offset))
