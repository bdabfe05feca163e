"""Output to a Kafka topic: real brokers, real kills, and a reader that drops repeats."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from share_spark import Ack, ConfigError, DeadLetters, EmbeddedTopicLog, HandlerError, Record, ShareGroup, TopicError
from share_spark import Message as Appended
from tests.kafka.test_broker import TIMEOUT_S, create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def bill(record: Record) -> Any:
    """Two messages for a record; the ninth one is released once."""
    if record.value == b"9" and record.delivery_count == 1:
        return Ack.RELEASE
    value = (record.value or b"").decode()
    return Ack.ACCEPT, [f"bill {value}", {"value": f"copy {value}", "key": value, "headers": {"kind": "copy"}}]


async def bill_later(record: Record) -> Any:
    return bill(record)


async def bill_all(records: list[Record]) -> Any:
    return [bill(record) for record in records]


def read(broker: str, topic: str) -> list[Message]:
    """All messages that are in the topic now."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "reader", "enable.partition.eof": True})
    try:
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        ends = 0
        while ends < len(partitions):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if message.error() is None:
                found.append(message)
            else:
                ends += 1
        return found
    finally:
        consumer.close()


def headers(message: Message) -> dict[str, str]:
    found: Any = message.headers() or ()
    return {name: value.decode() for name, value in found if name.startswith("share_spark.")}


def identity(message: Message) -> tuple[str, ...]:
    """What is the same for all repeats of a message."""
    told = headers(message)
    return tuple(told[f"share_spark.{name}"] for name in ("group", "topic", "partition", "offset", "row"))


def group(spark: SparkSession, place: Path, broker: str, topic: str, handler: Callable[..., Any], **more: Any) -> Any:
    found = ShareGroup("billing", spark=spark, state=str(place / "state")).kafka(broker).subscribe(topic)
    found = found.process(handler, **more).option("share.auto.offset.reset", "earliest")
    return found.dead_letter(str(place / "letters")).trigger(availableNow=True)


@pytest.mark.parametrize(
    ("handler", "settings"),
    [(bill, {}), (bill_later, {}), (bill, {"threads": 4}), (bill_all, {"batch": 5})],
    ids=["function", "async", "threads", "list"],
)
def test_messages_arrive_once_and_tell_their_records(
    spark: SparkSession, tmp_path: Path, broker: str, handler: Any, settings: dict[str, Any]
) -> None:
    topic = f"orders-{tmp_path.name}"[-60:]
    create_topic(broker, topic, partitions=3)
    create_topic(broker, f"{topic}-out", partitions=2)
    produce(broker, topic, [b"%d" % number for number in range(40)])
    assert (
        group(spark, tmp_path, broker, topic, handler, **settings).to_kafka(f"{topic}-out").start().awaitTermination(90)
    )
    found = read(broker, f"{topic}-out")
    values = Counter((message.value() or b"").decode() for message in found)
    assert values == Counter([*(f"bill {at}" for at in range(40)), *(f"copy {at}" for at in range(40))])
    assert len({identity(message) for message in found}) == 80
    for message in found:
        kind, number = (message.value() or b"").decode().split()
        told = headers(message)
        assert told["share_spark.delivery.count"] == ("2" if number == "9" else "1")
        assert told["share_spark.row"] == ("0" if kind == "bill" else "1")
        assert message.key() == (None if kind == "bill" else number.encode())
        assert ("kind", b"copy") in (message.headers() or []) or kind == "bill"


