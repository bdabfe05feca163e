"""The headers of a dead letter, byte by byte."""

from __future__ import annotations

from share_spark.kafka.letter_headers import Origin, origin_headers


def test_each_header_in_its_own_encoding() -> None:
    """KIP-1191: text. Spring: an int of 4 bytes, longs of 8 bytes, big endian."""
    origin = Origin("billing", "orders", 3, 42, 1_767_323_045_000, 5, "ValueError: no such city")
    assert origin_headers(origin) == [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"42"),
        ("__dlq.errors.group", b"billing"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"ValueError: no such city"),
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", b"\0\0\0\3"),
        ("kafka_dlt-original-offset", b"\0\0\0\0\0\0\0\x2a"),
        ("kafka_dlt-original-timestamp", b"\x00\x00\x01\x9b\x7c\xa9\x8c\x88"),
        ("kafka_dlt-exception-message", b"ValueError: no such city"),
        ("x-original-topic", b"orders"),
    ]


def test_a_record_from_before_1970_has_a_timestamp() -> None:
    origin = Origin("billing", "orders", 0, 0, -1, 1, "rejected")
    assert dict(origin_headers(origin))["kafka_dlt-original-timestamp"] == b"\xff" * 8
