"""Acquired records that workers read from the topic log themselves, each worker its share of the offsets.

A task reads covering spans of what it is to take (``engine.spans``). Spans and acquired ranges are laid end to end, so
that one look-up of a record's position finds the range it is in:

    spans        orders-0 [10 ........... 19]   orders-1 [5 .... 9]
    positions              0 ............ 9               10 .. 14
    acquired              [10..12]   [17..19]             [5 .. 9]
    positions              0 .. 2     7 .. 9               10 .. 14
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.task_inputs import in_schema
from share_spark.delivery.topic_file_input import in_equal_parts
from share_spark.engine.ports import AcquiredSpan, OffsetSpan
from share_spark.engine.ranges import FIRST, look_up
from share_spark.engine.record_readers import ReadRecords, RecordReader
from share_spark.engine.spans import covering_spans

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderInput:
    """``pieces``: the AcquiredSpans of each task, ascending, pickled: a task opens its own only. ``most_rows``: of a
    batch."""

    reader: RecordReader
    pieces: tuple[bytes, ...]
    most_rows: int

    @classmethod
    def of(cls, reader: RecordReader, acquired: Sequence[AcquiredSpan], *, tasks: int, most_rows: int) -> ReaderInput:
        """In equal parts."""
        pieces = tuple(pickle.dumps(piece, protocol=5) for piece in in_equal_parts(acquired, tasks))
        return cls(reader=reader, pieces=pieces, most_rows=most_rows)

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises TopicError."""
        piece: list[AcquiredSpan] = pickle.loads(self.pieces[task]) if task < len(self.pieces) else []
        for batch in _records(self.reader, piece, schema) if piece else ():
            for begin in range(0, batch.num_rows, self.most_rows):
                yield batch.slice(begin, self.most_rows)


def _records(reader: RecordReader, piece: Sequence[AcquiredSpan], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    spans_of = [covering_spans([one]) for one in piece]
    spans = [span for some in spans_of for span in some]
    ranges = _Positions.of(spans_of, piece)
    topics = pa.array([span.topic for span in spans], pa.string())
    partitions = pa.array([span.partition for span in spans], pa.int32())
    for read in reader.read(spans, schema.names):
        counts = ranges.delivery_counts(read)
        is_acquired = pa.array(counts > 0)
        columns = {
            **dict(zip(read.records.schema.names, read.records.columns, strict=True)),
            "topic": topics.take(read.span),
            "partition": partitions.take(read.span),
            "delivery_count": pa.array(counts),
        }
        found = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns]).filter(is_acquired)
        yield in_schema(found, None, schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Positions:
    """``begin`` and ``first``: position and offset at which each span begins. ``low``, ``high``, ``count``: of each
    acquired range its first and last position, and its delivery count."""

    begin: Offsets
    first: Offsets
    low: Offsets
    high: Offsets
    count: npt.NDArray[np.int32]

    @classmethod
    def of(cls, spans_of: Sequence[Sequence[OffsetSpan]], piece: Sequence[AcquiredSpan]) -> _Positions:
        """Of the spans that cover each of ``piece``, ascending."""
        first = np.array([span.first_offset for spans in spans_of for span in spans], np.int64)
        last = np.array([span.last_offset for spans in spans_of for span in spans], np.int64)
        begin = np.cumsum(last - first + 1) - (last - first + 1)
        ends = np.cumsum([len(spans) for spans in spans_of]).tolist()
        at = [
            np.searchsorted(first[end - len(spans) : end], one.ranges[:, FIRST], side="right") + (end - len(spans) - 1)
            for one, spans, end in zip(piece, spans_of, ends, strict=True)
        ]
        shift = (begin - first)[np.concatenate(at)]
        low, high, counts = np.concatenate([one.ranges for one in piece]).T
        return cls(begin=begin, first=first, low=low + shift, high=high + shift, count=counts.astype(np.int32))

    def delivery_counts(self, read: ReadRecords) -> npt.NDArray[np.int32]:
        """Of each record, 0 if it was not acquired."""
        positions = read.records.column("offset").to_numpy() + (self.begin - self.first)[read.span]
        at, is_acquired = look_up(self.low, self.high, positions)
        return np.where(is_acquired, self.count[at], 0).astype(np.int32)
