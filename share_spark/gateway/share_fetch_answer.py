"""The answer to a ShareFetch, and its bytes: those of ``kio``'s writer, some thirty times as fast.

Records are not copied: they stay the buffers that they came in, and the answer is a list of buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import starmap
from typing import NamedTuple
from uuid import UUID

from share_spark.topics.varints import unsigned_varint

Buffer = bytes | memoryview

_NULL = b"\x00"
"""A text that is null; and the end of each struct: it has no tagged fields."""

_TOP = struct.Struct(">ih")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ERROR = struct.Struct(">ih")
_LEADER = struct.Struct(">iix")
_WITHOUT_MESSAGES = struct.Struct(">ihxhxiix")
"""All of a partition before its records, if no error has a message: ``x`` are texts that are null, and the end of the
leader."""

_ACQUIRED = struct.Struct(">qqhx")


class AcquiredRange(NamedTuple):
    """Offsets that the member has acquired, ``last_offset`` inclusive, all with the same delivery count."""

    first_offset: int
    last_offset: int
    delivery_count: int


class FetchedPartition(NamedTuple):
    """The answer for one partition. ``records``: record batches, in one buffer or several."""

    partition: int
    records: Sequence[Buffer] = ()
    acquired: Sequence[AcquiredRange] = ()
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    leader_id: int = 0
    leader_epoch: int = 0


class FetchedTopic(NamedTuple):
    """The answers for partitions of one topic."""

    topic_id: UUID
    partitions: Sequence[FetchedPartition]


class NodeEndpoint(NamedTuple):
    """A node that leads partitions which the client has asked elsewhere for."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ShareFetchAnswer(NamedTuple):
    """The answer to a ShareFetch of version 1 or 2, which are the same in their answers."""

    topics: Sequence[FetchedTopic] = ()
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()
    throttle_time_ms: int = 0


def share_fetch_buffers(answer: ShareFetchAnswer) -> list[Buffer]:
    """Return the bytes of the answer without its header, in buffers that are to be sent one after the other."""
    buffers: list[Buffer] = [_top(answer)]
    for topic_id, partitions in answer.topics:
        buffers += (topic_id.bytes, unsigned_varint(len(partitions) + 1))
        for partition in partitions:
            records, acquired = partition.records, partition.acquired
            buffers += (_before_records(partition), unsigned_varint(sum(map(len, records)) + 1))
            buffers += records
            buffers += (unsigned_varint(len(acquired) + 1), *starmap(_ACQUIRED.pack, acquired), _NULL)
        buffers.append(_NULL)
    buffers.append(_end(answer.node_endpoints))
    return buffers


def _top(answer: ShareFetchAnswer) -> bytes:
    return b"".join(
        (
            _TOP.pack(answer.throttle_time_ms, answer.error_code),
            _text(answer.error_message),
            _INT32.pack(answer.acquisition_lock_timeout_ms),
            unsigned_varint(len(answer.topics) + 1),
        )
    )


def _before_records(partition: FetchedPartition) -> bytes:
    number, _, _, error, message, acknowledge_error, acknowledge_message, leader_id, leader_epoch = partition
    if message is acknowledge_message is None:
        return _WITHOUT_MESSAGES.pack(number, error, acknowledge_error, leader_id, leader_epoch)
    return b"".join(
        (
            _ERROR.pack(number, error),
            _text(message),
            _INT16.pack(acknowledge_error),
            _text(acknowledge_message),
            _LEADER.pack(leader_id, leader_epoch),
        )
    )


def _end(nodes: Sequence[NodeEndpoint]) -> bytes:
    parts = [unsigned_varint(len(nodes) + 1)]
    for node in nodes:
        parts += (_INT32.pack(node.node_id), _text(node.host), _INT32.pack(node.port), _text(node.rack), _NULL)
    return b"".join(parts) + _NULL


def _text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    content = text.encode()
    return unsigned_varint(len(content) + 1) + content
