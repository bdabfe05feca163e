"""Calling handlers on one batch: what they see, what their exceptions and outputs become, time limits. No JVM."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from share_spark.delivery.batch_calls import FIRST_SLICE
from share_spark.delivery.calling import call_handler, watched_code
from share_spark.delivery.calls import CallOutcome, Calls
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import HANDLER_COLUMNS, Record, arrow_handler, as_handler, pandas_handler
from share_spark.handlers.records import records_of
from share_spark.handlers.time_limit import OverrunError, TimeLimit
from share_spark.model.errors import HandlerError
from share_spark.model.requests import Loss
from tests.unit.handlers.test_answers import answered

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


def call(
    function: Callable[..., Any], batch: pa.RecordBatch, terms: dict[str, Any] | None = None, **settings: Any
) -> CallOutcome:
    handler = as_handler(function, **settings)
    limit_s = handler.timeout_ms / 1_000 if handler.timeout_ms else None
    with TimeLimit(limit_s, outside=watched_code()) as limit:
        return without_fault(call_handler(handler, batch, Calls(limit=limit, **(terms or {}))))


def without_fault(outcome: CallOutcome) -> CallOutcome:
    """Raises what a task raises."""
    if outcome.fault is not None:
        raise outcome.fault
    return outcome


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

    assert answered(call(handle, batch_of(3)).answers) == [1, 2, 3]


# ---------------------------------------------------------------------------------- exceptions and contract


def fail_on_odd(record: Record) -> Ack | None:
    if record.offset == 1:
        raise ValueError("odd")
    if record.offset == 3:
        raise SystemExit
    return Ack.ACCEPT if record.offset == 0 else None


def test_a_record_whose_handler_raises_is_released() -> None:
    assert answered(call(fail_on_odd, batch_of(4)).answers) == [1, (2, "ValueError: odd"), 1, (2, "SystemExit")]


def test_a_batch_whose_handler_raises_is_released_whole() -> None:
    def handle(batch: pa.RecordBatch) -> Any:
        raise KeyError("amount")

    assert answered(call(handle, batch_of(2)).answers) == [(2, "KeyError: 'amount'")] * 2


def test_a_record_whose_handler_answers_nonsense_is_released() -> None:
    def handle(record: Record) -> Any:
        return 7 if record.offset == 1 else None

    assert answered(call(handle, batch_of(3)).answers) == [
        1,
        (2, "answered 7, which is not Ack.ACCEPT, Ack.RELEASE or Ack.REJECT"),
        1,
    ]


def test_where_each_of_many_records_breaks_the_contract_the_handler_is_to_blame() -> None:
    for records, is_whole in ((19, False), (20, True)):
        with TimeLimit(None) as limit:
            calls = Calls(limit=limit)
            call_handler(as_handler(lambda _: 7), batch_of(records), calls)
        assert calls.all_misfit is is_whole
    with pytest.raises(HandlerError, match="broke its contract on each record: answered 7"):
        calls.check(as_handler(lambda _: 7))


@pytest.mark.parametrize("function", [lambda _: 7, arrow_handler(lambda batch: [7] * batch.num_rows)])
def test_bad_records_that_come_again_by_themselves_are_not_the_fault_of_the_handler(function: Any) -> None:
    """Those that were good came before."""
    with TimeLimit(None) as limit:
        calls = Calls(limit=limit)
        again = batch_of(40, delivery_count=pa.array([2] * 40, pa.int32()))
        call_handler(as_handler(function), again, calls)
        call_handler(as_handler(function), batch_of(19), calls)
        assert not calls.all_misfit
        call_handler(as_handler(function), batch_of(1), calls)
        assert calls.all_misfit


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
    assert answered(outcome.answers) == [1, 1, (2, "later"), (3, "bad"), 1, 1]
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
def test_output_that_does_not_fit_releases_its_record_only(answer: Any, message: str) -> None:
    def handle(record: Record) -> Any:
        return answer if record.offset == 1 else (Ack.ACCEPT, (record.offset, 0.5))

    outcome = call(handle, batch_of(3), output=FEES)
    assert outcome.answers.codes.tolist() == [1, 2, 1]
    assert re.search(message, outcome.answers.errors()[1])
    assert outcome.outputs is not None
    assert outcome.outputs.column("id").to_pylist() == [0, 2]


def test_output_columns_that_do_not_fit() -> None:
    with pytest.raises(HandlerError, match="no output column fee, which the schema declares"):
        call(arrow_handler(lambda _: pa.table({"ack": [1], "id": [1]})), batch_of(1), output=FEES)


@pytest.mark.parametrize(("kind", "ids"), [(pa.table, ["1", "x", "y", "4"]), (pd.DataFrame, [1, "x", "y", 4])])
def test_rows_of_a_batch_that_do_not_fit_release_their_records_only(kind: Any, ids: list[Any]) -> None:
    """The third was not accepted, so its columns do not matter."""

    def handle(_: pa.RecordBatch) -> Any:
        return kind({"ack": [1, 1, 2, 1], "id": ids, "fee": [0.5, 1.0, 2.0, 3.0]})

    outcome = call(arrow_handler(handle), batch_of(4), output=FEES)
    assert outcome.answers.codes.tolist() == [1, 2, 2, 1]
    assert "output column id that is no int64" in outcome.answers.errors()[1]
    assert outcome.outputs is not None
    assert outcome.outputs.to_pydict() == {"id": [1, 4], "fee": [0.5, 3.0]}


def test_rows_without_a_declared_schema_release_their_record() -> None:
    answers = call(lambda record: (Ack.ACCEPT, {"id": 1}) if record.offset else None, batch_of(2)).answers
    assert answered(answers) == [1, (2, "returned (acknowledgement, rows) but no output schema is declared")]


# --------------------------------------------------------------------------------------------- time limits


def sleepy(record: Record) -> None:
    time.sleep(60 if record.offset == 1 else 0)


def test_a_record_over_its_time_is_released_and_the_next_goes_on() -> None:
    started = time.monotonic()
    answers = call(sleepy, batch_of(3), timeout_ms=50).answers
    assert answered(answers) == [1, (2, "time limit of 50 ms exceeded"), 1]
    assert time.monotonic() - started < 30


def test_a_signal_that_comes_just_too_early_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer of less than a microsecond would be none."""
    monkeypatch.setattr("share_spark.handlers.time_limit.time.monotonic", lambda: 10.0)
    with TimeLimit(0.05) as limit:
        limit.since = 9.95 + 1e-8
        limit._ring(signal.SIGALRM, None)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0


