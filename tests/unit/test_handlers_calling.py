"""Calling handlers on one batch: what they see, what their exceptions and outputs become, time limits. No JVM."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from share_spark.model.errors import HandlerError
from share_spark.process.acknowledgement import Ack
from share_spark.process.calling import Outcome, call_handler, records_of
from share_spark.process.handlers import HANDLER_COLUMNS, Record, arrow_handler, as_handler, pandas_handler
from share_spark.process.timelimit import TimeLimit
from tests.unit.test_handlers_answers import told

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def batch_of(rows: int, **columns: pa.Array[Any]) -> pa.RecordBatch:
    """Records 0 to rows - 1 of orders-0."""
    filled: dict[str, Any] = {
        "topic": pa.array(["orders"] * rows),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([NOON] * rows, pa.timestamp("us", "Europe/Berlin")),
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([b"v%d" % offset for offset in range(rows)], pa.binary()),
        "headers": pa.array([[]] * rows, HEADERS),
        "delivery_count": pa.array([1] * rows, pa.int32()),
        **columns,
    }
    return pa.RecordBatch.from_pydict(filled)


def call(function: Callable[..., Any], batch: pa.RecordBatch, **settings: Any) -> Outcome:
    with TimeLimit() as limit:
        return call_handler(as_handler(function, **settings), batch, limit)


# ------------------------------------------------------------------------------------ what handlers see


def test_a_record() -> None:
    headers = pa.array([[{"key": "trace", "value": b"7"}, {"key": "gone", "value": None}], None], HEADERS)
    topics = pa.array(["orders", "returns"])
    first, second = records_of(batch_of(2, headers=headers, topic=topics, key=pa.array([b"k", None])))
    assert first == Record("orders", 0, 0, NOON, b"k", b"v0", (("trace", b"7"), ("gone", None)), 1)
    assert first.timestamp is not None
    assert first.timestamp.tzinfo is UTC
    assert second == Record("returns", 0, 1, NOON, None, b"v1", (), 1)


def test_timestamps() -> None:
    instants = [0, 1_700_000_000_123_457, -1_000, None, 2**60, -(2**60)]
    column = pa.array(instants, pa.timestamp("us", "UTC"))
    times = [record.timestamp for record in records_of(batch_of(6, timestamp=column))]
    assert times == [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2023, 11, 14, 22, 13, 20, 123457, UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        None,
        datetime(9999, 12, 30, tzinfo=UTC),
        datetime(1, 1, 2, tzinfo=UTC),
    ]


def test_columns_that_were_not_read_leave_their_defaults() -> None:
    (record,) = records_of(batch_of(1).select(["offset", "topic", "partition"]))
    assert record == Record("orders", 0, 0)


def test_a_batch_handler_sees_its_columns_in_order() -> None:
    seen = []
    with_task = batch_of(2).append_column("__task", pa.array(["Thread", None]))

    def handle(batch: pa.RecordBatch) -> list[Ack]:
        seen.append(batch.schema.names)
        return [Ack.ACCEPT] * batch.num_rows

    call(handle, with_task)
    call(handle, with_task, columns=["value", "key"])
    assert seen == [list(HANDLER_COLUMNS), ["value", "key"]]


def test_pandas() -> None:
    def handle(frame: pd.DataFrame) -> Any:
        assert list(frame["value"]) == [b"v0", b"v1", b"v2"]
        return frame["offset"].map({0: "accept", 1: "release", 2: "reject"})

    assert told(call(handle, batch_of(3)).answers) == [1, 2, 3]


# ---------------------------------------------------------------------------------- exceptions and contract


def fail_on_odd(record: Record) -> Ack | None:
    if record.offset == 1:
        raise ValueError("odd")
    if record.offset == 3:
        raise SystemExit
    return Ack.ACCEPT if record.offset == 0 else None


def test_a_record_whose_handler_raises_is_released() -> None:
    assert told(call(fail_on_odd, batch_of(4)).answers) == [1, (2, "ValueError: odd"), 1, (2, "SystemExit")]


def test_a_batch_whose_handler_raises_is_released_whole() -> None:
    def handle(batch: pa.RecordBatch) -> Any:
        raise KeyError("amount")

    assert told(call(handle, batch_of(2)).answers) == [(2, "KeyError: 'amount'")] * 2


def test_a_broken_contract_names_handler_and_record() -> None:
    def handle(record: Record) -> Any:
        return 7 if record.offset == 1 else None

    with pytest.raises(HandlerError, match=r"handler tests.*handle on orders-0@1: answered 7, which is not Ack"):
        call(handle, batch_of(2))


# -------------------------------------------------------------------------------------------------- output

FEES = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("fee", pa.float64())])


def test_output_rows_of_accepted_records() -> None:
    answers: list[Any] = [
        (Ack.ACCEPT, {"id": 1, "fee": 0.5}),
        (None, [(2, None), {"id": 3}]),
        (Ack.release("later"), {"id": 4}),
        Ack.reject("bad"),
        None,
        (Ack.ACCEPT, None),
    ]
    outcome = call(lambda record: answers[record.offset], batch_of(6), output=FEES)
    assert told(outcome.answers) == [1, 1, (2, "later"), (3, "bad"), 1, 1]
    assert outcome.outputs is not None
    assert outcome.outputs.to_pydict() == {"id": [1, 2, 3], "fee": [0.5, None, None]}


def test_output_columns_beside_the_acknowledgement() -> None:
    def handle(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"ack": [1, 2, 1], "fee": pa.array([1, 2, 3], pa.int32()), "id": [7, 8, 9], "more": [0, 0, 0]})

    outcome = call(handle, batch_of(3), output=FEES)
    assert outcome.outputs is not None
    assert outcome.outputs.to_pydict() == {"id": [7, 9], "fee": [1.0, 3.0]}


def test_output_columns_of_pandas() -> None:
    @pandas_handler
    def handle(frame: Any) -> Any:
        return frame.assign(ack=1, id=frame["offset"], fee=None)

    outcome = call(handle, batch_of(2), output=FEES)
    assert outcome.outputs is not None
    assert outcome.outputs.to_pydict() == {"id": [0, 1], "fee": [None, None]}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((Ack.ACCEPT, {"id": 1, "price": 2}), "output column price, which is not in the schema"),
        ((Ack.ACCEPT, (1,)), "an output row of 1 values for 2 columns"),
        ((Ack.ACCEPT, {"fee": 1.0}), "null in output column id, which must not be null"),
        ((Ack.ACCEPT, {"id": "one"}), "output column id that is no int64"),
        ((Ack.ACCEPT, 5), "output of type int: a row is a dict or a tuple"),
        ((Ack.ACCEPT, None, None), "a tuple of 3, not \\(acknowledgement, rows\\)"),
    ],
)
def test_output_that_does_not_fit(answer: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        call(lambda _: answer, batch_of(1), output=FEES)


def test_output_columns_that_do_not_fit() -> None:
    with pytest.raises(HandlerError, match="no output column fee, which the schema declares"):
        call(arrow_handler(lambda _: pa.table({"ack": [1], "id": [1]})), batch_of(1), output=FEES)
    with pytest.raises(HandlerError, match="output column id that is no int64"):
        call(arrow_handler(lambda _: pa.table({"ack": [1], "id": ["x"], "fee": [1]})), batch_of(1), output=FEES)


def test_rows_without_a_declared_schema() -> None:
    with pytest.raises(HandlerError, match="no output schema is declared"):
        call(lambda _: (Ack.ACCEPT, {"id": 1}), batch_of(1))


# --------------------------------------------------------------------------------------------- time limits


def sleepy(record: Record) -> None:
    time.sleep(5 if record.offset == 1 else 0)


def test_a_record_over_its_time_is_released_and_the_next_goes_on() -> None:
    started = time.monotonic()
    answers = call(sleepy, batch_of(3), record_timeout_ms=50).answers
    assert told(answers) == [1, (2, "time limit of 50 ms exceeded"), 1]
    assert time.monotonic() - started < 4


def test_a_batch_has_the_time_of_its_records() -> None:
    def handle(batch: pa.RecordBatch) -> Any:
        time.sleep(5)

    answers = call(handle, batch_of(3), record_timeout_ms=20).answers
    assert told(answers) == [(2, "time limit of 60 ms exceeded by a batch of 3 records")] * 3


def test_swallowing_the_alarm_does_not_help() -> None:
    def handle(record: Record) -> None:
        try:
            time.sleep(5)
        except BaseException:  # noqa: BLE001
            return

    assert told(call(handle, batch_of(1), record_timeout_ms=30).answers) == [(2, "time limit of 30 ms exceeded")]


def test_sigalrm_is_given_back() -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        call(sleepy, batch_of(1), record_timeout_ms=1000)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_off_the_main_thread_the_call_is_timed_only() -> None:
    results: list[Any] = []

    def handle(record: Record) -> None:
        time.sleep(0.05 if record.offset else 0)

    thread = threading.Thread(
        target=lambda: results.append(told(call(handle, batch_of(2), record_timeout_ms=20).answers))
    )
    thread.start()
    thread.join()
    assert results == [[1, (2, "time limit of 20 ms exceeded")]]
