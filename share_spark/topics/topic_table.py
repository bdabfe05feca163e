"""The topic log without a broker: a Delta table in Kafka's shape, one row per record.

Partitioned by topic and partition, so that a read of some offsets opens only files that can hold them. For demos,
notebooks, tests, and for records that are in the lakehouse already. It has no transactions (every read is of committed
rows), no compaction, and no retention by time.

The records of a read are spread evenly over tasks (``spread``), each task with a contiguous stretch of offsets. A few
hundred records are in one small file, and Spark would give them to one task, even for a slow handler. Spread by a hash,
tasks would be uneven and have single offsets, so that a task that is lost would affect every second record. Here the
spans are laid end to end and cut into stretches of equal length, one for each task. 3 spans with 12 offsets for 4
tasks:

    span        |------ orders-0 ------|- orders-1 --|--- orders-2 ----|
    offset        10  11  12   13  14     70    71  72     5    6   7   8
    position       0   1   2    3   4      5     6   7     8    9  10  11
    task           0   0   0 |  1   1      1  |  2   2     2 |  3   3   3
    cuts                       orders-0@13   orders-1@71   orders-2@6

The task of a record is that of the last cut at or before it. Spark chooses the task of a shuffle key (hash(key) modulo
tasks), so for each task a key is searched that Spark's hash sends there (``keys_of_tasks``), and the records of the
task get that key.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from share_spark.delta.location import Location
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import RECORD_COLUMNS, OffsetSpan, TopicDescription
from share_spark.engine.spans import merged, records_in
from share_spark.model.ids import LogEnds
from share_spark.spark import functions as F
from share_spark.spark.frames import keys_of_tasks
from share_spark.spark.on_demand import AnySpark, session_of
from share_spark.topics.topic_file_rows import TopicFileReader
from share_spark.topics.topic_producer import ROWS_PER_FILE, Message, TopicProducer
from share_spark.topics.topic_view import TopicTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class EmbeddedTopicLog:
    """TopicLog on a Delta table, with what a producer and an administrator need.

    Nothing is opened before the first call; ``create_topic`` creates the table if the location is free. ``spark`` may
    be None where files suffice: for a table on a file system, and messages that are appended one by one.
    """

    def __init__(self, spark: AnySpark, location: Location | str) -> None:
        place = Location.parse(location) if isinstance(location, str) else location
        self._table = TopicTable(spark, place)
        self._producer = TopicProducer(self._table)

    def __repr__(self) -> str:
        return f"EmbeddedTopicLog({self._table.location})"

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic. Raises TopicError: exists already, a bad name, something else is in this place."""
        self._producer.create_topic(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Grow to ``partitions``. Raises TopicError: no such topic, or not more than it has."""
        self._producer.add_partitions(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic with its records. Raises TopicError: no such topic."""
        self._producer.delete_topic(topic)

    def append(self, topic: str, records: DataFrame | Iterable[Message]) -> dict[int, int]:
        """Append and return the new end offsets of the partitions that got records.

        A DataFrame has ``value`` and may have ``key``, ``partition``, ``timestamp``, ``headers``; a row without
        partition gets one by its key's hash, without key in turn. One commit: all or nothing. Raises TopicError (no
        such topic or partition, columns), TopicUnreachableError.
        """
        return self._producer.append(topic, records)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move log starts up to these offsets (-1: the log end) and delete the records below."""
        self._producer.delete_records(topic, before)

    def remove_offsets(self, topic: str, offsets: Mapping[int, Iterable[int]]) -> None:
        """Remove single records, as compaction does: gaps remain, the log ends do not move."""
        self._producer.remove_offsets(topic, offsets)

    def topic_names(self) -> tuple[str, ...]:
        """Return the names of all topics. Raises TopicError (no topic table), TopicUnreachableError."""
        return self._table.names()

    def describe_all(self) -> list[TopicDescription]:
        """Return all topics. Raises TopicError (no topic table), TopicUnreachableError."""
        return [self.describe(topic) for topic in self.topic_names()]

    def describe(self, topic: str) -> TopicDescription:
        """Return the topic; its id is made when it is created."""
        entry = self._table.topic(topic).entry
        partitions = tuple(range(entry.partitions))
        return TopicDescription(topic=topic, topic_id=entry.topic_id, partitions=partitions)

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """Return log start and end per partition; after the first call reads commits, not data."""
        return self._table.topic(topic).ends

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """Return the first offset with a timestamp at or after ``timestamp_ms``, else the end offset."""
        ends = self._table.topic(topic).ends
        found = self._table.offsets_since(topic, timestamp_ms, ends)
        return found if found is not None else self._offsets_by_spark(topic, timestamp_ms, ends)

    def _offsets_by_spark(self, topic: str, timestamp_ms: int, ends: Mapping[int, LogEnds]) -> dict[int, int]:
        since = F.timestamp_millis(F.lit(timestamp_ms))
        rows = self._rows().where((F.col("topic") == topic) & (F.col("timestamp") >= since))
        found: dict[int, int] = dict(rows.groupBy("partition").agg(F.min("offset")).collect())
        return {
            partition: max(found.get(partition, end.end_offset), end.log_start_offset)
            for partition, end in ends.items()
        }

    def read(self, spark: SparkSession, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
        """Return the records inside ``spans``; see TopicLog. Raises TopicError (no such topic)."""
        wanted = merged(self._above_log_start(spans))
        if not wanted:
            return spark.createDataFrame([], RECORD_COLUMNS)
        rows = self._table.location.load(spark).where(_inside(wanted)).select(*_COLUMNS)
        # Many records are in many files, which Spark spreads over tasks without a shuffle.
        if records_in(wanted) < tasks * ROWS_PER_FILE:
            placed = spread(rows, wanted, tasks)
        else:
            placed = rows.coalesce(tasks)
        return placed.sortWithinPartitions("topic", "partition", "offset")

    def stop_waiting(self) -> None:
        """Do nothing: there is no waiting for storage."""

    def for_workers(
        self,
        spark: SparkSession | None,  # noqa: ARG002 - Kafka needs it
        acquired: Sequence[AcquiredSpan],
        *,
        ordered: bool,  # noqa: ARG002 - Kafka needs it
    ) -> TopicFileReader | None:
        """See TopicLog. Raises TopicError (no such topic)."""
        ends = {topic: self._table.topic(topic).ends for topic in {one.partition.topic for one in acquired}}
        return self._table.reader(acquired, ends)

    def _rows(self) -> DataFrame:
        session = session_of(self._table.spark, f"rows of {self._table.location} are looked up by their time")
        return self._table.location.load(session)

    def _above_log_start(self, spans: Iterable[OffsetSpan]) -> list[OffsetSpan]:
        """Cut spans at the log start. Rows below it may still be there for a moment; they are not records."""
        ends = {topic: self._table.topic(topic).ends for topic in {span.topic for span in spans}}
        clipped = []
        for span in spans:
            start = ends[span.topic].get(span.partition, LogEnds(0, 0)).log_start_offset
            clipped.append(span._replace(first_offset=max(span.first_offset, start)))
        return clipped


def _inside(spans: Sequence[OffsetSpan]) -> Column:
    """Return the condition for exactly the spans; coarse ones first, by which Delta prunes partitions and files."""
    coarse = (
        F.col("topic").isin(sorted({span.topic for span in spans}))
        & F.col("partition").isin(sorted({span.partition for span in spans}))
        & F.col("offset").between(min(span.first_offset for span in spans), max(span.last_offset for span in spans))
    )
    return coarse & functools.reduce(operator.or_, map(_inside_partition, _by_partition(spans)))


def _by_partition(spans: Iterable[OffsetSpan]) -> list[list[OffsetSpan]]:
    groups: dict[tuple[str, int], list[OffsetSpan]] = {}
    for span in spans:
        groups.setdefault((span.topic, span.partition), []).append(span)
    return list(groups.values())


def _inside_partition(spans: Sequence[OffsetSpan]) -> Column:
    ranges = (F.col("offset").between(span.first_offset, span.last_offset) for span in spans)
    place = (F.col("topic") == spans[0].topic) & (F.col("partition") == spans[0].partition)
    return place & functools.reduce(operator.or_, ranges)


def spread(rows: DataFrame, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
    """Return ``rows`` (topic, partition, offset, …) in ``tasks`` tasks; ``spans`` ascending, not empty."""
    tasks = max(1, min(tasks, records_in(spans)))
    if tasks == 1:
        return rows.coalesce(1)
    keys = keys_of_tasks(tasks)
    # Built from the last cut to the first, so that the outermost WHEN is the lowest cut, and is tested first.
    key: Column = F.lit(keys[-1])
    place = F.struct("topic", "partition", "offset")
    for task, cut in reversed(list(enumerate(cuts(spans, tasks)))):
        before = F.struct(F.lit(cut.topic), F.lit(cut.partition), F.lit(cut.offset).cast("bigint"))
        key = F.when(place < before, F.lit(keys[task])).otherwise(key)
    return rows.repartition(tasks, key.cast("int"))


class Cut(NamedTuple):
    """The first record of a task."""

    topic: str
    partition: int
    offset: int


def cuts(spans: Sequence[OffsetSpan], tasks: int) -> list[Cut]:
    """Return the first record of every task but the first."""
    total = records_in(spans)
    result: list[Cut] = []
    passed = 0
    for span in spans:
        size = records_in([span])
        while len(result) < tasks - 1:
            target = total * (len(result) + 1) // tasks
            if target >= passed + size:
                break
            result.append(Cut(span.topic, span.partition, span.first_offset + target - passed))
        passed += size
    return result
