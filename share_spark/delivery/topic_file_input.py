"""Acquired records that workers take from the Parquet files of a topic log themselves.

Spark would plan a scan, shuffle the records over the tasks, sort them and send them to Python: for a micro-batch of
some ten thousand records that takes several times as long as to decode them. Here the acquired ranges are laid end to
end and cut into one equal piece for each task, and a task opens the files that have records of its piece:

    acquired    orders-0 [0 ............ 9]   orders-1 [4] [7 ... 9]      14 offsets, 2 tasks
    task 0               [0 ...... 6]
    task 1                          [7 . 9]            [4] [7 ... 9]
    files       orders-0 |0 .. 4|5 ... 11|    orders-1 |0 ....... 20|

Offsets without a record are missing in the files, and so in what a task gets.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from share_spark.delivery.equal_parts import in_equal_parts
from share_spark.delivery.topic_file_rows import Piece, Pieces, acquired_in_files
from share_spark.engine.ports import AcquiredSpan, TopicLog
from share_spark.engine.record_files import RecordFile, TopicLogInFiles, that_hold
from share_spark.model.ids import TopicPartition

FilesByPartition = Mapping[TopicPartition, Sequence[RecordFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFileInput:
    """``pieces``: the Pieces of each task, pickled: a task opens its own only. ``most_rows``: of a batch."""

    pieces: tuple[bytes, ...]
    most_rows: int

    @classmethod
    def of(cls, files: FilesByPartition, acquired: Sequence[AcquiredSpan], *, tasks: int, most_rows: int) -> Self:
        """In equal parts. ``files``: all that hold these records."""
        pieces = (Pieces.of(list(_pieces(some, files))) for some in in_equal_parts(acquired, tasks))
        return cls(pieces=tuple(pickle.dumps(one, protocol=5) for one in pieces), most_rows=most_rows)

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises OSError, pa.ArrowException."""
        if task < len(self.pieces):
            yield from acquired_in_files(pickle.loads(self.pieces[task]), schema, self.most_rows)


def files_of(log: TopicLog, acquired: Sequence[AcquiredSpan]) -> FilesByPartition | None:
    """Those that hold these records; None where Spark has to read them. Raises TopicError."""
    return log.files(acquired) if isinstance(log, TopicLogInFiles) else None


def _pieces(some: Iterable[AcquiredSpan], files: FilesByPartition) -> Iterator[Piece]:
    for one in some:
        if inside := that_hold(files.get(one.partition, ()), one.ranges):
            yield Piece(one.ranges, inside)
