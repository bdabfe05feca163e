"""Exactly the acquired records come out of the topic log, whichever way they are picked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from share_spark.delivery import acquired_records as picking
from share_spark.delivery.acquired_records import acquired_records
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.model.ids import TopicPartition
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 300
TOPICS = ("orders", "returns")
Picked = dict[tuple[str, int, int], int]


@pytest.fixture(scope="module")
def log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTopicLog:
    """Two topics of two partitions each."""
    found = EmbeddedTopicLog(spark, str(tmp_path_factory.mktemp("log") / "topics"))
    for topic in TOPICS:
        found.create_topic(topic, 2)
        found.append(topic, [Message(b"%d" % n, partition=n % 2) for n in range(2 * RECORDS)])
    return found


def spans(step: int, topics: tuple[str, ...]) -> list[AcquiredSpan]:
    """Every ``step``-th pair of offsets, another one in each partition."""
    places = [TopicPartition(topic, partition) for topic in topics for partition in range(2)]
    firsts = [np.arange(start, RECORDS - 1, step, dtype=np.int64) for start in range(len(places))]
    return [
        AcquiredSpan(place, np.column_stack([first, first + 1, 1 + first % 5]))
        for place, first in zip(places, firsts, strict=True)
    ]


def wanted(acquired: list[AcquiredSpan]) -> Picked:
    return {
        (*one.partition, offset): count
        for one in acquired
        for first, last, count in one.ranges.tolist()
        for offset in range(first, last + 1)
    }


@pytest.mark.parametrize("topics", [TOPICS[:1], TOPICS], ids=["one topic", "two topics"])
@pytest.mark.parametrize("step", [60, 5], ids=["few ranges", "many ranges"])
def test_exactly_what_was_acquired_comes_with_its_count(
    spark: SparkSession, log: EmbeddedTopicLog, step: int, topics: tuple[str, ...]
) -> None:
    acquired = spans(step, topics)
    many = sum(len(one.ranges) for one in acquired) > picking._MAX_EXPRESSION_RANGES
    assert many == (step == 5)
    rows = acquired_records(spark, log, acquired, tasks=2, third="delivery_count").collect()
    assert {(row.topic, row.partition, row.offset): row.delivery_count for row in rows} == wanted(acquired)
    assert len(rows) == len(wanted(acquired))
