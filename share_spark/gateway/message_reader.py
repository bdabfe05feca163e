"""Reads Kafka's messages by the dataclasses of ``kio``, from bytes that nobody vouches for.

The reader of ``kio`` itself is not used for them: for an array that claims to be long it reserves memory for as many
elements, and the process aborts if there is not enough; an unknown tagged field is an error to it. Here a count that
is larger than the bytes that are left is refused before anything is reserved, unknown tagged fields are skipped as
Kafka's protocol demands, and every fault is a MalformedRequestError.

A reader is made once per class, from its fields: numbers that follow each other are read together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from datetime import timedelta
from functools import cache
from itertools import groupby
from typing import Any, TypeVar
from uuid import UUID

from kio.static.protocol import Entity

from share_spark.gateway.message_fields import shape
from share_spark.model.errors import ErrorCode, ShareError

_Kind = TypeVar("_Kind", bound=Entity)

_Reader = Callable[[bytes, int], tuple[Any, int]]
"""Takes the content and where to begin; returns the value and its end."""

_Step = Callable[[bytes, int, list[Any]], int]
"""Reads some fields of a message, appends their values, and returns the end."""

_NUMBERS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q"}
"""Codes of the module ``struct``."""


class MalformedRequestError(ShareError):
    """The client: it sent bytes that are no request which is served here."""

    code = ErrorCode.INVALID_REQUEST


def read_message(kind: type[_Kind], content: bytes, begin: int) -> _Kind:
    """Read a message that takes all of ``content`` from ``begin`` on. Raises MalformedRequestError."""
    try:
        message, end = _entity(kind)(content, begin)
    except (struct.error, IndexError):
        raise _cut() from None
    except UnicodeDecodeError:
        raise MalformedRequestError("a text is not UTF-8") from None
    if end != len(content):
        raise MalformedRequestError(f"{len(content) - end} bytes follow the message")
    return message  # type: ignore[no-any-return]


def skip_tagged_fields(content: bytes, begin: int) -> int:
    """Return the end of the tagged fields at ``begin``. Raises MalformedRequestError, IndexError: they are cut."""
    count, begin = _varint(content, begin)
    if count > len(content) - begin:
        raise _cut()
    for _ in range(count):
        _, begin = _varint(content, begin)
        size, begin = _varint(content, begin)
        begin += size
        if begin > len(content):
            raise _cut()
    return begin


def _cut() -> MalformedRequestError:
    return MalformedRequestError("the message is cut")


# ---------------------------------------------------------------------------------------------- entities


@cache
def _entity(kind: type[Entity]) -> _Reader:
    names = [field.name for field in fields(kind)]
    steps = tuple(_steps(kind))
    flexible = kind.__flexible__

    def read(content: bytes, begin: int) -> tuple[Entity, int]:
        values: list[Any] = []
        for step in steps:
            begin = step(content, begin, values)
        if flexible:
            begin = skip_tagged_fields(content, begin)
        return kind(**dict(zip(names, values, strict=True))), begin

    return read


def _steps(kind: type[Entity]) -> Iterator[_Step]:
    if any("tag" in field.metadata for field in fields(kind)):
        raise TypeError(f"{kind.__qualname__} has tagged fields, which are only skipped here")
    for is_number, group in groupby(fields(kind), _is_number):
        if is_number:
            yield _numbers("".join(_NUMBERS[field.metadata["kafka_type"]] for field in group))
        else:
            yield from (_one(_field(field, kind.__flexible__)) for field in group)


def _is_number(field: Field[Any]) -> bool:
    return field.metadata.get("kafka_type") in _NUMBERS and not shape(field.type).is_array


def _numbers(codes: str) -> _Step:
    layout = struct.Struct(f">{codes}")
    unpack, size = layout.unpack_from, layout.size

    def step(content: bytes, begin: int, values: list[Any]) -> int:
        values.extend(unpack(content, begin))
        return begin + size

    return step


def _one(read: _Reader) -> _Step:
    def step(content: bytes, begin: int, values: list[Any]) -> int:
        value, end = read(content, begin)
        values.append(value)
        return end

    return step


def _field(field: Field[Any], flexible: bool) -> _Reader:
    """Make the reader of a field that is no number."""
    kind, is_array, optional, element_optional = shape(field.type)
    kafka_type = field.metadata.get("kafka_type")
    if not is_array:
        return (
            _optional_entity(kind) if optional and kafka_type is None else _value(kind, kafka_type, optional, flexible)
        )
    length = _varint_length if flexible else _int32_length
    if kafka_type in _NUMBERS:
        return _number_array(_NUMBERS[kafka_type], length, optional)
    return _array(_value(kind, kafka_type, element_optional, flexible), length, optional)


def _value(kind: Any, kafka_type: str | None, optional: bool, flexible: bool) -> _Reader:
    """Make the reader of an element, or of a field that is no array. ``kafka_type`` None: of a struct."""
    match kafka_type:
        case None:
            return _entity(kind)
        case "string":
            return _text(_varint_length if flexible else _int16_length, optional)
        case "bytes" if not optional:
            return _content(_varint_length if flexible else _int32_length)
        case "uuid":
            return _uuid
        case "timedelta_i32":
            return _duration
        case _:
            raise TypeError(f"fields of the type {kafka_type} are not read here")


def _optional_entity(kind: type[Entity]) -> _Reader:
    """Make the reader of a struct that may be null: a byte before it says so (KIP-893)."""
    entity = _entity(kind)

    def read(content: bytes, begin: int) -> tuple[Any, int]:
        is_null = content[begin] >= 0x80
        return (None, begin + 1) if is_null else entity(content, begin + 1)

    return read


# ------------------------------------------------------------------------------------- arrays and texts


def _array(element: _Reader, length: _Reader, optional: bool) -> _Reader:
    # No element takes less than a byte, so the list cannot become longer than the content.
    def read(content: bytes, begin: int) -> tuple[Any, int]:
        count, begin = length(content, begin)
        if count < 0:
            _check_null(optional)
            return None, begin
        if count > len(content) - begin:
            raise _cut()
        elements = []
        for _ in range(count):
            value, begin = element(content, begin)
            elements.append(value)
        return tuple(elements), begin

    return read


def _number_array(number: str, length: _Reader, optional: bool) -> _Reader:
    width = struct.calcsize(f">{number}")

    def read(content: bytes, begin: int) -> tuple[Any, int]:
        count, begin = length(content, begin)
        if count < 0:
            _check_null(optional)
            return None, begin
        end = begin + count * width
        if end > len(content):
            raise _cut()
        return struct.unpack_from(f">{count}{number}", content, begin), end

    return read


def _text(length: _Reader, optional: bool) -> _Reader:
    def read(content: bytes, begin: int) -> tuple[Any, int]:
        size, begin = length(content, begin)
        if size < 0:
            _check_null(optional)
            return None, begin
        end = begin + size
        if end > len(content):
            raise _cut()
        return str(content[begin:end], "utf-8"), end

    return read


def _content(length: _Reader) -> _Reader:
    def read(content: bytes, begin: int) -> tuple[bytes, int]:
        size, begin = length(content, begin)
        _check_null(size >= 0)
        end = begin + size
        if end > len(content):
            raise _cut()
        return content[begin:end], end

    return read


def _check_null(optional: bool) -> None:
    if not optional:
        raise MalformedRequestError("a field is null that must not be")


# ---------------------------------------------------------------- lengths, as on the wire: below zero is null


def _varint_length(content: bytes, begin: int) -> tuple[int, int]:
    above, end = _varint(content, begin)
    return above - 1, end


def _length(code: str) -> _Reader:
    layout = struct.Struct(f">{code}")

    def read(content: bytes, begin: int) -> tuple[int, int]:
        return layout.unpack_from(content, begin)[0], begin + layout.size

    return read


_int16_length = _length("h")
_int32_length = _length("i")


# ------------------------------------------------------------------------------------------------ values


def _varint(content: bytes, begin: int) -> tuple[int, int]:
    """Read an unsigned number in groups of 7 bits, the lowest first; all but the last have bit 8."""
    byte = content[begin]
    value = byte & 0x7F
    shift = 0
    while byte >= 0x80:
        shift += 7
        if shift > 28:
            raise MalformedRequestError("a number has more than 5 bytes")
        begin += 1
        byte = content[begin]
        value |= (byte & 0x7F) << shift
    return value, begin + 1


def _uuid(content: bytes, begin: int) -> tuple[UUID | None, int]:
    """Read an id. As in ``kio``, that of zeros is None."""
    end = begin + 16
    some = content[begin:end]
    if end > len(content):
        raise _cut()
    return (UUID(bytes=some) if any(some) else None), end


def _duration(content: bytes, begin: int) -> tuple[timedelta, int]:
    (duration_ms,) = _DURATION.unpack_from(content, begin)
    return timedelta(milliseconds=duration_ms), begin + _DURATION.size


_DURATION = struct.Struct(">i")