def test_a_message_that_the_broker_refuses_is_its_records_failure(
    spark: SparkSession, tmp_path: Path, broker: str
) -> None:
    def large(record: Record) -> Any:
        sizes = {3: {"value": b"x" * 10_000}, 5: {"value": b"", "partition": 7}}
        return Ack.ACCEPT, sizes.get(record.offset, {"value": b"%d" % record.offset, "partition": 0})

    create_topic(broker, "large", partitions=1)
    limited = NewTopic("large-out", 1, 1, config={"max.message.bytes": "2000"})
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([limited])["large-out"].result(TIMEOUT_S)
    produce(broker, "large", [b""] * 10)
    found = group(spark, tmp_path, broker, "large", large).option("share.delivery.count.limit", 2)
    assert found.to_kafka("large-out").start().awaitTermination(90)
    assert {message.value() for message in read(broker, "large-out")} == {
        b"%d" % at for at in range(10) if at not in (3, 5)
    }
    letters = DeadLetters(str(tmp_path / "letters")).letters()
    assert {(one.offset, one.delivery_count) for one in letters} == {(3, 2), (5, 2)}
    assert all("artition" in (one.error or "") or "size" in (one.error or "").lower() for one in letters)


KILLED = """
import os, signal, sys
from share_spark import Ack, ShareGroup, build_session
from share_spark.kafka.message_sender import MessageSender

place, broker, dies = sys.argv[1:4]
send = MessageSender.send

def sent_and_dead(sender, messages):
    send(sender, messages)
    os.kill(os.getpid(), signal.SIGKILL)

if dies == "dies":
    MessageSender.send = sent_and_dead

def bill(record):
    return Ack.ACCEPT, record.value

group = ShareGroup("billing", spark=build_session("bills"), state=f"{place}/state").kafka(broker).subscribe("killed")
group = group.process(bill).to_kafka("killed-out").trigger(availableNow=True)
group = group.option("share.auto.offset.reset", "earliest").option("share.record.lock.duration.ms", 1000)
group.start().awaitTermination()
"""


@pytest.mark.slow
def test_after_a_kill_between_messages_and_acknowledgements_repeats_can_be_dropped(tmp_path: Path, broker: str) -> None:
    create_topic(broker, "killed", partitions=1)
    create_topic(broker, "killed-out", partitions=1)
    produce(broker, "killed", [b"%d" % number for number in range(50)])
    for dies, code in (("dies", -signal.SIGKILL), ("dies", -signal.SIGKILL), ("lives", 0)):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), broker, dies], check=False, timeout=180)
        assert done.returncode == code
    found = read(broker, "killed-out")
    assert len(found) == 150, "each of the three has sent all of them"
    once = {identity(message): message.value() for message in found}
    assert sorted(once.values()) == sorted(b"%d" % number for number in range(50))


def test_from_a_table_and_what_is_refused(spark: SparkSession, tmp_path: Path, broker: str) -> None:
    log = EmbeddedTopicLog(spark, f"{tmp_path}/topics")
    log.create_topic("orders", 1)
    log.append("orders", [Appended(b"1", partition=0)])
    create_topic(broker, "from-table", partitions=1)
    base = ShareGroup("billing", spark=spark, state=f"{tmp_path}/state").table(f"{tmp_path}/topics").subscribe("orders")
    base = base.option("share.auto.offset.reset", "earliest").trigger(availableNow=True)
    with pytest.raises(ConfigError, match="to_kafka: a table of topics has no cluster: give bootstrap_servers"):
        base.process(bill).to_kafka("from-table").start()
    with pytest.raises(ConfigError, match="choose one"):
        base.process(bill).to_kafka("from-table", broker).to_delta(f"{tmp_path}/bills").start()
    with pytest.raises(HandlerError, match="output= has to be left out"):
        base.process(bill, output="id bigint").to_kafka("from-table", broker).start()
    with pytest.raises(TopicError, match="no-such-topic"):
        base.process(bill).to_kafka("no-such-topic", broker).start()
    with pytest.raises(ConfigError, match="needs bootstrap_servers"):
        base.to_kafka("from-table", security_protocol="SSL")
    assert base.process(bill).to_kafka("from-table", broker).start().awaitTermination(60)
    assert [message.value() for message in read(broker, "from-table")] == [b"bill 1", b"copy 1"]
