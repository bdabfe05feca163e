"""What every topic log must do, whatever it is made of. The Kafka and the embedded tests inherit it."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import uuid4

import pytest
from pyspark.sql import functions as F

from share_spark.engine.ports import RECORD_COLUMNS, OffsetSpan, TopicLog
from share_spark.model.errors import TopicError
from share_spark.model.ids import LogEnds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Record = tuple[str, int, int]
"""Topic, partition, offset."""


class Sent(NamedTuple):
    """A record to put into a topic."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class TopicLab(Protocol):
    """A topic log with the means to bring it into any state."""

    log: TopicLog

    def create(self, topic: str, partitions: int) -> None: ...
    def grow(self, topic: str, partitions: int) -> None: ...
    def put(self, topic: str, records: Mapping[int, Sequence[Sent]]) -> None: ...
    def trim(self, topic: str, before: Mapping[int, int]) -> None: ...
    def delete(self, topic: str) -> None: ...


def fresh_name(stem: str = "orders") -> str:
    """A topic name that no other test uses."""
    return f"{stem}-{uuid4().hex[:8]}"


def numbered(count: int) -> list[Sent]:
    """Records whose values say their place."""
    return [Sent(str(i).encode()) for i in range(count)]


def offsets(frame: DataFrame) -> list[Record]:
    """What was read, in ascending order."""
    return sorted(map(tuple, frame.select("topic", "partition", "offset").collect()))


def spanned(*spans: OffsetSpan) -> list[Record]:
    """Every offset of the spans, in ascending order."""
    return sorted(
        (span.topic, span.partition, offset)
        for span in spans
        for offset in range(span.first_offset, span.last_offset + 1)
    )


def by_task(frame: DataFrame) -> list[list[Record]]:
    """What each task reads, in the order in which it does."""
    tasks: dict[int, list[Record]] = defaultdict(list)
    place = F.spark_partition_id().alias("task")
    for task, *record in frame.select(place, "topic", "partition", "offset").collect():
        tasks[task].append(tuple(record))
    return list(tasks.values())


def assert_ascending(tasks: Sequence[Sequence[Record]]) -> None:
    """Within a task, each partition's offsets rise."""
    for task in tasks:
        seen: dict[tuple[str, int], int] = {}
        for topic, partition, offset in task:
            assert offset > seen.get((topic, partition), -1), f"{topic}-{partition}@{offset}: {task}"
            seen[topic, partition] = offset


def hundreds(lab: TopicLab) -> str:
    """A topic of three partitions of 100 records each, only to be read."""
    topic = fresh_name()
    lab.create(topic, 3)
    lab.put(topic, {partition: numbered(100) for partition in range(3)})
    return topic


