"""Acquired records that workers read from the topic log themselves, each task its share of the offsets.

Spark would plan a scan, shuffle the records over the tasks, sort them and send them to Python: for a micro-batch of
some ten thousand records that takes several times as long as to read them. Here the acquired ranges are laid end to
end and cut into one equal piece for each task:

    acquired    orders-0 [0 ............ 9]   orders-1 [4] [7 ... 9]      14 offsets, 2 tasks
    task 0               [0 ...... 6]
    task 1                          [7 . 9]            [4] [7 ... 9]
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from share_spark.delivery.equal_parts import in_equal_parts
from share_spark.engine.ports import AcquiredSpan
from share_spark.engine.record_reader import RecordPart, RecordReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderInput:
    """A TaskInput. ``parts``: the RecordPart of each task, pickled, as a task opens its own only; they may hold
    secrets. ``most_rows``: of a batch. ``stop_sign``: a file that is there once nothing is to be waited for."""

    parts: tuple[bytes, ...] = field(repr=False)
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
        """Give each task an equal part."""
        parts = (reader.part(some) for some in in_equal_parts(acquired, tasks))
        pickled = tuple(pickle.dumps(part, protocol=5) for part in parts)
        return cls(parts=pickled, most_rows=most_rows, stop_sign=stop_sign)

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises as ``RecordPart.batches``."""
        if task < len(self.parts):
            part: RecordPart = pickle.loads(self.parts[task])
            yield from part.batches(schema, self.most_rows, self._is_stopping)

    def _is_stopping(self) -> bool:
        return self.stop_sign is not None and Path(self.stop_sign).exists()
