"""The test kit for handlers: each kind of handler, each answer, and processes that die."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark import Ack, Record, ShareError, arrow_handler, frame_handler, pandas_handler
from share_spark.testing import HandlerCall, HandlerRun, run_handler

BILLS = "order bigint, price double"
VALUES = [b"9.50", b"oops", b"12"]
ROWS = [{"order": 0, "price": 9.5}, {"order": 2, "price": 12.0}]
BAD_CITY = "ValueError: could not convert string to float: b'oops'"


def bill(record: Record) -> Any:
    return Ack.ACCEPT, {"order": record.offset, "price": float(record.value or b"")}


async def ask(record: Record) -> Any:
    await asyncio.sleep(0.001)
    return bill(record)


async def ask_all(records: list[Record]) -> Any:
    return [bill(record) if b"o" not in (record.value or b"") else Ack.release(BAD_CITY) for record in records]


class Biller:
    opened = closed = 0

    def open(self) -> None:
        Biller.opened += 1

    def __call__(self, record: Record) -> Any:
        return bill(record)

    def close(self) -> None:
        Biller.closed += 1


def letters(run: HandlerRun) -> list[tuple[int, int, str, str | None]]:
    return [(one.offset, one.delivery_count, one.reason, one.error) for one in run.letters]


LIMIT = "delivery limit reached"


@pytest.mark.parametrize(
    ("handler", "settings"),
    [(bill, {}), (ask, {}), (ask_all, {"batch": 2, "linger": 0}), (bill, {"threads": 2}), (Biller, {}), (Biller(), {})],
    ids=["function", "async", "list", "threads", "class", "object"],
)
def test_a_bad_record_is_a_dead_letter_and_the_others_have_rows(handler: Any, settings: dict[str, Any]) -> None:
    run = run_handler(handler, VALUES, output=BILLS, limit=3, **settings)
    assert sorted(run.rows, key=lambda row: row["order"]) == ROWS
    assert letters(run) == [(1, 3, LIMIT, BAD_CITY)]
    assert (run.accepted, run.counts, run.waited) == ([0, 2], {0: 1, 1: 3, 2: 1}, timedelta(0))
    assert [call for call in run.calls if call.offset == 1] == [HandlerCall(1, count) for count in (1, 2, 3)]


def test_batches_of_arrow_and_of_pandas() -> None:
    def score(batch: pa.RecordBatch) -> Any:
        return [Ack.REJECT if value == b"oops" else Ack.ACCEPT for value in batch.column("value").to_pylist()]

    def clean(frame: pd.DataFrame) -> Any:
        return [Ack.reject("no price") if value == b"oops" else Ack.ACCEPT for value in frame["value"]]

    assert letters(run_handler(arrow_handler(score), VALUES)) == [(1, 1, "rejected", None)]
    assert letters(run_handler(pandas_handler(clean), VALUES)) == [(1, 1, "rejected", "no price")]
    run = run_handler(arrow_handler(columns=["value"])(score), VALUES)
    assert (run.accepted, run.counts) == ([0, 2], {0: 1, 1: 1, 2: 1})


def test_a_class_is_opened_and_closed_in_each_process_that_does_not_die() -> None:
    Biller.opened = Biller.closed = 0
    run_handler(Biller, [b"1", b"2"], output=BILLS)
    assert (Biller.opened, Biller.closed) == (1, 1)
    run_handler(Biller, [b"1", b"2"], output=BILLS, crash_at=2)
    assert (Biller.opened, Biller.closed) == (3, 2)


def test_what_a_handler_notes_is_seen_by_the_test() -> None:
    seen: list[tuple[Any, ...]] = []

    def note(record: Record) -> None:
        seen.append((record.offset, record.key, record.value, record.headers, record.delivery_count))

    run_handler(note, [b"1", {"value": None, "key": b"k", "headers": [("trace", b"7")]}])
    assert seen == [(0, None, b"1", (), 1), (1, b"k", None, (("trace", b"7"),), 1)]


@pytest.mark.parametrize("settings", [{}, {"threads": 3}])
def test_delays_pass_at_once(settings: dict[str, Any]) -> None:
    def later(record: Record) -> Any:
        return Ack.ACCEPT if record.delivery_count == 3 else Ack.release("not yet", delay=3_600)

    began = time.monotonic()
    run = run_handler(later, [b"1"], **settings)
    assert (run.counts, run.waited) == ({0: 3}, timedelta(hours=2))
    assert time.monotonic() - began < 60


def test_throttling_costs_no_attempt_and_ends_some_time() -> None:
    answers = iter([Ack.throttled(retry_after=20)] * 4 + [Ack.ACCEPT])
    run = run_handler(lambda _: next(answers), [b"1"], limit=2)
    assert (run.accepted, run.calls) == ([0], [HandlerCall(0, 1)] * 5)
    assert run.waited >= timedelta(seconds=80)
    never = run_handler(
        lambda _: Ack.throttled(retry_after=20), [b"1"], limit=2, options={"delivery.throttle.max.age": "1m"}
    )
    ((_, count, reason, error),) = letters(never)
    assert (count, reason) == (1, "rejected")
    assert error is not None
    assert "throttled for longer than 1 m" in error


def test_rows_that_do_not_fit_release_their_record() -> None:
    run = run_handler(lambda _: (Ack.ACCEPT, {"order": "x"}), [b"1"], output=BILLS, limit=2)
    ((_, count, reason, error),) = letters(run)
    assert (run.rows, count, reason) == ([], 2, LIMIT)
    assert error is not None
    assert "order" in error


def test_order_by_key() -> None:
    entered: list[int] = []

    def second_fails_once(record: Record) -> Any:
        entered.append(record.offset)
        return Ack.RELEASE if record.offset == 1 and record.delivery_count == 1 else None

    records = [{"value": b"", "key": key} for key in (b"a", b"b", b"a", b"b", b"a")]
    run = run_handler(second_fails_once, records, ordered=True)
    assert run.accepted == [0, 1, 2, 3, 4]
    assert entered.index(1) < entered.index(3)
    assert entered.count(1) == 2
    assert entered.count(3) == 1, "it is behind the one that came back"


@dataclass
class Order:
    price: float


def test_typed_values_and_what_cannot_be_decoded_is_in_no_call() -> None:
    prices: list[float] = []

    def take(order: Order) -> None:
        prices.append(order.price)

    run = run_handler(take, [b'{"price": 1.5}', b"{}", b'{"price": 2}'])
    assert (prices, run.counts, run.accepted) == ([1.5, 2.0], {0: 1, 2: 1}, [0, 2])
    assert [letter.reason for letter in run.letters] == ["rejected"]


@pytest.mark.parametrize(
    ("handler", "settings"),
    [(bill, {}), (ask, {}), (bill, {"threads": 1}), (ask_all, {"batch": 1})],
    ids=["function", "async", "threads", "list"],
)
def test_a_process_that_dies_in_a_call(handler: Any, settings: dict[str, Any]) -> None:
    """The record in that call has failed; what else was called has its answer, or is called again."""
    run = run_handler(handler, [b"1", b"2", b"3"], output=BILLS, crash_at=2, **settings)
    assert sorted(row["order"] for row in run.rows) == [0, 1, 2]
    assert (run.letters, run.accepted) == ([], [0, 1, 2])
    assert run.counts[1] == 2
    assert HandlerCall(1, 2) in run.calls


def test_a_record_that_always_kills_its_process_is_a_dead_letter_and_no_other_is() -> None:
    def deadly(record: Record) -> None:
        nonlocal calls, crashes
        calls += 1

    calls, crashes = 0, 0
    run = run_handler(deadly, [b"1"], limit=3, crash_at=[1, 2, 3])
    assert letters(run) == [(0, 3, LIMIT, "worker lost")]
    assert calls == 0


def test_what_is_no_answer_at_all_is_the_handlers_fault() -> None:
    with pytest.raises(ShareError, match="returned 1 acknowledgements for 3 records"):
        run_handler(arrow_handler(lambda _: [Ack.ACCEPT]), VALUES)


def refused(text: str, handler: Any, records: Sequence[Any] = (b"",), **settings: Any) -> None:
    with pytest.raises(ShareError) as found:
        run_handler(handler, records, **settings)
    assert text in str(found.value)
    assert "\n" not in str(found.value)


def test_bad_input_is_one_line() -> None:
    refused("record 1: a value is bytes, not str", bill, [b"", {"value": "text"}])
    refused("record 0: 'valu' is no part of a record", bill, [{"valu": b""}])
    refused("share.delivery.count.limit", bill, limit=0)
    refused("delivery.colour", bill, options={"delivery.colour": "red"})
    refused("takes Spark's frames", frame_handler(lambda frame: frame))
    refused("the output schema", bill, output=pa.schema([]))
    refused("record 0: a record is bytes, or a dict", bill, ["text"])


def test_no_records_and_within_a_running_loop() -> None:
    assert run_handler(bill, [], output=BILLS).rows == []

    async def notebook() -> HandlerRun:
        return run_handler(ask, [b"1"], output=BILLS)

    assert asyncio.run(notebook()).rows == [{"order": 0, "price": 1.0}]


ANSWERS = {
    "accept": Ack.ACCEPT,
    "reject": Ack.reject("no"),
    "release": Ack.RELEASE,
    "delay": Ack.release(delay=5),
    "throttle": Ack.throttled(retry_after=1),
}
SCRIPTS = st.lists(st.lists(st.sampled_from(["raise", *ANSWERS]), max_size=6), max_size=6)


def expected(script: Sequence[str], limit: int) -> tuple[int, bool]:
    """The oracle: (calls, whether it is accepted), of a record whose answers are these, and then accepts."""
    attempts = 0
    for calls, answer in enumerate([*script, "accept"], 1):
        attempts += answer != "throttle"
        if answer in ("accept", "reject"):
            return calls, answer == "accept"
        if attempts == limit:
            return calls, False
    raise AssertionError


@settings(max_examples=25)
@given(SCRIPTS, st.integers(2, 4), st.booleans())
def test_any_answers_in_any_order(scripts: list[list[str]], limit: int, waits: bool) -> None:
    taken: dict[int, int] = defaultdict(int)

    def answer(record: Record) -> Any:
        script, at = scripts[record.offset], taken[record.offset]
        taken[record.offset] += 1
        said = script[at] if at < len(script) else "accept"
        if said == "raise":
            raise ValueError("no")
        return ANSWERS[said]

    async def answer_later(record: Record) -> Any:
        return answer(record)

    run = run_handler(answer_later if waits else answer, [b""] * len(scripts), limit=limit)
    found = {at: (run.counts[at], at in run.accepted) for at in range(len(scripts))}
    assert found == {at: expected(script, limit) for at, script in enumerate(scripts)}
    assert dict(taken) == run.counts
