"""A decoder of Kafka's record batches that knows nothing of ours: bit by bit, with a checksum of its own."""

from __future__ import annotations

from io import BytesIO
from typing import NamedTuple

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    max_timestamp_ms: int
    producer: tuple[int, int, int]
    records: list[Record]


def decoded(content: bytes) -> Batch:
    """Exactly one batch."""
    read = BytesIO(content)
    base_offset, length, leader_epoch = number(read, 8), number(read, 4), number(read, 4)
    assert length == len(content) - 12
    assert number(read, 1) == 2
    assert number(read, 4) % (1 << 32) == checksum(content[read.tell() :])
    attributes, last_delta = number(read, 2), number(read, 4)
    base_ms, max_ms = number(read, 8), number(read, 8)
    producer = (number(read, 8), number(read, 2), number(read, 4))
    records = [record(read, base_offset, base_ms) for _ in range(number(read, 4))]
    assert read.read() == b""
    return Batch(base_offset, base_offset + last_delta, leader_epoch, attributes, max_ms, producer, records)


def record(read: BytesIO, base_offset: int, base_ms: int) -> Record:
    length = zigzag(read)
    end = read.tell() + length
    assert number(read, 1) == 0
    timestamp_ms, offset = base_ms + zigzag(read), base_offset + zigzag(read)
    key, value = sized(read), sized(read)
    headers = [((sized(read) or b"").decode(), sized(read)) for _ in range(zigzag(read))]
    assert read.tell() == end
    return Record(offset, timestamp_ms, key, value, headers)


def number(read: BytesIO, size: int) -> int:
    return int.from_bytes(read.read(size), "big", signed=True)


def sized(read: BytesIO) -> bytes | None:
    size = zigzag(read)
    return None if size == -1 else read.read(size)


def zigzag(read: BytesIO) -> int:
    bits = ""
    while True:
        byte = f"{read.read(1)[0]:08b}"
        bits = byte[1:] + bits
        if byte[0] == "0":
            break
    value = int(bits, 2)
    return -(value + 1) // 2 if value % 2 else value // 2


def checksum(content: bytes) -> int:
    """CRC-32C, bit by bit (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
