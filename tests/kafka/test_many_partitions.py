"""A topic of 200 partitions on a real Kafka: breadth, where the other tests have two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import Ack, Record, ShareGroup, read_state
from share_spark.engine.progress import MicroBatchProgress
from tests.kafka.test_kafka_topic_log import KafkaLab
from tests.support.topic_log_cases import Sent, fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PARTITIONS = 200
RECORDS = 4_000
OUTPUT = "at int, off bigint, attempt int"
WAIT_S = 240


def released_once(offset: int) -> bool:
    """Scattered over the partitions: offsets 3 and 13 of each."""
    return offset % 10 == 3


def handle(record: Record) -> Any:
    if released_once(record.offset) and record.delivery_count == 1:
        return Ack.RELEASE, None
    return Ack.ACCEPT, {"at": record.partition, "off": record.offset, "attempt": record.delivery_count}


@pytest.fixture
def topic(broker: str) -> str:
    lab, name = KafkaLab(broker), fresh_name("broad")
    lab.create(name, PARTITIONS)
    each = RECORDS // PARTITIONS
    lab.put(name, {at: [Sent(b"%d" % number) for number in range(each)] for at in range(PARTITIONS)})
    return name


def progress_text(progress: MicroBatchProgress) -> str:
    steps = " ".join(f"{name} {seconds:.2f}" for name, seconds in progress.steps.items())
    return f"{progress.acquired} acquired, {sum(progress.steps.values()):.2f} s: {steps}"


def test_each_record_of_200_partitions_is_accepted_once(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    progress: list[MicroBatchProgress] = []
    group = ShareGroup("broad", spark=spark, state=str(tmp_path / "state")).kafka(broker).subscribe(topic)
    group = group.process(handle, output=OUTPUT).to_delta(str(tmp_path / "out")).listen(progress.append)
    group = group.option("share.auto.offset.reset", "earliest").trigger(availableNow=True)
    assert group.start().awaitTermination(WAIT_S)
    print("", *map(progress_text, progress), sep="\n")

    each = RECORDS // PARTITIONS
    rows = spark.read.format("delta").load(str(tmp_path / "out")).collect()
    expected = [(at, off, 2 if released_once(off) else 1) for at in range(PARTITIONS) for off in range(each)]
    assert sorted(map(tuple, rows)) == expected
    again = sum(released_once(off) for _, off, _ in expected)
    # On a busy machine the budget of time ends before 200 partitions are opened: the rest is acquired again.
    assert sum(batch.acquired - batch.not_entered for batch in progress) == RECORDS + again
    assert sum(batch.accepted for batch in progress) == RECORDS
    assert sum(batch.archived for batch in progress) == 0
    ends = read_state(spark, str(tmp_path / "state"), "broad").select(
        "start_offset", "end_offset", "available", "acquired"
    )
    assert [tuple(row) for row in ends.collect()] == [(each, each, 0, 0)] * PARTITIONS