def test_a_batch_has_the_time_of_a_call() -> None:
    def handle(batch: pa.RecordBatch) -> Any:
        time.sleep(5)

    answers = call(handle, batch_of(3), timeout_ms=60).answers
    assert answered(answers) == [(2, "time limit of 60 ms exceeded by a batch of 3 records")] * 3


def test_records_share_no_time() -> None:
    """Each is well within the limit, all together are not."""
    answers = call(lambda _: time.sleep(0.02), batch_of(10), timeout_ms=100).answers
    assert answered(answers) == [1] * 10


def test_calls_that_follow_each_other_share_no_time_and_each_is_watched() -> None:
    """The timer is not set for each of them."""
    with TimeLimit(0.2) as limit:
        for _ in range(2):
            for _ in range(12):
                limit.run(time.sleep, 0.02)
            started = time.monotonic()
            with pytest.raises(OverrunError):
                limit.run(time.sleep, 60)
            assert time.monotonic() - started < 30


def test_sigalrm_is_given_back() -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        call(sleepy, batch_of(1), timeout_ms=1000)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_off_the_main_thread_nothing_is_interrupted() -> None:
    results: list[Any] = []

    def handle(record: Record) -> None:
        time.sleep(0.05 if record.offset else 0)

    thread = threading.Thread(target=lambda: results.append(answered(call(handle, batch_of(2), timeout_ms=20).answers)))
    thread.start()
    thread.join()
    assert results == [[1, 1]]


# --------------------------------------------------------------------------------------------- budget of time


