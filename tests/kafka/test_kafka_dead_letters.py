"""Dead letters to a Kafka topic, read back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import DeadLetters, KafkaTopics, LetterFilter
from share_spark.engine.ports import OffsetSpan
from share_spark.kafka.dead_letter_topic import KafkaDeadLetters
from share_spark.kafka.letter_headers import Origin, origin_headers
from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import DeadLetterError, TopicError, TopicUnreachableError
from share_spark.model.ids import BatchStamp
from tests.kafka.test_kafka_topic_log import KafkaLab
from tests.support.claims import claim_of
from tests.support.letter_tables import make_letters, row
from tests.support.letters import letters
from tests.support.topic_log_cases import fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_letters_carry_the_headers_of_the_kip_and_of_spring(spark: SparkSession, broker: str) -> None:
    lab = KafkaLab(broker)
    topic = fresh_name("dead")
    lab.create(topic, 1)
    target = KafkaDeadLetters(topic, KafkaOptions.parse({"bootstrap.servers": broker}))
    target.write(spark, claim_of("billing"), BatchStamp(1, 0), letters(spark))
    rows = lab.log.read(spark, [OffsetSpan(topic, 0, 0, 1)], 1).collect()
    found = {bytes(row.value or b"-"): row for row in rows}
    full, empty = found[b"value"], found[b"-"]
    assert bytes(full.key) == b"key"
    timestamp_ms = 1_767_323_045_000
    origin = Origin("billing", "orders", 3, 42, timestamp_ms, 5, "ValueError: no such city")
    assert [(key, bytes(value)) for key, value in full.headers] == [("own", b"1"), *origin_headers(origin)]
    rejected = Origin("billing", "orders", 0, 7, timestamp_ms, 1, "rejected")
    assert (empty.key, empty.value) == (None, None)
    assert [(key, bytes(value)) for key, value in empty.headers] == origin_headers(rejected)


def test_a_missing_topic_is_said_at_the_start(spark: SparkSession, broker: str) -> None:
    target = KafkaDeadLetters("no-such", KafkaOptions.parse({"bootstrap.servers": broker}))
    with pytest.raises(DeadLetterError, match=r"^dead-letter topic 'no-such' does not exist"):
        target.check(spark)
    with pytest.raises(DeadLetterError):
        target.write(spark, claim_of("billing"), BatchStamp(1, 0), letters(spark))


def test_a_broker_out_of_reach(spark: SparkSession) -> None:
    options = KafkaOptions.parse({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(TopicUnreachableError, match=r"^dead letters: Kafka at 127.0.0.1:1 gave no answer"):
        KafkaDeadLetters("dead", options, request_timeout_ms=500).check(spark)


def test_letters_are_sent_again_to_their_partitions(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    lab = KafkaLab(broker)
    orders, repaired = fresh_name("orders"), fresh_name("repaired")
    lab.create(orders, 2)
    lab.create(repaired, 1)
    large = b"x" * 1_000_000
    rows = [row(1, topic=orders, partition=1, value=None), row(2, topic=orders, partition=1, value=b"2" + large[:-500])]
    dead = DeadLetters(make_letters(tmp_path / "dead", [*rows, row(3, topic=orders)]))
    kafka = KafkaTopics.of(broker)
    assert dead.redrive(kafka).marked == 3
    spans = [OffsetSpan(orders, 0, 0, 0), OffsetSpan(orders, 1, 0, 1)]
    found = sorted(lab.log.read(spark, spans, 1).collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.partition, bytes(row.key), row.value and bytes(row.value)[:1]) for row in found] == [
        (0, b"key", b"3"),
        (1, b"key", None),
        (1, b"key", b"2"),
    ]
    said = dict(found[0].headers)
    assert (bytes(said["kafka_dlt-original-offset"]), bytes(said["x-original-topic"])) == (
        b"\0" * 7 + b"\3",
        orders.encode(),
    )
    assert dead.redrive(kafka, again=True, to_topic=repaired, limit=1).sent == 1
    assert lab.log.log_ends(repaired)[0].end_offset == 1


def test_what_the_broker_refuses_is_not_marked(broker: str, tmp_path: Path) -> None:
    lab = KafkaLab(broker)
    orders = fresh_name("orders")
    lab.create(orders, 1, **{"max.message.bytes": "1000"})
    rows = [row(1, topic=orders, value=b"x" * 5_000), row(2, topic=orders)]
    dead = DeadLetters(make_letters(tmp_path / "dead", rows))
    with pytest.raises(TopicError, match=rf"^1 of 2 letters were sent, but not {orders}:0:1: Broker: Message size"):
        dead.redrive(KafkaTopics.of(broker), rate_per_s=1_000)
    assert [one.offset for one in dead.letters(LetterFilter(redriven=True))] == [2]
