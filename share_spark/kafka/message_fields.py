"""Kafka's own encoding of requests and answers (the flexible form of KIP-482): how fields are written and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


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

    def byte_string(self) -> bytes | None:
        length = self.unsigned() - 1
        return None if length < 0 else self._take(length)

    def string(self) -> str | None:
        content = self.byte_string()
        return None if content is None else content.decode(errors="replace")

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


NO_TAGS = b"\0"


def unsigned(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def byte_string(content: bytes) -> bytes:
    """With its length before it."""
    return unsigned(len(content) + 1) + content


def string(text: str) -> bytes:
    """In UTF-8."""
    return byte_string(text.encode())


def array_of(parts: Sequence[bytes]) -> bytes:
    """With their number before them."""
    return unsigned(len(parts) + 1) + b"".join(parts)