class TopicLogCases:
    """Inherit, and give the fixtures ``lab`` (a TopicLab) and ``orders`` (``hundreds(lab)``)."""

    def test_describes_a_topic(self, lab: TopicLab, orders: str) -> None:
        found = lab.log.describe(orders)
        assert (found.topic, found.partitions) == (orders, (0, 1, 2))
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", found.topic_id)

    def test_names_an_unknown_topic(self, lab: TopicLab) -> None:
        lab.create(fresh_name(), 1)
        for ask in (lab.log.describe, lab.log.log_ends):
            with pytest.raises(TopicError, match=r"^topic 'no-such-topic' does not exist") as caught:
                ask("no-such-topic")
            assert "\n" not in str(caught.value)

    def test_log_ends(self, lab: TopicLab, orders: str) -> None:
        assert lab.log.log_ends(orders) == dict.fromkeys(range(3), LogEnds(0, 100))

    def test_reads_exact_spans(self, spark: SparkSession, lab: TopicLab, orders: str) -> None:
        spans = [OffsetSpan(orders, 0, 10, 19), OffsetSpan(orders, 2, 99, 99)]
        assert offsets(lab.log.read(spark, spans, 2)) == spanned(*spans)

    def test_reads_many_spans_of_a_partition(self, spark: SparkSession, lab: TopicLab, orders: str) -> None:
        spans = [OffsetSpan(orders, 1, first, first + 2) for first in (70, 0, 30)]
        more = [OffsetSpan(orders, 1, 31, 35), OffsetSpan(orders, 0, 5, 4)]
        frame = lab.log.read(spark, spans + more, 2)
        expected = sorted(set(spanned(*spans, *more)))
        assert offsets(frame) == expected
        assert_ascending(by_task(frame))

    def test_reads_nothing_for_no_spans(self, spark: SparkSession, lab: TopicLab, orders: str) -> None:
        frame = lab.log.read(spark, [OffsetSpan(orders, 0, 5, 4)], 2)
        assert frame.schema == spark.createDataFrame([], RECORD_COLUMNS).schema
        assert frame.count() == 0

    def test_more_tasks_than_partitions(self, spark: SparkSession, lab: TopicLab, orders: str) -> None:
        span = OffsetSpan(orders, 0, 0, 99)
        tasks = by_task(lab.log.read(spark, [span], 4))
        assert sorted(map(len, tasks)) == [25, 25, 25, 25]
        assert all(task[-1][2] - task[0][2] == 24 for task in tasks), "each task has one stretch"
        assert sorted(record for task in tasks for record in task) == spanned(span)

    def test_fewer_tasks_than_partitions(self, spark: SparkSession, lab: TopicLab, orders: str) -> None:
        spans = [OffsetSpan(orders, partition, 0, 99) for partition in range(3)]
        tasks = by_task(lab.log.read(spark, spans, 2))
        assert len(tasks) == 2
        assert_ascending(tasks)
        assert sorted(record for task in tasks for record in task) == spanned(*spans)

    def test_keeps_what_a_record_holds(self, spark: SparkSession, lab: TopicLab) -> None:
        topic = fresh_name()
        lab.create(topic, 1)
        full = Sent(b"value\x00\xff", b"key", 1_700_000_000_123, [("a", b"1"), ("a", b"2")])
        lab.put(topic, {0: [full, Sent(None)]})
        frame = lab.log.read(spark, [OffsetSpan(topic, 0, 0, 1)], 1)
        assert frame.schema.simpleString() == (spark.createDataFrame([], RECORD_COLUMNS).schema.simpleString())
        first, second = frame.orderBy("offset").collect()
        assert (bytes(first.key), bytes(first.value)) == (b"key", b"value\x00\xff")
        assert first.timestamp.astimezone(UTC) == datetime.fromtimestamp(1_700_000_000.123, UTC)
        assert [(key, bytes(value)) for key, value in first.headers] == [("a", b"1"), ("a", b"2")]
        assert (second.key, second.value, second.headers or None) == (None, None, None)

    def test_first_offset_at_a_time(self, lab: TopicLab) -> None:
        topic = fresh_name()
        lab.create(topic, 2)
        now = int(time.time() * 1000)
        lab.put(topic, {0: [Sent(b"x", timestamp_ms=now + 1000 * i) for i in range(5)]})
        assert lab.log.offsets_at(topic, now + 1500) == {0: 2, 1: 0}
        assert lab.log.offsets_at(topic, now + 2000) == {0: 2, 1: 0}
        assert lab.log.offsets_at(topic, now + 9999) == {0: 5, 1: 0}

    def test_moved_log_start(self, spark: SparkSession, lab: TopicLab) -> None:
        topic = fresh_name()
        lab.create(topic, 2)
        lab.put(topic, {0: numbered(20), 1: numbered(20)})
        assert lab.log.log_ends(topic)[0] == LogEnds(0, 20)
        lab.trim(topic, {0: 8, 1: -1})
        assert lab.log.log_ends(topic) == {0: LogEnds(8, 20), 1: LogEnds(20, 20)}
        spans = [OffsetSpan(topic, partition, 0, 19) for partition in range(2)]
        assert offsets(lab.log.read(spark, spans, 2)) == spanned(OffsetSpan(topic, 0, 8, 19))
        lab.put(topic, {1: numbered(1)})
        assert lab.log.log_ends(topic)[1] == LogEnds(20, 21)

    def test_new_partitions_appear(self, spark: SparkSession, lab: TopicLab) -> None:
        topic = fresh_name()
        lab.create(topic, 1)
        assert set(lab.log.log_ends(topic)) == {0}
        lab.grow(topic, 3)
        lab.put(topic, {2: numbered(3)})
        assert lab.log.describe(topic).partitions == (0, 1, 2)
        assert lab.log.log_ends(topic) == {0: LogEnds(0, 0), 1: LogEnds(0, 0), 2: LogEnds(0, 3)}
        span = OffsetSpan(topic, 2, 0, 2)
        assert offsets(lab.log.read(spark, [span], 2)) == spanned(span)

    def test_a_topic_created_again_is_another_topic(self, spark: SparkSession, lab: TopicLab) -> None:
        topic = fresh_name()
        lab.create(topic, 1)
        lab.put(topic, {0: [Sent(b"old")] * 5})
        span = OffsetSpan(topic, 0, 0, 1)
        assert {bytes(row.value) for row in lab.log.read(spark, [span], 1).collect()} == {b"old"}
        old = lab.log.describe(topic).topic_id
        lab.delete(topic)
        with pytest.raises(TopicError, match="does not exist"):
            lab.log.describe(topic)
        lab.create(topic, 1)
        assert lab.log.describe(topic).topic_id != old
        assert lab.log.log_ends(topic) == {0: LogEnds(0, 0)}
        lab.put(topic, {0: [Sent(b"new")] * 5})
        span = OffsetSpan(topic, 0, 0, 4)
        assert {bytes(row.value) for row in lab.log.read(spark, [span], 1).collect()} == {b"new"}