@pytest.mark.parametrize("is_batch", [False, True])
def test_once_the_engine_stops_no_call_begins(is_batch: bool) -> None:
    stops_at = time.monotonic() + 0.1
    terms = {"is_stopping": lambda: time.monotonic() >= stops_at, "until": stops_at + 60}

    def by_record(record: Record) -> None:
        time.sleep(0.02)

    def by_batch(batch: pa.RecordBatch) -> list[int]:
        time.sleep(0.02 * batch.num_rows)
        return [1] * batch.num_rows

    handler = arrow_handler(by_batch) if is_batch else by_record
    answers = answered(call(handler, batch_of(3 * FIRST_SLICE), terms).answers)
    entered = answers.index(Loss.NOT_ENTERED)
    assert answers == [1] * entered + [Loss.NOT_ENTERED] * (len(answers) - entered)
    assert 1 <= entered <= FIRST_SLICE


def test_past_the_budget_no_call_begins() -> None:
    terms = {"until": time.monotonic() + 0.1}
    answers = call(lambda _: time.sleep(0.03), batch_of(100), terms).answers
    called = int((answers.codes == 1).sum())
    assert 1 <= called <= 5
    assert answers.codes.tolist() == [1] * called + [int(Loss.NOT_ENTERED)] * (100 - called)


def test_a_slow_batch_handler_gets_what_it_can_do_in_time() -> None:
    sizes: list[int] = []

    def slow(batch: pa.RecordBatch) -> Any:
        sizes.append(batch.num_rows)
        time.sleep(0.001 * batch.num_rows)
        return [1] * batch.num_rows

    answers = call(slow, batch_of(10_000), {"until": time.monotonic() + 0.3}).answers
    assert sizes[0] == FIRST_SLICE
    assert sum(sizes) < 1_000
    assert (answers.codes == 1).sum() == sum(sizes)
    assert (answers.codes == Loss.NOT_ENTERED).sum() == 10_000 - sum(sizes)


def test_a_fast_batch_handler_gets_all_at_once_when_its_pace_is_known() -> None:
    sizes: list[int] = []

    def fast(batch: pa.RecordBatch) -> Any:
        sizes.append(batch.num_rows)
        return Ack.ACCEPT

    call(arrow_handler(fast), batch_of(10_000), {"until": time.monotonic() + 5, "seconds_per_record": 1e-6})
    assert sizes == [10_000]


def test_in_turn_no_record_shares_a_call() -> None:
    sizes: list[int] = []

    def handle(batch: pa.RecordBatch) -> Any:
        sizes.append(batch.num_rows)
        return Ack.ACCEPT

    call(handle, batch_of(3), {"in_turn": True})
    assert sizes == [1, 1, 1]


class TooManyRequests(Exception):  # noqa: N818
    retry_after = 3


def too_many(record: Record) -> Any:
    if record.offset == 1:
        raise TooManyRequests("slow down")
    return Ack.throttled(retry_after=9) if record.offset == 2 else None


def test_a_throttled_record_is_given_back_with_its_delay() -> None:
    answers = call(too_many, batch_of(4)).answers
    assert answers.codes.tolist() == [1, Loss.THROTTLED, Loss.THROTTLED, 1]
    assert answers.delays() == {1: 3_000, 2: 9_000}
    assert answers.errors() == {1: "TooManyRequests: slow down"}


def test_a_batch_that_is_throttled_is_given_back_whole() -> None:
    def batch(_: pa.RecordBatch) -> Any:
        raise TooManyRequests("slow down")

    answers = call(arrow_handler(batch), batch_of(2)).answers
    assert (answers.codes.tolist(), answers.delays()) == ([Loss.THROTTLED] * 2, {0: 3_000, 1: 3_000})
    assert set(answers.errors().values()) == {"TooManyRequests: slow down"}


def test_a_throttled_record_has_no_output() -> None:
    outcome = call(lambda _: (Ack.throttled(), [{"id": 1}]), batch_of(2), output=pa.schema([("id", pa.int64())]))
    assert outcome.answers.codes.tolist() == [Loss.THROTTLED] * 2
    assert outcome.outputs is not None
    assert outcome.outputs.num_rows == 0
