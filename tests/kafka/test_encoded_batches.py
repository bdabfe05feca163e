"""Record batches of our encoder, read by a broker, which checks them, and by Kafka's share consumer in Java."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from kio.schema.fetch.v12 import FetchRequest, FetchResponse
from kio.schema.fetch.v12.request import FetchPartition, FetchTopic
from kio.schema.produce.v9 import ProduceRequest, ProduceResponse
from kio.schema.produce.v9.request import PartitionProduceData, TopicProduceData

from share_spark.engine.batch_reader import RecordBatch
from share_spark.kafka.broker_connection import Address, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.record_batches import batch_headers
from share_spark.topics.batch_encoder import encode_batches
from tests.kafka.test_broker import TIMEOUT_S, create_topic
from tests.support.broker import kafka_tool
from tests.support.record_batches import Record, decoded
from tests.support.topic_handler import TopicHandler, served
from tests.unit.topics.test_batch_encoder import arrow

NOW_MS = 1_700_000_000_000
IN_TIME = timedelta(seconds=TIMEOUT_S)
FETCHED_BYTES = 1 << 19


def rows(gap: int) -> list[Record]:
    """Records with contents of every kind. ``gap``: between their offsets; a log without gaps has 1."""
    keys, values = [None, b"", b"key"], [b"value", None, b"", b"x" * 20_000]
    headers = [[], [("h", b"1"), ("h", None)], [("\u00e4", b"")]]
    return [
        Record(gap * number, NOW_MS - 7 * number, keys[number % 3], values[number % 4], headers[number % 3])
        for number in range(300)
    ]


def address_of(broker: str) -> Address:
    host, _, port = broker.rpartition(":")
    return Address(host, int(port))


def append(broker: str, topic: str, batches: Sequence[RecordBatch]) -> None:
    """One request for each, as a broker wants it."""
    with connected(address_of(broker), BrokerLogin(), TIMEOUT_S) as connection:
        for batch in batches:
            # A producer's batch begins at 0; the checksum begins behind that number.
            data = PartitionProduceData(index=0, records=bytes(8) + batch.content[8:])
            topics = (TopicProduceData(name=topic, partition_data=(data,)),)
            request = ProduceRequest(transactional_id=None, acks=-1, timeout=IN_TIME, topic_data=topics)
            (answer,) = connection.ask(request, ProduceResponse).responses
            (of_partition,) = answer.partition_responses
            assert of_partition.error_code == 0, of_partition


def fetched(broker: str, topic: str) -> bytes:
    """The bytes of the partition from its beginning."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=FETCHED_BYTES)
    request = FetchRequest(
        max_wait=IN_TIME,
        min_bytes=1,
        max_bytes=FETCHED_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    with connected(address_of(broker), BrokerLogin(), TIMEOUT_S) as connection:
        (answer,) = connection.ask(request, FetchResponse).responses
    return answer.partitions[0].records or b""


def consumed(broker: str, topic: str, count: int) -> list[Record]:
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "anyone"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=TIMEOUT_S)
    finally:
        consumer.close()
    return [
        Record(each.offset(), each.timestamp()[1], each.key(), each.value(), each.headers() or []) for each in messages
    ]


def test_a_broker_takes_encoded_batches_and_a_consumer_reads_their_records(broker: str) -> None:
    create_topic(broker, "encoded", partitions=1)
    batches = list(encode_batches(arrow(rows(gap=1))))
    assert len(batches) > 10
    append(broker, "encoded", batches)
    assert consumed(broker, "encoded", 300) == rows(gap=1)


def test_headers_of_batches_are_found_in_what_a_broker_sends(broker: str) -> None:
    create_topic(broker, "headed", partitions=1)
    batches = list(encode_batches(arrow(rows(gap=1))))
    append(broker, "headed", batches)
    content = fetched(broker, "headed")
    headers = list(batch_headers(content))
    # The broker has cut the last batch where the answer is full.
    assert headers[-1].end < len(content) == FETCHED_BYTES
    assert [(header.base_offset, header.last_offset) for header in headers] == [
        batch[:2] for batch in batches[: len(headers)]
    ]
    records = [record for header in headers for record in decoded(content[header.begin : header.end]).records]
    assert records == rows(gap=1)[: len(records)]


def test_the_share_consumer_in_java_reads_what_the_gateway_sends(tmp_path: Path) -> None:
    expected = rows(gap=3)
    handler = TopicHandler("t", {0: list(encode_batches(arrow(expected)))})
    with served(handler) as bootstrap:
        tool = kafka_tool(tmp_path, "org.apache.kafka.tools.consumer.ConsoleShareConsumer")
        arguments = ["--bootstrap-server", bootstrap, "--topic", "t", "--group", "g", "--max-messages", "300"]
        done = subprocess.run([*tool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    printed = ["null" if record.value is None else record.value.decode() for record in expected]
    assert done.stdout.splitlines() == printed, done.stderr
