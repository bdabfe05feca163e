"""What the benchmarks run: topics full of records, the handler, plain Structured Streaming beside our engine."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pyspark.sql import DataFrame, SparkSession

from share_spark import ShareGroup, arrow_handler
from share_spark.engine.progress import MicroBatchProgress

UNLIMITED = 1_000_000_000


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """A topic on the broker under test."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)


def fill(bootstrap: str, topic: str, partitions: int, records: int, size: int, *, batch: int = 10_000) -> None:
    """``records`` records of ``size`` bytes, evenly over the partitions, in large batches as a busy producer writes
    them, or of ``batch`` records at most."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "batch.num.messages": batch,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    value = b"x" * size
    for number in range(records):
        producer.produce(topic, value, partition=number % partitions)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(120)


def accept(batch: pa.RecordBatch) -> Any:
    """The function of all throughput benchmarks: it looks at every value and accepts."""
    lengths = np.diff(np.frombuffer(batch.column("value").buffers()[1], np.int32, batch.num_rows + 1))
    return np.where(lengths >= 0, 1, 2).astype(np.int8)


@arrow_handler(columns=["value"])
def accept_all(batch: pa.RecordBatch) -> Any:
    """``accept`` as a handler."""
    return accept(batch)


@arrow_handler(columns=["offset", "value", "delivery_count"])
def release_some_once(batch: pa.RecordBatch) -> Any:
    """``accept``, but 5 % of the records are released at their first delivery."""
    codes = accept(batch)
    offsets = batch.column("offset").to_numpy()
    chosen = (offsets * 2_654_435_761) % 1_000 < 50
    codes[chosen & (batch.column("delivery_count").to_numpy() == 1)] = 2
    return codes


def plain_function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``accept`` under plain Structured Streaming's ``mapInArrow``."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array(accept(batch))], names=["ack"])


class Scratch:
    """A directory that goes when the benchmark ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="share-spark-bench-"))

    def fresh(self, name: str) -> str:
        """A path that nothing has used."""
        return str(self.path / f"{name}-{uuid.uuid4().hex[:8]}")

    def close(self) -> None:
        """Remove it all."""
        shutil.rmtree(self.path, ignore_errors=True)


def share_group(
    spark: SparkSession, bootstrap: str, topic: str, state: str, handler: Any, *, records_per_trigger: int
) -> ShareGroup:
    """A new group that works off the topic, available-now, with locks set high."""
    return (
        ShareGroup(f"bench-{uuid.uuid4().hex[:8]}", spark=spark, state=state)
        .kafka(bootstrap)
        .subscribe(topic)
        .process(handler)
        .option("share.auto.offset.reset", "earliest")
        .option("share.partition.max.record.locks", UNLIMITED)
        .option("max.records.per.trigger", records_per_trigger)
        .trigger(availableNow=True)
    )


def run_share_group(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    state: str,
    handler: Any,
    *,
    records_per_trigger: int,
) -> list[MicroBatchProgress]:
    """One available-now run of a new group; returns its micro-batches."""
    progress: list[MicroBatchProgress] = []
    group = share_group(spark, bootstrap, topic, state, handler, records_per_trigger=records_per_trigger)
    query = group.listen(progress.append).start()
    query.awaitTermination()
    return progress


def plain_source(
    spark: SparkSession, bootstrap: str, topic: str, records_per_trigger: int | None, **options: str
) -> DataFrame:
    """The same topic as Spark's own streaming source reads it; ``options`` are the source's."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .options(**options)
    )
    return (reader.option("maxOffsetsPerTrigger", records_per_trigger) if records_per_trigger else reader).load()


def run_plain(
    spark: SparkSession, bootstrap: str, topic: str, checkpoint: str, *, records_per_trigger: int | None, **options: str
) -> None:
    """Plain Structured Streaming over the topic into the same function; its results go nowhere."""
    frame = plain_source(spark, bootstrap, topic, records_per_trigger, **options)
    handled = frame.select("value").mapInArrow(plain_function, "ack tinyint")
    query = (
        handled.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()


def share_group_from_earliest(bootstrap: str, group: str) -> None:
    """Make this share group begin at the log start."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
