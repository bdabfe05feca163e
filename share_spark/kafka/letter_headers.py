"""Headers with the origin of a dead letter, and its reason: those of KIP-1191, of Spring for Apache Kafka
(``KafkaHeaders.DLT_*``, as its ``DeadLetterPublishingRecoverer`` writes them) and the plain ``x-original-topic``, so
that tools for either work.

KIP-1191's values are text. Spring's partition is an int of 4 bytes, its offset and timestamp (milliseconds since the
epoch) are longs of 8 bytes, big endian; its topic and message are UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Headers = Sequence[tuple[str, bytes | None]]

HEADER_PREFIX = "__dlq.errors."
"""The prefix of KIP-1191: ``__dlq.errors.topic``, ``.partition``, ``.offset``, ``.group``, …"""

SPRING_TOPIC = "kafka_dlt-original-topic"
SPRING_PARTITION = "kafka_dlt-original-partition"
SPRING_OFFSET = "kafka_dlt-original-offset"
SPRING_TIMESTAMP = "kafka_dlt-original-timestamp"
SPRING_MESSAGE = "kafka_dlt-exception-message"
ORIGINAL_TOPIC = "x-original-topic"

INT_BYTES, LONG_BYTES = 4, 8


class Origin(NamedTuple):
    """The origin of a dead letter. ``timestamp_ms``: of the record; ``message``: the last error, else the reason."""

    group_id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    delivery_count: int
    message: str


def origin_headers(origin: Origin) -> list[tuple[str, bytes]]:
    """Return the headers, in their order behind a record's own."""
    texts = {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "group": origin.group_id,
        "delivery.count": origin.delivery_count,
        "message": origin.message,
    }
    return [
        *((f"{HEADER_PREFIX}{name}", str(value).encode()) for name, value in texts.items()),
        (SPRING_TOPIC, origin.topic.encode()),
        (SPRING_PARTITION, origin.partition.to_bytes(INT_BYTES)),
        (SPRING_OFFSET, origin.offset.to_bytes(LONG_BYTES)),
        (SPRING_TIMESTAMP, origin.timestamp_ms.to_bytes(LONG_BYTES, signed=True)),
        (SPRING_MESSAGE, origin.message.encode()),
        (ORIGINAL_TOPIC, origin.topic.encode()),
    ]
