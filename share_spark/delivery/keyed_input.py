"""Acquired records in order of their keys, read by the workers themselves: all records of a key come to one task.

The key of a record is not known before it is read. So the topic-partitions are laid end to end, each as long as it has
offsets to read, and cut into one equal piece for each task. In that line, the place of a record is not that of its
offset, but that of the hash of its key, between the ends of its topic-partition:

    read      |------- orders-0 -------|--- orders-1 ---|
    hashes    0                      1 | 0            1 |
    task      |    task 0    |    task 1    |   task 2  |

A task reads all records of the topic-partitions in its piece. Of those that are cut it leaves the records outside of
its piece to other tasks, so these are read more than once. Spark's shuffle moves each record once, but its job takes
longer to plan than it takes to read some ten thousand records.
"""

from __future__ import annotations

import itertools
import pickle
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.task_inputs import TaskInput
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import offsets_in
from share_spark.model.ids import TopicPartition

TaskInputs = tuple[TaskInput, ...]

HASHES = 1 << 32
"""The exclusive limit of hashes of keys."""

_LITTLE = 100_000
"""The number of offsets that may always be read more than once."""


class KeyShare(NamedTuple):
    """The share of one task in the topic-partition with this number: hashes from ``low`` to before ``high``."""

    number: int
    low: int
    high: int

    @property
    def is_whole(self) -> bool:
        """Whether no other task takes any of it."""
        return self.high - self.low == HASHES


class _Piece(NamedTuple):
    """``inputs``: all records of the topic-partitions that one task reads, as of task 0. ``cut``: its shares of those
    that others read as well, at most two."""

    inputs: TaskInputs
    cut: Mapping[TopicPartition, KeyShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedInput:
    """A TaskInput. ``pieces``: of each task, pickled: a task opens its own only."""

    pieces: tuple[bytes, ...]

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises the errors of reading the records."""
        if task < len(self.pieces):
            piece: _Piece = pickle.loads(self.pieces[task])
            for one in piece.inputs:
                yield from (_own(batch, piece.cut) for batch in one.batches(0, schema))


def keyed_input(
    acquired: Sequence[AcquiredSpan], tasks: int, inputs_of: Callable[[Collection[TopicPartition]], TaskInputs]
) -> KeyedInput | None:
    """Return the input; None if too much would be read more than once. ``acquired``: with what is not finished before
    it. ``inputs_of``: returns all records of some topic-partitions for one task, task 0, each in the order of their
    offsets."""
    sizes = [offsets_in(one.ranges) for one in acquired]
    shares = key_shares(sizes, tasks)
    if sum(sizes[share.number] for some in shares for share in some) > 4 * sum(sizes) + _LITTLE:
        return None
    pieces = []
    for some in shares:
        inputs = inputs_of({acquired[share.number].partition for share in some})
        cut = {acquired[share.number].partition: share for share in some if not share.is_whole}
        pieces.append(pickle.dumps(_Piece(inputs, cut), protocol=5))
    return KeyedInput(pieces=tuple(pieces))


def key_shares(sizes: Sequence[int], tasks: int) -> list[list[KeyShare]]:
    """Return the shares of each task that gets any. ``sizes``: of the topic-partitions; none is 0.

    >>> [[tuple(share) for share in some] for some in key_shares([6, 3], 3)]
    [[(0, 0, 2147483648)], [(0, 2147483648, 4294967296)], [(1, 0, 4294967296)]]
    """
    ends = list(itertools.accumulate(sizes))
    bounds = [ends[-1] * task // tasks for task in range(tasks + 1)]
    found = [list(_between(sizes, ends, low, high)) for low, high in itertools.pairwise(bounds)]
    return [some for some in found if some]


def _between(sizes: Sequence[int], ends: Sequence[int], low: int, high: int) -> Iterator[KeyShare]:
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        begin = end - size
        first, last = max(low - begin, 0), min(high - begin, size)
        if first < last:
            yield KeyShare(number, first * HASHES // size, last * HASHES // size)


def _own(batch: pa.RecordBatch, cut: Mapping[TopicPartition, KeyShare]) -> pa.RecordBatch:
    """Return the batch without the records that other tasks take."""
    for at, share in cut.items():
        rows = _rows_of(batch, at)
        if len(rows):
            hashes = key_hashes(batch.take(rows))
            is_own = np.ones(batch.num_rows, np.bool_)
            is_own[rows] = (share.low <= hashes) & (hashes < share.high)
            batch = batch.filter(pa.array(is_own))
    return batch


def _rows_of(batch: pa.RecordBatch, at: TopicPartition) -> npt.NDArray[np.intp]:
    """Return the rows of one topic-partition. ``batch`` has no topics if all its records are of one."""
    is_there = batch.column("partition").to_numpy() == at.partition
    if "topic" in batch.schema.names:
        is_there &= np.array(batch.column("topic").to_pylist()) == at.topic
    return np.flatnonzero(is_there)


def key_hashes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the hashes of the keys; of the offset where there is no key, as such a record has no order."""
    keys, offsets = batch.column("key").to_pylist(), batch.column("offset").to_pylist()
    texts = (key if key is not None else str(offset).encode() for key, offset in zip(keys, offsets, strict=True))
    return np.fromiter(map(zlib.crc32, texts), np.int64, batch.num_rows)
