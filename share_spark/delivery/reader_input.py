"""Acquired records that workers read from the topic log themselves, each worker its share of the offsets."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from share_spark.delivery.acquired_positions import AcquiredPositions
from share_spark.delivery.equal_parts import in_equal_parts
from share_spark.delivery.task_inputs import in_schema
from share_spark.engine.ports import AcquiredSpan, OffsetSpan
from share_spark.engine.ranges import FIRST, AcquiredRanges, laid
from share_spark.engine.record_readers import RecordReader
from share_spark.engine.spans import covering_spans


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderInput:
    """``pieces``: the AcquiredSpans of each task, ascending, pickled: a task opens its own only. ``most_rows``: of a
    batch. ``stop_sign``: a file that is there once nothing is to be waited for any more."""

    reader: RecordReader
    pieces: tuple[bytes, ...]
    most_rows: int
    stop_sign: str | None = None

    @classmethod
    def of(
        cls,
        reader: RecordReader,
        acquired: Sequence[AcquiredSpan],
        *,
        tasks: int,
        most_rows: int,
        stop_sign: str | None = None,
    ) -> ReaderInput:
        """In equal parts."""
        pieces = tuple(pickle.dumps(piece, protocol=5) for piece in in_equal_parts(acquired, tasks))
        return cls(reader=reader, pieces=pieces, most_rows=most_rows, stop_sign=stop_sign)

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises TopicError."""
        piece: list[AcquiredSpan] = pickle.loads(self.pieces[task]) if task < len(self.pieces) else []
        for batch in _records(self.reader, piece, schema, self._is_stopping) if piece else ():
            for begin in range(0, batch.num_rows, self.most_rows):
                yield batch.slice(begin, self.most_rows)

    def _is_stopping(self) -> bool:
        return self.stop_sign is not None and Path(self.stop_sign).exists()


def _records(
    reader: RecordReader, piece: Sequence[AcquiredSpan], schema: pa.Schema, is_stopping: Callable[[], bool]
) -> Iterator[pa.RecordBatch]:
    spans_of = [covering_spans([one]) for one in piece]
    spans = [span for some in spans_of for span in some]
    positions = _positions(spans_of, piece)
    topics = pa.array([span.topic for span in spans], pa.string())
    partitions = pa.array([span.partition for span in spans], pa.int32())
    for read in reader.read(spans, schema.names, is_stopping):
        counts = positions.delivery_counts(read.records.column("offset").to_numpy(), read.span)
        is_acquired = pa.array(counts != 0)
        columns = {
            **dict(zip(read.records.schema.names, read.records.columns, strict=True)),
            "topic": topics.take(read.span),
            "partition": partitions.take(read.span),
            "delivery_count": pa.array(counts),
        }
        found = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns]).filter(is_acquired)
        yield in_schema(found, None, schema)


def _positions(spans_of: Sequence[Sequence[OffsetSpan]], piece: Sequence[AcquiredSpan]) -> AcquiredPositions:
    """A section is one of the spans, which cover each of ``piece`` and ascend."""
    first = np.array([span.first_offset for spans in spans_of for span in spans], np.int64)
    last = np.array([span.last_offset for spans in spans_of for span in spans], np.int64)
    ends = np.cumsum([len(spans) for spans in spans_of]).tolist()
    section = [
        np.searchsorted(first[end - len(spans) : end], one.ranges[:, FIRST], side="right") + (end - len(spans) - 1)
        for one, spans, end in zip(piece, spans_of, ends, strict=True)
    ]
    ranges = AcquiredRanges(laid(one.ranges for one in piece))
    return AcquiredPositions.of(first, last, ranges, np.concatenate(section))
