"""The topic log on a real Kafka: the common cases, and what is its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from share_spark.engine.ports import OffsetSpan
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import LogEnds
from tests.support.topic_log_cases import (
    Sent,
    TopicLogCases,
    fresh_name,
    hundreds,
    numbered,
    offsets,
    spanned,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 20


def topic_log(broker: str, **options: str) -> KafkaTopicLog:
    return KafkaTopicLog(KafkaOptions.parse({"bootstrap.servers": broker} | options))


def wait_until(what: Callable[[], object]) -> None:
    """Until ``what`` is true and raises no TopicError any more."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if what():
                return
        except TopicError:
            pass
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


class KafkaLab:
    """TopicLab on a broker."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.log = topic_log(broker)
        self.admin = AdminClient({"bootstrap.servers": broker})
        self.producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})

    def create(self, topic: str, partitions: int, **config: str) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        self.admin.create_topics([new])[topic].result(WAIT_S)
        wait_until(lambda: self.log.log_ends(topic))

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WAIT_S)
        wait_until(lambda: len(self.log.log_ends(topic)) == partitions)

    def put(self, topic: str, records: Mapping[int, Sequence[Sent]]) -> None:
        for partition, many in records.items():
            for sent in many:
                time_of = {} if sent.timestamp_ms is None else {"timestamp": sent.timestamp_ms}
                self.producer.produce(topic, sent.value, sent.key, partition, headers=list(sent.headers), **time_of)
        assert self.producer.flush(WAIT_S) == 0

    def trim(self, topic: str, before: Mapping[int, int]) -> None:
        places = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for future in self.admin.delete_records(places).values():
            future.result(WAIT_S)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(WAIT_S)

        def gone() -> bool:
            return topic not in self.admin.list_topics(timeout=WAIT_S).topics

        wait_until(gone)


@pytest.fixture(scope="module")
def lab(broker: str) -> KafkaLab:
    return KafkaLab(broker)


@pytest.fixture(scope="module")
def orders(lab: KafkaLab) -> str:
    return hundreds(lab)


class TestKafkaTopicLog(TopicLogCases):
    """The common cases."""


def transact(broker: str, topic: str, steps: Sequence[tuple[str, int]]) -> None:
    """Transactions in turn: ("commit" | "abort", how many records)."""
    config = {"bootstrap.servers": broker, "transactional.id": uuid4().hex, "linger.ms": 0}
    producer = Producer(config)
    producer.init_transactions(WAIT_S)
    for step, count in steps:
        producer.begin_transaction()
        for i in range(count):
            producer.produce(topic, str(i).encode(), partition=0)
        producer.flush(WAIT_S)
        finish = producer.commit_transaction if step == "commit" else producer.abort_transaction
        finish(WAIT_S)


def test_transactions_leave_gaps_that_are_just_missing(spark: SparkSession, lab: KafkaLab, broker: str) -> None:
    """Offsets 0-4 committed, 5 marker, 6-8 aborted, 9 marker, 10-14 committed, 15 marker."""
    topic = fresh_name("transactions")
    lab.create(topic, 1)
    transact(broker, topic, [("commit", 5), ("abort", 3), ("commit", 5)])
    log = topic_log(broker, **{"isolation.level": "read_committed"})
    assert log.log_ends(topic) == {0: LogEnds(0, 16, high_watermark=16)}
    started = time.monotonic()
    whole = offsets(log.read(spark, [OffsetSpan(topic, 0, 0, 15)], 1))
    assert [offset for _, _, offset in whole] == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert offsets(log.read(spark, [OffsetSpan(topic, 0, 5, 9)], 2)) == []
    assert offsets(log.read(spark, [OffsetSpan(topic, 0, 15, 15)], 1)) == []
    seen = offsets(lab.log.read(spark, [OffsetSpan(topic, 0, 6, 9)], 1))
    assert [offset for _, _, offset in seen] == [6, 7, 8], "read_uncommitted shows the aborted"
    assert time.monotonic() - started < WAIT_S, "no read waits for records that do not exist"


def test_an_open_transaction_holds_back_the_end(lab: KafkaLab, broker: str) -> None:
    topic = fresh_name("open")
    lab.create(topic, 1)
    lab.put(topic, {0: numbered(2)})
    producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid4().hex})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(WAIT_S)
    committed = topic_log(broker, **{"isolation.level": "read_committed"})
    assert committed.log_ends(topic) == {0: LogEnds(0, 2, high_watermark=3)}
    assert lab.log.log_ends(topic) == {0: LogEnds(0, 3)}
    producer.abort_transaction(WAIT_S)


def test_compaction_leaves_gaps(spark: SparkSession, lab: KafkaLab) -> None:
    topic = fresh_name("compacted")
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    lab.create(topic, 1, **config)
    lab.put(topic, {0: [Sent(str(i).encode(), key=b"same") for i in range(50)]})
    span = OffsetSpan(topic, 0, 0, 49)

    def compacted() -> bool:
        """Only a closed segment is compacted; each of these records comes late enough to close one."""
        lab.put(topic, {0: [Sent(b"-", key=uuid4().bytes)]})
        time.sleep(0.3)
        return len(offsets(lab.log.read(spark, [span], 2))) < 50

    wait_until(compacted)
    assert offsets(lab.log.read(spark, [span], 2))[-1:] == [(topic, 0, 49)]
    assert lab.log.log_ends(topic)[0].end_offset > 50


def test_the_time_of_a_record_is_looked_up(lab: KafkaLab) -> None:
    topic = fresh_name("timed")
    lab.create(topic, 3)
    lab.put(topic, {p: [Sent(b"x", timestamp_ms=1_700_000_000_000 + n) for n in range(3)] for p in range(2)})
    assert lab.log.times_at(topic, {0: 1, 1: 3, 2: 0}) == {0: 1_700_000_000_001}, "the others have no such record"
    assert lab.log.times_at(topic, {}) == {}


def test_the_times_of_many_partitions_with_large_batches_are_looked_up(lab: KafkaLab) -> None:
    """Within the time limit of one request: nobody waits for a partition after the other."""
    topic, partitions = fresh_name("wide"), 60
    lab.create(topic, partitions)
    records = [Sent(b"x" * 1_000, timestamp_ms=1_700_000_000_000 + number) for number in range(30)]
    lab.put(topic, dict.fromkeys(range(partitions), records))
    found = lab.log.times_at(topic, dict.fromkeys(range(partitions), 5))
    assert found == dict.fromkeys(range(partitions), 1_700_000_000_005)


def test_spans_of_two_topics(spark: SparkSession, lab: KafkaLab, orders: str) -> None:
    other = fresh_name("other")
    lab.create(other, 2)
    lab.put(other, {0: numbered(10), 1: numbered(10)})
    spans = [OffsetSpan(orders, 1, 5, 9), OffsetSpan(other, 1, 2, 3), OffsetSpan(other, 0, 9, 9)]
    assert offsets(lab.log.read(spark, spans, 2)) == spanned(*spans)


def test_a_broker_out_of_reach_is_one_line_in_bounded_time(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    log = KafkaTopicLog(KafkaOptions.parse({"bootstrap.servers": address}), request_timeout_ms=700)
    started = time.monotonic()
    with pytest.raises(TopicUnreachableError, match=f"^Kafka at {address} gave no answer") as caught:
        log.log_ends("orders")
    assert time.monotonic() - started < 5
    assert "\n".join(capfd.readouterr()).strip() == "", "the client's own complaints are not shown"
    assert "\n" not in str(caught.value)


def test_a_bad_topic_name_is_said_to_be_one(lab: KafkaLab) -> None:
    with pytest.raises(TopicError, match="topic 'a b' is not a valid topic name"):
        lab.log.describe("a b")


def test_the_id_is_what_java_prints(lab: KafkaLab) -> None:
    """librdkafka's own text has + and / where Java's has - and _."""
    topics = [fresh_name("id") for _ in range(8)]
    for topic in topics:
        lab.create(topic, 1)
    assert all(set(lab.log.describe(topic).topic_id).isdisjoint("+/") for topic in topics)


def test_the_admin_client_works_as_given(broker: str) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": broker, "no.such.option": "1"})
    accepted = KafkaOptions.parse({"bootstrap.servers": broker, "request.timeout.ms": "5000"})
    AdminClient(accepted.librdkafka())
