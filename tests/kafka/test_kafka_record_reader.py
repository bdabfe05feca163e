"""Workers that read Kafka themselves, against Spark's reading of the same ranges."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from share_spark.delivery.acquired_records import acquired_records, task_markers
from share_spark.delivery.reader_input import ReaderInput
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import OffsetSpan
from share_spark.engine.ranges import AcquiredRanges
from share_spark.handlers.handler import as_handler
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.record_reader import KafkaReader, faults_of_workers
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from tests.kafka.test_kafka_topic_log import KafkaLab, topic_log, transact
from tests.support.handled import handled
from tests.support.topic_log_cases import Sent, fresh_name, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "delivery_count")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("delivery_count", pa.int32()),
    ]
)


@pytest.fixture(scope="module")
def lab(broker: str) -> KafkaLab:
    return KafkaLab(broker)


def reader(broker: str, *, timeout_ms: int = 20_000, partitions: int = 1, **options: str) -> KafkaReader:
    parsed = KafkaOptions.parse({"bootstrap.servers": broker} | options)
    return KafkaReader.of(parsed, "test", timeout_ms, partitions)


def acquired(topic: str, partition: int, *ranges: tuple[int, int, int]) -> AcquiredSpan:
    return AcquiredSpan(TopicPartition(topic, partition), AcquiredRanges(np.array(ranges, np.int64)))


def by_workers(source: KafkaReader, wanted: Sequence[AcquiredSpan], tasks: int = 2) -> list[dict[str, Any]]:
    inputs = ReaderInput.of(source, wanted, tasks=tasks, most_rows=7)
    rows = [row for task in range(tasks) for batch in inputs.batches(task, SCHEMA) for row in batch.to_pylist()]
    return sorted(rows, key=place)


def by_spark(spark: SparkSession, lab: KafkaLab, wanted: Sequence[AcquiredSpan]) -> list[dict[str, Any]]:
    frame = acquired_records(spark, lab.log, wanted, tasks=2, third="delivery_count")
    table = frame.selectExpr("*", "coalesce(headers, array()) AS filled").drop("headers")
    rows = table.withColumnRenamed("filled", "headers").select(*COLUMNS).toArrow().cast(SCHEMA).to_pylist()
    return sorted(rows, key=place)


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row["offset"]


def read(source: KafkaReader, *spans: OffsetSpan, columns: Collection[str] = ()) -> list[tuple[int, int]]:
    """(number of the span, offset), in the order in which they come."""
    return [
        (span, offset)
        for found in source.read(spans, columns)
        for span, offset in zip(found.span.tolist(), found.records.column("offset").to_pylist(), strict=True)
    ]


def test_workers_read_what_spark_reads(spark: SparkSession, lab: KafkaLab, broker: str) -> None:
    """Two topics, records of all kinds, ranges that begin and end anywhere, two far from each other."""
    orders, returns = fresh_name("wide-orders"), fresh_name("wide-returns")
    kinds = [
        Sent(b"plain"),
        Sent(None, b"tombstone"),
        Sent(b"", b"", 0),
        Sent(b"headers", None, 1_700_000_000_123, [("a", b"1"), ("a", b"2"), ("no value", None)]),  # type: ignore[list-item]
        Sent(b"x" * 70_000, b"larger than a fetch asks for"),
    ]
    for topic, partitions in ((orders, 5), (returns, 2)):
        lab.create(topic, partitions)
        lab.put(topic, {at: [kinds[(at + number) % 5] for number in range(40)] for at in range(partitions)})
    lab.put(orders, {4: [Sent(b"%d" % number) for number in range(60_000)]})
    lab.trim(orders, {1: 12})
    wanted = [
        acquired(orders, 0, (0, 39, 1)),
        acquired(orders, 1, (3, 10, 2), (11, 20, 3)),
        acquired(orders, 2, (4, 4, 2), (6, 7, 5), (9, 9, 1)),
        acquired(orders, 4, (30, 50, 1), (60_000, 60_001, 2), (60_039, 60_039, 4)),
        acquired(returns, 1, (39, 39, 9)),
    ]
    found = by_workers(reader(broker), wanted)
    assert [row["offset"] for row in found if row["topic"] == orders and row["partition"] == 1] == [*range(12, 21)]
    assert found == by_spark(spark, lab, wanted)
    assert found == by_workers(reader(broker), wanted, tasks=1), "the same consumer, whatever it read before"


def test_columns_that_are_not_asked_for_are_not_made(lab: KafkaLab, broker: str) -> None:
    topic = fresh_name("columns")
    lab.create(topic, 1)
    lab.put(topic, {0: numbered(2)})
    (found,) = reader(broker).read([OffsetSpan(topic, 0, 0, 1)], ["key"])
    assert found.records.schema.names == ["offset", "key"]


def test_records_of_transactions(lab: KafkaLab, broker: str) -> None:
    """Offsets 0-4 committed, 5 marker, 6-8 aborted, 9 marker, 10-14 committed, 15 marker."""
    topic = fresh_name("wide-transactions")
    lab.create(topic, 1)
    transact(broker, topic, [("commit", 5), ("abort", 3), ("commit", 5)])
    spans = [OffsetSpan(topic, 0, 2, 7), OffsetSpan(topic, 0, 8, 10), OffsetSpan(topic, 0, 14, 15)]
    committed = reader(broker, **{"isolation.level": "read_committed"})
    assert read(committed, *spans) == [(0, 2), (0, 3), (0, 4), (1, 10), (2, 14)]
    everything = [(0, 2), (0, 3), (0, 4), (0, 6), (0, 7), (1, 8), (1, 10), (2, 14)]
    assert read(reader(broker), *spans) == everything


def test_a_log_that_has_lost_all_of_it(lab: KafkaLab, broker: str) -> None:
    topic = fresh_name("expired")
    lab.create(topic, 2)
    lab.put(topic, {0: numbered(5), 1: numbered(5)})
    lab.trim(topic, {0: 5, 1: 4})
    assert read(reader(broker), OffsetSpan(topic, 0, 0, 4), OffsetSpan(topic, 1, 0, 4)) == [(1, 4)]


def test_a_log_that_ends_before_the_span_is_not_taken_for_one_without_records(lab: KafkaLab, broker: str) -> None:
    """A leader that is new may not know yet what is committed."""
    topic = fresh_name("short")
    lab.create(topic, 2)
    lab.put(topic, {0: numbered(5), 1: numbered(5)})
    with pytest.raises(TopicUnreachableError, match=rf"no record of {topic}:0 within 1 s"):
        read(reader(broker, timeout_ms=1_000), OffsetSpan(topic, 0, 3, 7), OffsetSpan(topic, 1, 0, 4))
    assert read(reader(broker, timeout_ms=1_000), OffsetSpan(topic, 1, 3, 4)) == [(0, 3), (0, 4)]


def test_a_log_that_was_truncated(lab: KafkaLab, broker: str) -> None:
    topic = fresh_name("truncated")
    lab.create(topic, 1)
    lab.put(topic, {0: numbered(5)})
    with pytest.raises(TopicError, match=rf"the log of {topic}:0 was truncated below offset 7"):
        read(reader(broker), OffsetSpan(topic, 0, 7, 9))


def test_a_topic_that_is_not_there(broker: str) -> None:
    with pytest.raises(TopicError, match=r"no record of none-\w+:0|Unknown topic or partition"):
        read(reader(broker, timeout_ms=500), OffsetSpan(fresh_name("none"), 0, 0, 0))


def test_no_broker_at_all_is_said_by_each_worker(spark: SparkSession) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
    source = reader(nowhere, timeout_ms=700)
    with pytest.raises(TopicUnreachableError, match=r"Kafka at 127.0.0.1:\d+ gave no record of a:0 and 1 other"):
        read(source, OffsetSpan("a", 0, 0, 0), OffsetSpan("b", 1, 0, 0))
    faults = faults_of_workers(spark, source, ["a"])
    assert faults
    assert all("Failed to get metadata" in fault for fault in faults)


def test_a_delivery_that_cannot_read_ends_with_a_fault_of_the_topic(spark: SparkSession, broker: str) -> None:
    lab, topic = KafkaLab(broker), fresh_name("ends")
    lab.create(topic, 1)
    lab.put(topic, {0: numbered(3)})
    source = reader(broker, timeout_ms=500)
    inputs = ReaderInput.of(source, [acquired(topic, 0, (0, 5, 1))], tasks=1, most_rows=10)
    result = handled(task_markers(spark, 1), as_handler(lambda _: None), topic=topic, inputs=(inputs,))
    assert isinstance(result.fault, TopicError)
    assert str(result.fault).endswith(f"gave no record of {topic}:0 within 0.5 s")


def test_workers_that_reach_kafka(spark: SparkSession, lab: KafkaLab, broker: str) -> None:
    assert faults_of_workers(spark, reader(broker), ["any"]) == []


def test_secrets_are_shown_by_nothing(broker: str) -> None:
    secured = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    source = reader(broker, **secured, **{"sasl.username": "me", "sasl.password": "hush-hush"})
    assert ("sasl.password", "hush-hush") in source.config
    assert "hush-hush" not in repr(source)
    assert "hush-hush" not in repr(ReaderInput.of(source, [acquired("a", 0, (0, 0, 1))], tasks=1, most_rows=1))


def test_who_reads(spark: SparkSession, broker: str) -> None:
    """Few records, and those of many partitions, are read by the workers."""
    log = topic_log(broker)
    little, much = [acquired("wide", 0, (1, 10_000, 1))], [acquired("wide", 0, (0, 10_000, 1))]
    assert log.for_workers(spark, little, ordered=False) is not None
    assert log.for_workers(spark, much, ordered=False) is None
    assert log.for_workers(spark, much, ordered=True) is not None
    wide = [acquired("wide", at, (0, 1_000, 1)) for at in range(65)]
    assert log.for_workers(spark, wide[:64], ordered=False) is None
    assert log.for_workers(spark, wide, ordered=False) is not None


def test_little_is_fetched_at_a_time_of_each_of_many_partitions(broker: str) -> None:
    assert "fetch.message.max.bytes" not in dict(reader(broker, partitions=64).config)
    assert dict(reader(broker, partitions=65).config)["fetch.message.max.bytes"] == "65536"


def test_settings_of_the_user_win(broker: str) -> None:
    given = {
        "fetch.max.wait.ms": "77",
        "max.partition.fetch.bytes": "999",
        "client.rack": "eu-1a",
        "max.poll.records": "5",
    }
    config = dict(reader(broker, partitions=1_000, **given).config)
    assert config["fetch.wait.max.ms"] == "77"
    assert config["fetch.message.max.bytes"] == "999"
    assert config["client.rack"] == "eu-1a"
    assert config["isolation.level"] == "read_uncommitted"
    assert "max.poll.records" not in config
