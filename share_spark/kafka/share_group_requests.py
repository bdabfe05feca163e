"""Requests about a cluster's own share groups that librdkafka's admin client does not have: ListGroups for share groups
(16), ShareGroupDescribe (77), DescribeShareGroupOffsets (90). All in their flexible versions of Kafka 4.2; the fields
are those of the broker's own message definitions. Plain TCP only: no TLS, no SASL.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

API_VERSIONS, LIST_GROUPS, DESCRIBE_GROUPS, DESCRIBE_OFFSETS = 18, 16, 77, 90
VERSIONS = {API_VERSIONS: 3, LIST_GROUPS: 5, DESCRIBE_GROUPS: 1, DESCRIBE_OFFSETS: 1}
"""That are sent. DescribeShareGroupOffsets 1 has the lag (KIP-1226)."""

_CLIENT_ID = b"share-spark"
_MOST_BYTES = 64 << 20
"""Of an answer: what claims to be longer is no Kafka broker."""


class Address(NamedTuple):
    """Of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class AnswerFields:
    """Reads fields from the bytes of an answer, one after the other. Raises ValueError where they end too early."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def int8(self) -> int:
        """A bool, too."""
        return int.from_bytes(self._take(1), signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), signed=True)

    def unsigned(self) -> int:
        """Seven bits a byte, the lowest first."""
        found = shift = 0
        while (byte := self._take(1)[0]) & 0x80:
            found, shift = found | (byte & 0x7F) << shift, shift + 7
        return found | byte << shift

    def string(self) -> str | None:
        length = self.unsigned() - 1
        return None if length < 0 else self._take(length).decode(errors="replace")

    def uuid(self) -> bytes:
        return self._take(16)

    def tags(self) -> None:
        """None of them is of interest."""
        for _ in range(self.unsigned()):
            self.unsigned()
            self._take(self.unsigned())

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._content):
            raise ValueError("the answer is cut")
        found, self._at = self._content[self._at : end], end
        return found


Field = Callable[[AnswerFields], Any]


def struct(**fields: Field) -> Field:
    """By name, in the order in which they are sent; tagged fields end it."""

    def read(answer: AnswerFields) -> dict[str, Any]:
        found = {name: field(answer) for name, field in fields.items()}
        answer.tags()
        return found

    return read


def array(field: Field) -> Field:
    """Null is empty."""
    return lambda answer: [field(answer) for _ in range(answer.unsigned() - 1)]


_FAULT = {"error": AnswerFields.int16, "message": AnswerFields.string}
_ASSIGNED = struct(topic_id=AnswerFields.uuid, topic=AnswerFields.string, partitions=array(AnswerFields.int32))
_MEMBER = struct(
    member_id=AnswerFields.string,
    rack=AnswerFields.string,
    epoch=AnswerFields.int32,
    client_id=AnswerFields.string,
    host=AnswerFields.string,
    topics=array(AnswerFields.string),
    assignment=struct(assigned=array(_ASSIGNED)),
)
_GROUP = struct(
    **_FAULT,
    group_id=AnswerFields.string,
    state=AnswerFields.string,
    epoch=AnswerFields.int32,
    assignment_epoch=AnswerFields.int32,
    assignor=AnswerFields.string,
    members=array(_MEMBER),
    operations=AnswerFields.int32,
)
_PARTITION = struct(
    partition=AnswerFields.int32,
    start_offset=AnswerFields.int64,
    leader_epoch=AnswerFields.int32,
    lag=AnswerFields.int64,
    **_FAULT,
)
_TOPIC = struct(topic=AnswerFields.string, topic_id=AnswerFields.uuid, partitions=array(_PARTITION))

_ANSWERS: dict[int, Field] = {
    API_VERSIONS: lambda answer: {
        "error": answer.int16(),
        "versions": array(struct(key=AnswerFields.int16, least=AnswerFields.int16, most=AnswerFields.int16))(answer),
    },
    LIST_GROUPS: struct(
        throttle_ms=AnswerFields.int32,
        error=AnswerFields.int16,
        groups=array(
            struct(
                group_id=AnswerFields.string,
                protocol=AnswerFields.string,
                state=AnswerFields.string,
                kind=AnswerFields.string,
            )
        ),
    ),
    DESCRIBE_GROUPS: struct(throttle_ms=AnswerFields.int32, groups=array(_GROUP)),
    DESCRIBE_OFFSETS: struct(
        throttle_ms=AnswerFields.int32,
        groups=array(struct(group_id=AnswerFields.string, topics=array(_TOPIC), **_FAULT)),
    ),
}


def asked_versions() -> bytes:
    """The body of ApiVersions."""
    return _string("share-spark") + _string("0") + _NO_TAGS


def asked_groups() -> bytes:
    """The body of ListGroups: share groups in any state."""
    return _array([]) + _array([_string("share")]) + _NO_TAGS


def asked_descriptions(group_ids: Iterable[str]) -> bytes:
    """The body of ShareGroupDescribe."""
    return _array(list(map(_string, group_ids))) + b"\0" + _NO_TAGS


def asked_offsets(group_ids: Iterable[str]) -> bytes:
    """The body of DescribeShareGroupOffsets: of all topics."""
    all_topics = _unsigned(0)
    return _array([_string(group_id) + all_topics + _NO_TAGS for group_id in group_ids]) + _NO_TAGS


_NO_TAGS = b"\0"


def _unsigned(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def _string(text: str) -> bytes:
    content = text.encode()
    return _unsigned(len(content) + 1) + content


def _array(parts: Sequence[bytes]) -> bytes:
    return _unsigned(len(parts) + 1) + b"".join(parts)


def ask(broker: Address, key: int, body: bytes, timeout_s: float) -> dict[str, Any]:
    """The answer to one request, on a connection of its own. Raises OSError, and ValueError for an answer that is none
    of a Kafka broker."""
    with socket.create_connection(broker, timeout=timeout_s) as connection:
        head = key.to_bytes(2) + VERSIONS[key].to_bytes(2) + _CORRELATION
        head += len(_CLIENT_ID).to_bytes(2) + _CLIENT_ID + _NO_TAGS
        connection.sendall(len(head + body).to_bytes(4) + head + body)
        size = int.from_bytes(_received(connection, 4))
        if size > _MOST_BYTES:
            raise ValueError("the answer is too long")
        content = _received(connection, size)
    answer = AnswerFields(content.removeprefix(_CORRELATION))
    if key != API_VERSIONS:  # its answer begins without, so that old clients understand it
        answer.tags()
    found: dict[str, Any] = _ANSWERS[key](answer)
    return found


_CORRELATION = (4711).to_bytes(4)


def _received(connection: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        some = connection.recv(min(length - len(found), 1 << 20))
        if not some:
            raise ConnectionError("it has closed the connection")
        found += some
    return found
