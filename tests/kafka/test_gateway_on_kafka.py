"""librdkafka's share consumer on topics of a real Kafka, whose own share groups nobody uses: the group is ours."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient

from share_spark import ShareGroupAdmin
from share_spark.gateway.topic_source import TopicSource
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.options import KafkaOptions
from tests.kafka.test_broker import TIMEOUT_S, create_topic
from tests.kafka.test_kafka_topic_log import wait_until
from tests.support.share_consumers import GROUP, consumer, polled, refuse_errors, serving, settings_of, work_off
from tests.support.topic_log_cases import fresh_name

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def topic() -> str:
    return fresh_name("shared")


@contextmanager
def gateway(broker: str, state: Path, **settings: object) -> Iterator[Address]:
    config = settings_of(settings)
    source = TopicSource.of_cluster(KafkaOptions.parse({"bootstrap.servers": broker}), config)
    with serving(source, str(state), config) as address:
        yield address


def produce(broker: str, topic: str, values: range, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker, **{key.replace("_", "."): one for key, one in settings.items()}})
    for value in values:
        producer.produce(topic, b"%d" % value)
    assert producer.flush(TIMEOUT_S) == 0


def finished(found: ShareConsumer, records: int, seconds: float = 30.0) -> list[int]:
    """The values of so many records, in the order of their delivery; all are accepted."""
    values: list[int] = []
    until = time.monotonic() + seconds
    while len(values) < records and time.monotonic() < until:
        messages = polled(found, max(0.0, until - time.monotonic()))
        for message in messages:
            found.acknowledge(message, ACCEPT)
        values += [int(message.value() or b"") for message in messages]
        refuse_errors(found.commit_sync())
    return values


def test_records_of_several_partitions_are_accepted_released_and_rejected(
    broker: str, tmp_path: Path, topic: str
) -> None:
    create_topic(broker, topic, partitions=3)
    produce(broker, topic, range(3_000))
    seen: Counter[int] = Counter()

    def answer(message: Message) -> AcknowledgeType:
        value = int(message.value() or b"")
        seen[value] += 1
        if value == 711:
            return REJECT
        return RELEASE if value % 100 == 0 and seen[value] == 1 else ACCEPT

    with gateway(broker, tmp_path) as address, consumer(address, topic=topic) as found:
        said = work_off(found, 3_000, answer)
        produce(broker, topic, range(3_000, 3_100))
        assert sorted(finished(found, 100)) == [*range(3_000, 3_100)]
    assert {value for value, answered in said if answered == RELEASE} == {*range(0, 3_000, 100)}
    assert {value for value, answered in said if answered == REJECT} == {711}
    assert {value for value, answered in said if answered == ACCEPT} == {*range(3_000)} - {711}
    assert max(said.values()) == 1


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_come_through_as_they_are(broker: str, tmp_path: Path, topic: str, compression: str) -> None:
    create_topic(broker, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker, "compression.type": compression, "linger.ms": 50})
    headers = [("trace", b"\x00\xff"), ("none", None), ("trace", b"again")]
    for number in range(500):
        key = None if number % 2 else b"key %d" % number
        producer.produce(topic, b"value " * 20, key, timestamp=1_000_000 + number, headers=headers)
    producer.produce(topic, None, b"tombstone", timestamp=7)
    assert producer.flush(TIMEOUT_S) == 0
    found: list[Message] = []
    with gateway(broker, tmp_path) as address, consumer(address, topic=topic) as client:
        while len(found) < 501:
            messages = polled(client)
            assert messages, f"{len(found)} records have come"
            found += messages
            for message in messages:
                client.acknowledge(message, ACCEPT)
    assert [message.offset() for message in found] == [*range(501)]
    assert [message.key() for message in found[:3]] == [b"key 0", None, b"key 2"]
    assert {message.value() for message in found[:-1]} == {b"value " * 20}
    assert all(message.headers() == headers for message in found[:-1])
    assert [message.timestamp()[1] for message in found] == [*range(1_000_000, 1_000_500), 7]
    assert (found[-1].key(), found[-1].value()) == (b"tombstone", None)


def transact(broker: str, topic: str, values: range, *, commits: bool) -> None:
    producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid4().hex, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, b"%d" % value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    (producer.commit_transaction if commits else producer.abort_transaction)(TIMEOUT_S)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_records_of_transactions_by_the_isolation_level(broker: str, tmp_path: Path, topic: str, level: str) -> None:
    create_topic(broker, topic, partitions=1)
    produce(broker, topic, range(10))
    transact(broker, topic, range(10, 20), commits=False)
    transact(broker, topic, range(20, 30), commits=True)
    produce(broker, topic, range(30, 40))
    transact(broker, topic, range(40, 50), commits=False)
    wanted = [*range(10), *range(20, 40)] if level == "read_committed" else [*range(50)]
    with gateway(broker, tmp_path, share__isolation__level=level) as address, consumer(address, topic=topic) as found:
        assert finished(found, len(wanted)) == wanted
        assert polled(found, 1) == []
        transact(broker, topic, range(50, 60), commits=True)
        assert finished(found, 10) == [*range(50, 60)]
        wait_until(lambda: start_offset(tmp_path) == 64)  # of 60 records and 4 marks


def start_offset(state: Path) -> int:
    (row,) = ShareGroupAdmin(str(state)).describe_offsets(GROUP)
    return row.start_offset


def test_records_of_an_open_transaction_come_once_it_is_committed(broker: str, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid4().hex, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"0", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    produce(broker, topic, range(1, 5))
    settings = {"share__isolation__level": "read_committed"}
    with gateway(broker, tmp_path, **settings) as address, consumer(address, topic=topic) as found:
        assert polled(found, 2) == []
        producer.commit_transaction(TIMEOUT_S)
        assert finished(found, 5) == [*range(5)]


def test_a_client_goes_on_at_the_start_of_a_log_that_has_moved(broker: str, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=1)
    produce(broker, topic, range(200), linger_ms=0, batch_num_messages=10)
    with gateway(broker, tmp_path) as address, consumer(address, topic=topic) as found:
        first = polled(found)
        assert first[0].offset() == 0
        trim(broker, topic, 150)
        for message in first:
            found.acknowledge(message, RELEASE)
        found.commit_sync()
        rest = finished(found, 50)
    assert rest[-50:] == [*range(150, 200)]
    assert not set(rest[:-50]) & set(range(150, 200))


def test_a_client_that_waits_at_the_end_of_a_log_that_is_emptied_gets_what_comes(
    broker: str, tmp_path: Path, topic: str
) -> None:
    create_topic(broker, topic, partitions=1)
    produce(broker, topic, range(20))
    settings = {"share__auto__offset__reset": "latest"}
    with gateway(broker, tmp_path, **settings) as address, consumer(address, topic=topic) as found:
        assert polled(found, 2) == []
        trim(broker, topic, 20)
        produce(broker, topic, range(20, 30))
        assert finished(found, 10) == [*range(20, 30)]


def trim(broker: str, topic: str, offset: int) -> None:
    """Deletes the records below."""
    admin = AdminClient({"bootstrap.servers": broker})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(TIMEOUT_S)
