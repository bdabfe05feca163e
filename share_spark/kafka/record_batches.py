"""Finds the record batches in what a broker has sent, by their headers; records are neither read nor unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_SIZE = struct.calcsize(">qi")
"""The bytes up to the size in a header and with it, which it does not count."""

_MAGIC = 2
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5


class BatchHeader(NamedTuple):
    """The header of a record batch, and where the batch is: the bytes from ``begin`` up to ``end``.

    ``is_control``: its records are marks of transactions, for no consumer. ``producer_id``: -1 for a producer without
    one.
    """

    begin: int
    end: int
    base_offset: int
    last_offset: int
    is_transactional: bool
    is_control: bool
    producer_id: int


def batch_headers(content: bytes | memoryview) -> Iterator[BatchHeader]:
    """Yield the header of each batch that is whole: a broker cuts the last one where the answer is full.

    Raises ValueError for what is no batch of version 2, as brokers send them for topics that
    no Kafka before 0.11 has written.
    """
    begin = 0
    while begin + _HEADER.size <= len(content):
        base_offset, size, _, magic, _, attributes, last_delta, _, _, producer_id, *_ = _HEADER.unpack_from(
            content, begin
        )
        end = begin + _BEFORE_SIZE + size
        if magic != _MAGIC or end < begin + _HEADER.size:
            raise ValueError(f"no record batch of version 2 at byte {begin}")
        if end > len(content):
            return
        is_transactional, is_control = bool(attributes & _TRANSACTIONAL), bool(attributes & _CONTROL)
        yield BatchHeader(begin, end, base_offset, base_offset + last_delta, is_transactional, is_control, producer_id)
        begin = end
