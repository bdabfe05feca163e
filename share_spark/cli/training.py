"""The training run of the class-data archive: a small share group from start to end, so that the JVM loads what a real
one needs (``spark.class_archive``). Run as ``python -m share_spark.cli.training``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from share_spark import Ack, EmbeddedTopicLog, Record, ShareGroup, build_session
from share_spark.spark.session import end_session
from share_spark.topics.topic_producer import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 200


def handle(record: Record) -> Any:
    """Accept most records, release and reject some."""
    if record.offset % 20 == 0:
        return Ack.REJECT
    return Ack.RELEASE if record.offset % 7 == 0 else (Ack.ACCEPT, {"offset": record.offset})


def train(spark: SparkSession, directory: str) -> None:
    """Run twice: one begins, one takes over. Asking for a schema loads Kafka's classes without a broker."""
    log = EmbeddedTopicLog(spark, f"{directory}/topics")
    log.create_topic("orders", 2)
    for _ in _runs(spark, directory):
        log.append("orders", [Message(b"x")] * RECORDS)
    _ = spark.read.format("kafka").options(**{"kafka.bootstrap.servers": "none:1", "subscribe": "orders"}).load().schema


def _runs(spark: SparkSession, directory: str) -> Iterator[None]:
    group = (
        ShareGroup("training", spark=spark, state=f"{directory}/state")
        .table(f"{directory}/topics")
        .subscribe("orders")
        .process(handle, output="offset bigint")
        .to_delta(f"{directory}/output")
        .dead_letter(f"{directory}/dead_letters")
        .options(**{"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 2})
        .trigger(availableNow=True)
    )
    for _ in range(2):
        yield
        group.start().awaitTermination()


def main() -> int:
    """Run the training. When it returns the JVM has ended, and has written the archive."""
    with tempfile.TemporaryDirectory(prefix="share-spark-training-") as directory:
        spark = build_session("share-spark prepare", extra_conf={"spark.sql.warehouse.dir": f"{directory}/warehouse"})
        train(spark, directory)
        end_session(spark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
