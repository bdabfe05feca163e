"""What the calls of a task have cost: by their answers, and by a cost function. No JVM."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from share_spark.delivery.calling import call_handler, watched_code
from share_spark.delivery.calls import Calls
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, arrow_handler, as_handler, pandas_handler
from share_spark.handlers.time_limit import TimeLimit
from tests.unit.delivery.test_calling import batch_of
from tests.unit.handlers.test_answers import answered


def cost_and_answers(function: Callable[..., Any], rows: int, **settings: Any) -> tuple[float, list[Any]]:
    with TimeLimit(None, outside=watched_code()) as limit:
        calls = Calls(limit=limit)
        outcome = call_handler(as_handler(function, **settings), batch_of(rows), calls)
    return calls.cost, answered(outcome.answers)


def test_what_accepted_records_have_cost_is_added_up() -> None:
    answers = [Ack.accept(cost=800), None, Ack.accept(cost=12.5), Ack.release("later"), Ack.accept(cost="much")]  # type: ignore[arg-type]
    cost, found = cost_and_answers(lambda record: answers[record.offset], 5)
    assert cost == 812.5
    assert found == [1, 1, 1, (2, "later"), (2, "accepted with a cost of 'much', not a number of 0 or more")]


def test_a_cost_may_come_with_output_rows() -> None:
    output = pa.schema([("offset", pa.int64())])
    cost, found = cost_and_answers(lambda record: (Ack.accept(cost=3), {"offset": record.offset}), 4, output=output)
    assert (cost, found) == (12.0, [1, 1, 1, 1])


def test_costs_of_a_batch_handler_are_those_in_its_list() -> None:
    @arrow_handler
    def handle(batch: pa.RecordBatch) -> list[Any]:
        return [Ack.accept(cost=2)] * batch.num_rows

    assert cost_and_answers(handle, 10) == (20.0, [1] * 10)


def test_a_cost_function_is_asked_before_the_call_and_counts_if_that_fails() -> None:
    asked: list[int] = []

    def tokens(record: Record) -> float:
        asked.append(record.offset)
        return 10**record.offset

    def handle(record: Record) -> Any:
        assert asked[-1] == record.offset
        if record.offset == 1:
            raise ValueError("not valid")
        return [None, None, Ack.reject("no"), Ack.throttled(), Ack.accept(cost=7), Ack.ACCEPT, 17][record.offset]

    cost, found = cost_and_answers(handle, 7, cost=tokens)
    assert cost == 1 + 10 + 100 + 0 + 7 + 100_000 + 1_000_000
    assert asked == [*range(7)]
    assert found[:3] == [1, (2, "ValueError: not valid"), (3, "no")]


def no_fives(record: Record) -> float:
    if record.offset % 5 == 0:
        raise LookupError("no price")
    return 10.0


@pytest.mark.parametrize("rows", [1, 4, 11])
def test_a_cost_function_that_fails_is_the_failure_of_its_record(rows: int) -> None:
    called: list[int] = []

    def one(record: Record) -> None:
        called.append(record.offset)

    @pandas_handler
    def many(frame: pd.DataFrame) -> pd.DataFrame:
        called.extend(frame["offset"])
        return pd.DataFrame({"ack": 1, "offset": frame["offset"]})

    output = pa.schema([("offset", pa.int64())])
    for handler, settings in ((one, {}), (many, {"output": output}), (many, {})):
        called.clear()
        cost, found = cost_and_answers(handler, rows, cost=no_fives, **settings)
        failed = (2, "the cost function failed: LookupError: no price")
        assert found == [failed if offset % 5 == 0 else 1 for offset in range(rows)]
        assert called == [offset for offset in range(rows) if offset % 5]
        assert cost == 10.0 * len(called)


def test_costs_that_a_batch_says_are_valid_before_those_of_the_function() -> None:
    @arrow_handler
    def handle(batch: pa.RecordBatch) -> list[Any]:
        return [Ack.accept(cost=2), 1, "throttled", Ack.release("later"), Ack.accept(cost=0)]

    cost, _ = cost_and_answers(handle, 5, cost=lambda _: 100)
    assert cost == 202.0

    @arrow_handler
    def fails(batch: pa.RecordBatch) -> list[Any]:
        raise ValueError("no")

    assert cost_and_answers(fails, 5, cost=lambda _: 100)[0] == 500.0


def test_a_cost_function_that_does_not_come_back() -> None:
    def waits(_: Record) -> float:
        time.sleep(20)
        return 1.0

    @arrow_handler
    def handle(batch: pa.RecordBatch) -> list[Any]:
        raise AssertionError("not called")

    for handler in (handle, lambda _: None):
        made = as_handler(handler, cost=waits, timeout_ms=50)
        with TimeLimit(0.05, outside=watched_code()) as limit:
            outcome = call_handler(made, batch_of(1), Calls(limit=limit))
        assert answered(outcome.answers) == [(2, "time limit of 50 ms exceeded")]
