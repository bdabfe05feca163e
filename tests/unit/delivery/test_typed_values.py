"""Records whose values are decoded before the call, inside of a worker. No JVM."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from share_spark.delivery.calling import call_handler, watched_code
from share_spark.delivery.calls import Calls
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, as_handler
from share_spark.handlers.handler_objects import opened
from share_spark.handlers.time_limit import TimeLimit
from share_spark.model.requests import Loss
from tests.unit.delivery.test_calling import batch_of
from tests.unit.handlers.test_answers import answered


@dataclasses.dataclass
class Order:
    id: int


VALUES = [b'{"id": 7}', b'{"id": "x"}', None, b'{"id": 9}']
ANSWERS = [
    1,
    (3, "the value is no Order: id: Input should be a valid integer, unable to parse string as an integer"),
    (3, "the value is null"),
    1,
]


def said(handler: Callable[..., Any], values: list[bytes | None] = VALUES, **settings: Any) -> tuple[list[Any], Calls]:
    made = opened(as_handler(handler, **settings))
    with TimeLimit(0.1 if made.timeout_ms else None, outside=watched_code()) as limit:
        calls = Calls(limit=limit)
        outcome = call_handler(made, batch_of(len(values), value=pa.array(values, pa.binary())), calls)
    return answered(outcome.answers), calls


def test_what_cannot_be_decoded_is_rejected_without_a_call() -> None:
    called: list[Any] = []

    def bill(order: Order) -> None:
        called.append(order)

    found, calls = said(bill)
    assert found == ANSWERS
    assert called == [Order(7), Order(9)]
    assert (calls.entered, calls.misfits) == (4, 0)


def test_a_class_of_records_with_output_rows() -> None:
    class Bill:
        def open(self) -> None:
            self.price = 3

        def __call__(self, record: Record[Order | None]) -> Any:
            if record.value is None:
                return Ack.reject(f"{record.offset} is no more")
            return Ack.ACCEPT, {"price": self.price * record.value.id}

    found, _ = said(Bill, output=pa.schema([("price", pa.int64())]))
    wrong = "the value is no Order | None: id: Input should be a valid integer, unable to parse string as an integer"
    assert found == [1, (3, wrong), (3, "2 is no more"), 1]


def test_a_batch_of_nothing_but_bad_values_is_no_fault_of_the_handler() -> None:
    def bill(order: Order) -> None: ...

    found, calls = said(bill, [b"{"] * 50)
    assert {one[0] for one in found} == {3}
    assert not calls.all_misfit


def test_an_error_that_is_not_the_records_fault_releases_it_and_a_throttled_registry_throttles() -> None:
    class TooManyRequests(Exception):  # noqa: N818
        retry_after = 3

    def decoder(value: bytes) -> Any:
        raise {b"a": OSError("away"), b"b": TooManyRequests(), b"c": KeyError("id")}[value]

    found, _ = said(lambda _: None, [b"a", b"b", b"c"], value_from=decoder)
    assert found == [
        (2, "OSError: away"),
        (Loss.THROTTLED, "TooManyRequests"),
        (3, "the value cannot be decoded: KeyError: 'id'"),
    ]


def test_a_decoder_that_takes_too_long_is_interrupted() -> None:
    found, _ = said(lambda _: None, [b"a"], value_from=lambda _: time.sleep(5), timeout_ms=100)  # type: ignore[arg-type]
    assert found == [(2, "time limit of 100 ms exceeded")]


def test_a_cost_function_is_asked_for_records_that_can_be_decoded() -> None:
    asked: list[bytes | None] = []

    def cost(record: Record) -> float:
        asked.append(record.value)
        return 10

    def bill(order: Order) -> Any:
        return Ack.accept(cost=3) if order.id == 9 else None

    found, calls = said(bill, cost=cost)
    assert found == ANSWERS
    assert asked == [VALUES[0], VALUES[3]]
    assert calls.cost == 10 + 3
