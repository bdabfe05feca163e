"""Handlers whose rows are messages, called by the test kit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from share_spark import Ack, Record, arrow_handler
from share_spark.handlers.handler import as_handler
from share_spark.handlers.message_rows import MESSAGES, with_messages
from share_spark.model.errors import HandlerError
from share_spark.testing import HandlerRun, run_handler


def run(handler: Any, *values: bytes, limit: int = 2, **settings: Any) -> HandlerRun:
    return run_handler(handler, values, limit=limit, messages=True, **settings)


def row(offset: int, value: bytes | None, number: int = 0, count: int = 1, **more: Any) -> dict[str, Any]:
    given = {"value": value, "key": None, "headers": None, "partition": None} | more
    place = {"record_topic": "records", "record_partition": 0, "record_offset": offset}
    return {**given, **place, "delivery_count": count, "number": number}


def test_each_form_of_a_message() -> None:
    answers: dict[bytes, Any] = {
        b"bytes": b"1",
        b"text": "é",
        b"none": None,
        b"list": [b"1", b"2"],
        b"dict": {"value": None, "key": "k", "headers": [("a", b"1"), ("a", None)], "partition": 3},
        b"mapping": {"value": b"", "headers": {"trace": "7"}},
    }
    found = run(lambda record: (Ack.ACCEPT, answers[record.value]), *answers)
    assert found.rows == [
        row(0, b"1"),
        row(1, "é".encode()),
        row(3, b"1"),
        row(3, b"2", 1),
        row(4, None, key=b"k", headers=[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], partition=3),
        row(5, b"", headers=[{"key": "trace", "value": b"7"}]),
    ]
    assert found.accepted == [0, 1, 2, 3, 4, 5]


def test_without_messages() -> None:
    assert run(lambda _: None, b"").rows == run(lambda _: Ack.ACCEPT, b"").rows == []
    assert run(lambda _: Ack.reject("no"), b"").letters[0].error == "no"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"valu": b""}, "a message has no 'valu', but value, key, headers, partition"),
        ({"value": 7}, "keys, values and headers of a message are bytes or texts, not int"),
        (7, "keys, values and headers of a message are bytes or texts, not int"),
        ({"value": b"", "headers": {"a": 1}}, "bytes or texts, not int"),
        ({"value": b"", "partition": "first"}, "partition"),
        ({"value": b"", "headers": 7}, "not iterable"),
    ],
)
def test_what_is_no_message_releases_its_record(message: Any, text: str) -> None:
    found = run(lambda record: (Ack.ACCEPT, message if record.offset else b"fine"), b"", b"")
    (letter,) = found.letters
    assert (letter.offset, letter.delivery_count) == (1, 2)
    assert text in (letter.error or "")
    assert found.rows == [row(0, b"fine")]


@dataclass
class Order:
    price: int


def test_typed_values_of_one_record_and_of_a_list() -> None:
    def one(order: Order) -> Any:
        return Ack.ACCEPT, str(order.price)

    async def listed(orders: list[Order]) -> Any:
        return [(Ack.ACCEPT, str(order.price)) for order in orders]

    async def none(orders: list[Record[Order]]) -> Any:
        return Ack.ACCEPT

    for handler in (one, listed):
        found = run(handler, b'{"price": 1}', b"{}", b'{"price": 2}')
        assert sorted(one["value"] for one in found.rows) == [b"1", b"2"]
        assert [(one.offset, one.reason) for one in found.letters] == [(1, "rejected")]
    assert run(none, b"{}", b'{"price": 2}').accepted == [1]


class Opened:
    opened = closed = 0

    async def open(self) -> None:
        Opened.opened += 1

    async def __call__(self, record: Record) -> Any:
        return Ack.ACCEPT, record.value

    async def close(self) -> None:
        Opened.closed += 1


def test_classes_are_opened_and_closed_and_attempts_are_told() -> None:
    assert run(Opened, b"1").rows == [row(0, b"1")]
    assert (Opened.opened, Opened.closed) == (1, 1)
    second = run(lambda record: (Ack.ACCEPT, b"x") if record.delivery_count == 2 else Ack.RELEASE, b"1")
    assert second.rows == [row(0, b"x", count=2)]
    assert run(lambda record: (Ack.ACCEPT, record.value), b"1", threads=2).rows == [row(0, b"1")]


class NotOpened:
    def open(self) -> None:
        raise OSError("no service")

    def __call__(self, record: Record) -> Any: ...


def test_what_is_refused_in_one_line() -> None:
    with pytest.raises(HandlerError, match=r"^handler \S+: open\(\) failed: OSError: no service$"):
        run(NotOpened, b"")
    with pytest.raises(HandlerError, match="messages have columns of their own"):
        with_messages(as_handler(lambda _: None, output=pa.schema({"id": pa.int64()})))
    with pytest.raises(HandlerError, match="takes batches"):
        with_messages(as_handler(arrow_handler(lambda _: [])))


def test_the_schema_is_one_that_spark_has() -> None:
    assert as_handler(lambda _: None, output=MESSAGES).output == MESSAGES
