"""The broker under test is real: it keeps records, and has share groups."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

TIMEOUT_S = 30


def create_topic(broker: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)


def produce(broker: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def values_of(messages: list[Message]) -> set[bytes]:
    assert [message.error() for message in messages if message.error()] == []
    return {message.value() for message in messages}


def test_records_come_back(broker: str) -> None:
    create_topic(broker, "plain", partitions=2)
    sent = [b"%d" % number for number in range(100)]
    produce(broker, "plain", sent)
    group = {"group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": broker, **group})
    try:
        consumer.subscribe(["plain"])
        assert values_of(consumer.consume(len(sent), timeout=TIMEOUT_S)) == set(sent)
    finally:
        consumer.close()


def start_at_earliest(broker: str, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_share_groups_are_on(broker: str) -> None:
    create_topic(broker, "shared", partitions=1)
    produce(broker, "shared", [b"one", b"two"])
    start_at_earliest(broker, "sharers")
    consumer = ShareConsumer({"bootstrap.servers": broker, "group.id": "sharers"})
    try:
        consumer.subscribe(["shared"])
        received: set[bytes] = set()
        for _ in range(TIMEOUT_S):
            received |= values_of(consumer.poll(timeout=1.0))
            if len(received) == 2:
                break
        assert received == {b"one", b"two"}
    finally:
        consumer.close()
