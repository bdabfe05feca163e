"""The sources of the acquired records of a delivery: files that workers have kept, the topic log as read by the
workers, and the topic log as read by Spark. Each record comes from one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from share_spark.delivery.acquired_records import acquired_records, by_key, task_markers, with_earlier
from share_spark.delivery.kept_rows import KeptRows
from share_spark.delivery.keyed_input import TaskInputs, keyed_input
from share_spark.delivery.reader_input import ReaderInput
from share_spark.delivery.task_inputs import TaskInput
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import TopicLog
from share_spark.engine.record_reader import RecordReader, never_stops
from share_spark.model.ids import TopicPartition
from share_spark.spark.schemas import ARROW_ROWS


@dataclass(slots=True, kw_only=True)
class RecordSources:
    """The sources of one engine. If ``kept`` is ``ordered``, all records of a key come to one task, in the order of
    their offsets. ``is_stopping``: tells workers, where it is sent, whether to wait for nothing more."""

    spark: SparkSession
    log: TopicLog
    kept: KeptRows
    is_stopping: Callable[[], bool] = never_stops
    _markers: dict[int, DataFrame] = field(default_factory=dict)

    def by_spark(self, acquired: Sequence[AcquiredSpan], tasks: int) -> DataFrame:
        """Return all acquired records (RECORD_COLUMNS, and delivery_count int), read by Spark. Raises TopicError."""
        found = acquired_records(self.spark, self.log, acquired, tasks=tasks, third="delivery_count")
        return by_key(found, tasks) if self.kept.ordered else found

    def parted(self, acquired: Sequence[AcquiredSpan], tasks: int, *, is_bounded: bool) -> tuple[DataFrame, TaskInputs]:
        """Return the records that Spark reads, and the inputs of the first tasks without Spark; for each of these tasks
        the frame has a marker. ``is_bounded``: no more than ``tasks`` may run. Raises TopicError."""
        if self.kept.ordered:
            rest, inputs = self._in_order(acquired, tasks)
        else:
            rest, inputs = self._in_any_order(acquired, tasks, is_bounded)
        if not inputs:
            return self.by_spark(rest, tasks), ()
        markers = self._markers.get(tasks)
        if markers is None:
            markers = self._markers[tasks] = task_markers(self.spark, tasks)
        frame = markers.unionAll(self.by_spark(rest, tasks).select(*markers.columns)) if rest else markers
        return frame, inputs

    def _in_any_order(
        self, acquired: Sequence[AcquiredSpan], tasks: int, is_bounded: bool
    ) -> tuple[Sequence[AcquiredSpan], TaskInputs]:
        """Return (spans for Spark, inputs without Spark). The tasks with kept records are in addition to Spark's."""
        rest, kept = (acquired, None) if is_bounded else self.kept.take(acquired, tasks, self._most_rows)
        reader = self._reader(rest)
        read = self._read(reader, rest, tasks) if reader is not None else None
        return rest if read is None else (), tuple(one for one in (kept, read) if one is not None)

    def _in_order(self, acquired: Sequence[AcquiredSpan], tasks: int) -> tuple[Sequence[AcquiredSpan], TaskInputs]:
        """Let either Spark or the workers read all records, as the two distribute keys in different ways."""
        everything = with_earlier(acquired)
        rest, kept = self.kept.take(everything, 1, self._most_rows)
        reader = self._reader(rest)
        if rest and reader is None:
            return everything, ()

        def inputs_of(places: Collection[TopicPartition]) -> TaskInputs:
            some = [one for one in rest if one.partition in places]
            read = self._read(reader, some, 1) if some and reader is not None else None
            return tuple(one for one in (kept and kept.of(places), read) if one is not None)

        keyed = keyed_input(everything, tasks, inputs_of)
        return (everything, ()) if keyed is None else ((), (keyed,))

    def _reader(self, spans: Sequence[AcquiredSpan]) -> RecordReader | None:
        """Return the reader of workers for ``spans``; None where Spark has to read, or there are none."""
        return self.log.for_workers(self.spark, spans, ordered=self.kept.ordered) if spans else None

    def _read(self, reader: RecordReader, spans: Sequence[AcquiredSpan], tasks: int) -> TaskInput:
        return ReaderInput.of(reader, spans, tasks=tasks, most_rows=self._most_rows, is_stopping=self.is_stopping)

    @property
    def _most_rows(self) -> int:
        return most_rows(self.spark)


def most_rows(spark: SparkSession) -> int:
    """Return the most rows of a batch that Python gets."""
    rows = int(spark.conf.get(ARROW_ROWS, "10000") or 0)
    return rows if rows > 0 else sys.maxsize
