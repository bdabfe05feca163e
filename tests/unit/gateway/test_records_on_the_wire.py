"""librdkafka's share consumer, unmodified, through the server: what it is sent it reads, and acknowledges."""

from __future__ import annotations

import time

from confluent_kafka import ShareConsumer

from share_spark.topics.batch_encoder import encode_batches
from tests.support.record_batches import Record
from tests.support.topic_handler import TopicHandler, served
from tests.unit.topics.test_batch_encoder import arrow

GIVE_UP_S = 30.0
GAP, ACCEPT = 0, 1
LARGE = b"x" * 300_000


def rows(partition: int) -> list[Record]:
    """Records with gaps between their offsets, and contents of every kind."""
    values = [None, b"", b"value", LARGE]
    return [
        Record(
            offset=3 * number + partition,
            timestamp_ms=1_700_000_000_000 + number * (-1) ** number,
            key=None if number % 3 else b"key %d" % number,
            value=values[number % 3 if number % 50 else 3],
            headers=[("a", b"%d" % number), ("ä", None)] if number % 7 == 0 else [],
        )
        for number in range(1000)
    ]


def polled(consumer: ShareConsumer, count: int) -> list[tuple[int, Record]]:
    """``count`` records with their partitions, or those that arrive in time."""
    found: list[tuple[int, Record]] = []
    end = time.monotonic() + GIVE_UP_S
    while len(found) < count and time.monotonic() < end:
        for message in consumer.poll(0.2) or ():
            assert message.error() is None
            _, timestamp_ms = message.timestamp()
            record = Record(message.offset(), timestamp_ms, message.key(), message.value(), message.headers() or [])
            found.append((message.partition(), record))
    return found


def test_records_arrive_as_they_are_and_are_acknowledged() -> None:
    expected = {partition: rows(partition) for partition in range(3)}
    handler = TopicHandler("t", {number: list(encode_batches(arrow(some))) for number, some in expected.items()})
    with served(handler) as bootstrap:
        consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
        try:
            consumer.subscribe(["t"])
            found = polled(consumer, sum(map(len, expected.values())))
        finally:
            consumer.close()
    assert {number: [record for where, record in found if where == number] for number in expected} == expected
    records = {(partition, record.offset) for partition, some in expected.items() for record in some}
    assert handler.acknowledged_as(ACCEPT) <= records
    # What the last poll has returned is not acknowledged by close().
    assert len(handler.acknowledged_as(ACCEPT)) > len(records) / 2
    assert handler.acknowledged_as(GAP)
    assert not handler.acknowledged_as(GAP) & records
