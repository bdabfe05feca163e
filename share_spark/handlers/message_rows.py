"""Handlers whose output rows are messages for a Kafka topic (``ShareGroup.to_kafka``).

A handler returns ``(Ack.ACCEPT, message)`` or a list of messages: bytes or a text, which is the value, or a dict with
``value``, ``key``, ``headers`` and ``partition``, the columns of Spark's Kafka sink. What is made of a message here has
the place of its record as well, and the number of the delivery: readers tell repeats by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Handler, Record
from share_spark.handlers.handler_objects import close, close_on_loop, opened, opened_on_loop
from share_spark.handlers.kinds import HandlerKind, is_async
from share_spark.handlers.values import UndecodableError
from share_spark.model.errors import HandlerError

_HEADER: Any = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS: Mapping[str, Any] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "partition": pa.int32(),
}
_PLACE: Mapping[str, Any] = {
    "record_topic": pa.string(),
    "record_partition": pa.int32(),
    "record_offset": pa.int64(),
    "delivery_count": pa.int32(),
    "number": pa.int32(),
}
MESSAGES = pa.schema([pa.field(name, kind) for name, kind in {**_FIELDS, **_PLACE}.items()])
"""The schema of these rows. ``number``: of the message among those of its record, from 0."""


def check_messages(handler: Handler) -> None:
    """Check that the handler can have messages. Raises HandlerError: it has other rows, or takes batches, whose rows do
    not tell their records."""
    if handler.output is not None:
        raise HandlerError(f"handler {handler.name}: messages have columns of their own, so output= has to be left out")
    if handler.kind not in (HandlerKind.RECORD, HandlerKind.LIST):
        raise HandlerError(f"handler {handler.name} takes batches: messages come from handlers of records, or of lists")


def with_messages(handler: Handler) -> Handler:
    """Return the handler with output rows of the schema MESSAGES. Raises HandlerError: it cannot have messages."""
    check_messages(handler)
    kinds: Mapping[tuple[bool, bool], Callable[[Handler], Callable[[Any], Any]]] = {
        (False, False): _OfRecord,
        (True, False): _OfRecordLater,
        (True, True): _OfListLater,
    }
    made = kinds[is_async(handler.call), handler.kind is HandlerKind.LIST](handler)
    return replace(handler, call=made, output=MESSAGES, values=None)


class _OfRecord:
    """A handler of one record."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def open(self) -> None:
        self._opened = opened(self._handler)

    def __call__(self, record: Record[Any]) -> Any:
        return _answer(self._opened.call_of_record(record), record)

    def close(self) -> None:
        close(self._opened)


class _Later:
    """The part of those that wait."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def open(self) -> None:
        self._opened = await opened_on_loop(self._handler)

    async def close(self) -> None:
        await close_on_loop(self._opened)


class _OfRecordLater(_Later):
    """An async handler of one record."""

    async def __call__(self, record: Record[Any]) -> Any:
        return _answer(await self._opened.call_of_record(record), record)


class _OfListLater(_Later):
    """An async handler of a list. A record whose value cannot be decoded is in no list."""

    async def __call__(self, records: list[Record[Any]]) -> Any:
        arguments, answers = list[Any](), dict[int, Any]()
        for at, record in enumerate(records):
            try:
                arguments.append(self._opened.argument(record))
            except UndecodableError as fault:
                answers[at] = Ack.reject(str(fault))
        found = await self._opened.call(arguments) if arguments else []
        asked = [record for at, record in enumerate(records) if at not in answers]
        if not isinstance(found, list) or len(found) != len(asked):
            return found if not answers else [answers.get(at, found) for at in range(len(records))]
        rest = iter([_answer(answer, record) for answer, record in zip(found, asked, strict=True)])
        return [answers[at] if at in answers else next(rest) for at in range(len(records))]


def _answer(answer: Any, record: Record[Any]) -> Any:
    """Return the answer, its messages as rows. Raises TypeError, ValueError: one of them is no message."""
    if type(answer) is not tuple or len(answer) != 2:
        return answer
    ack, messages = answer
    listed = messages if isinstance(messages, list) else [] if messages is None else [messages]
    return ack, [_row(message, record, number) for number, message in enumerate(listed)]


def _row(message: Any, record: Record[Any], number: int) -> tuple[Any, ...]:
    given = message if isinstance(message, Mapping) else {"value": message}
    if unknown := given.keys() - _FIELDS.keys():
        raise ValueError(f"a message has no {min(map(str, unknown))!r}, but {', '.join(_FIELDS)}")
    headers = None if given.get("headers") is None else [(name, _bytes(value)) for name, value in _pairs(given)]
    place = record.topic, record.partition, record.offset, record.delivery_count, number
    return _bytes(given.get("value")), _bytes(given.get("key")), headers, given.get("partition"), *place


def _pairs(given: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    headers = given["headers"]
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"keys, values and headers of a message are bytes or texts, not {type(value).__name__}")
