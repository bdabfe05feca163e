"""Delivery to a companion process that reads Kafka itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType
from tests.kafka.test_kafka_topic_log import KafkaLab, topic_log, transact
from tests.support.companions import CompanionPlace
from tests.support.topic_log_cases import fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def checks(record: Record) -> Ack:
    """Values count from 0 in each transaction."""
    await asyncio.sleep(0.02)
    return Ack.ACCEPT if record.value == b"%d" % (record.offset % 10) else Ack.REJECT


def test_committed_records_are_handled_and_the_other_offsets_are_gaps(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Offsets 0-4 committed, 5 marker, 6-8 aborted, 9 marker, 10-14 committed, 15 marker."""
    topic = fresh_name("companion")
    KafkaLab(broker).create(topic, 1)
    transact(broker, topic, [("commit", 5), ("abort", 3), ("commit", 5)])
    log = topic_log(broker, **{"isolation.level": "read_committed"})
    acquired = [AcquiredSpan(TopicPartition(topic, 0), AcquiredRanges(np.array([(0, 15, 1)], np.int64)))]
    assert log.for_workers(spark, acquired, ordered=False) is not None
    place = CompanionPlace(tmp_path, checks, log, spark=spark)
    try:
        place.note(place.delivery.deliver(acquired, limits=place.limits))
        place.finish()
    finally:
        place.delivery.close()
    gaps = {offset for offset, said in place.said.items() if said.answer == AcknowledgeType.GAP}
    assert gaps == {5, 6, 7, 8, 9, 15}
    assert {said.answer for said in place.said.values()} == {AcknowledgeType.GAP, AcknowledgeType.ACCEPT}
    assert place.times == dict.fromkeys(range(16), 1)
