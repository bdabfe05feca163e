"""Large records of a Kafka topic, which is read in a session of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from share_spark import Ack, Record, ShareGroup
from share_spark.delivery.large_records import LARGE_BYTES
from share_spark.engine.progress import MicroBatchProgress
from share_spark.kafka import topic_log
from share_spark.spark.schemas import ARROW_BYTES, NO_ARROW_LIMIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topic(broker: str) -> str:
    name = f"files-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(20)
    producer = Producer({"bootstrap.servers": broker})
    for size in (1, 900_000, LARGE_BYTES + 1, LARGE_BYTES):
        producer.produce(name, b"x" * size)
    producer.flush()
    return name


@pytest.fixture
def unlimited(spark: SparkSession) -> Iterator[SparkSession]:
    """As ``build_session`` makes it, and left so."""
    spark.conf.set(ARROW_BYTES, NO_ARROW_LIMIT)
    yield spark
    spark.conf.set(ARROW_BYTES, NO_ARROW_LIMIT)
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.parametrize(("workers_read", "acquired"), [(True, [4]), (False, [4, 2])])
def test_where_spark_reads_the_second_micro_batch_delivers_them(
    unlimited: SparkSession,
    broker: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers_read: bool,
    acquired: list[int],
) -> None:
    monkeypatch.setattr(topic_log, "can_read", lambda *_: workers_read)
    progress: list[MicroBatchProgress] = []

    def size(record: Record) -> tuple[Ack, dict[str, int]]:
        return Ack.ACCEPT, {"offset": record.offset, "count": record.delivery_count, "size": len(record.value or b"")}

    group = ShareGroup(topic, spark=unlimited, state=str(tmp_path / "state")).kafka(broker).subscribe(topic)
    group = group.process(size, output="offset bigint, count int, size int").to_delta(str(tmp_path / "sizes"))
    group = group.option("share.auto.offset.reset", "earliest").listen(progress.append)
    assert group.trigger(availableNow=True).start().awaitTermination(120)
    rows = unlimited.read.format("delta").load(str(tmp_path / "sizes")).orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [
        (0, 1, 1),
        (1, 1, 900_000),
        (2, 1, LARGE_BYTES + 1),
        (3, 1, LARGE_BYTES),
    ]
    assert [one.acquired for one in progress if one.acquired] == acquired
