"""Frames of Kafka's protocol: four bytes of length, a header, a message."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import NamedTuple

from kio.serial import entity_writer
from kio.static.protocol import RequestPayload, ResponsePayload

from share_spark.gateway.apis import request_type
from share_spark.gateway.message_reader import MalformedRequestError, read_message, skip_tagged_fields
from share_spark.gateway.share_fetch_answer import Buffer, ShareFetchAnswer, share_fetch_buffers


class PassedAnswer(NamedTuple):
    """The answer of another gateway to the same frame, with its header."""

    frame: bytes


Answer = ResponsePayload | ShareFetchAnswer | PassedAnswer
"""An answer of a handler: that of ShareFetch has a type of its own, and all others that are not passed on are the
classes of ``kio``."""

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_TEXT_LENGTH = struct.Struct(">h")


class FrameSplitter:
    """The frames in what a connection has received."""

    def __init__(self, most_bytes: int) -> None:
        """Begin without bytes. ``most_bytes``: of one frame, without its length."""
        self.most_bytes = most_bytes
        self._received = bytearray()

    def add(self, some: bytes) -> None:
        """Add bytes that have arrived."""
        self._received += some

    def next(self) -> bytes | None:
        """Take the next frame, without its length; None: it is not complete. Raises MalformedRequestError: it is too
        long, or its length is negative."""
        received = self._received
        if len(received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(received)
        if not 0 <= length <= self.most_bytes:
            raise MalformedRequestError(f"a frame claims to have {length} bytes; at most {self.most_bytes} are read")
        end = _LENGTH.size + length
        if len(received) < end:
            return None
        frame = bytes(received[_LENGTH.size : end])
        del received[:end]
        return frame

    @property
    def waiting_bytes(self) -> int:
        """The bytes that are in no frame taken so far."""
        return len(self._received)


class RequestHead(NamedTuple):
    """The beginning of each frame, the same in all versions of all requests."""

    api_key: int
    api_version: int
    correlation_id: int


class Request(NamedTuple):
    """A request. ``client_id``: as the client calls itself, None if it does not."""

    client_id: str | None
    message: RequestPayload


def read_head(frame: bytes) -> RequestHead:
    """Read the beginning of a frame. Raises MalformedRequestError."""
    if len(frame) < _HEAD.size:
        raise MalformedRequestError("a frame is shorter than a header")
    return RequestHead._make(_HEAD.unpack_from(frame))


def read_request(frame: bytes, head: RequestHead) -> Request:
    """Read a frame that begins with ``head``. Raises MalformedRequestError, for a request that is not served too."""
    kind = request_type(head.api_key, head.api_version)
    try:
        client_id, end = _client_id(frame)
        if kind.__header_schema__.__flexible__:
            end = skip_tagged_fields(frame, end)
    except (struct.error, IndexError):
        raise MalformedRequestError("the header is cut") from None
    return Request(client_id, read_message(kind, frame, end))


def _client_id(frame: bytes) -> tuple[str | None, int]:
    """Read the client's name, which has a length of two bytes in all versions of the header."""
    (length,) = _TEXT_LENGTH.unpack_from(frame, _HEAD.size)
    begin = _HEAD.size + _TEXT_LENGTH.size
    if length < 0:
        return None, begin
    end = begin + length
    if end > len(frame):
        raise MalformedRequestError("the header is cut")
    return str(frame[begin:end], "utf-8", "replace"), end


def answer_frame(correlation_id: int, answer: Answer) -> list[Buffer]:
    """Return the frame of an answer, in buffers that are to be sent one after the other."""
    if isinstance(answer, PassedAnswer):
        return [_LENGTH.pack(len(answer.frame)), answer.frame]
    if isinstance(answer, ShareFetchAnswer):
        header, buffers = _header(correlation_id, is_flexible=True), share_fetch_buffers(answer)
    else:
        content = BytesIO()
        entity_writer(type(answer))(content, answer)
        header = _header(correlation_id, is_flexible=answer.__header_schema__.__flexible__)
        buffers = [content.getvalue()]
    length = len(header) + sum(map(len, buffers))
    return [_LENGTH.pack(length) + header, *buffers]


def _header(correlation_id: int, *, is_flexible: bool) -> bytes:
    # A flexible header ends with the number of its tagged fields. That of ApiVersions never is flexible: its reader
    # does not know yet what the server supports.
    return _LENGTH.pack(correlation_id) + (b"\x00" if is_flexible else b"")
