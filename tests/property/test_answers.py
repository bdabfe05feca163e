"""Whatever a handler answers, each record has one answer, in the run and in its ledger, and the rows of those that were
accepted are those that convert, which a Delta table takes."""

from __future__ import annotations

import json
import math
import tempfile
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.delivery.calling import call_handler
from share_spark.delivery.calls import Calls
from share_spark.delta.data_file import parquet_of, statistics
from share_spark.handlers.acknowledgement import Ack, Acknowledgement
from share_spark.handlers.handler import arrow_handler, as_handler, pandas_handler
from share_spark.handlers.time_limit import TimeLimit
from share_spark.model.errors import HandlerError
from tests.support.hostile_answers import PanicException, raises
from tests.unit.delivery.test_calling import batch_of
from tests.unit.delivery.test_hostile_answers import Answered, handled

ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12, minutes=-7))])
TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates among them
MOMENTS = st.datetimes(timezones=ZONES) | st.dates() | st.timedeltas()
NUMBERS = (
    st.integers() | st.floats() | st.decimals() | st.integers(-(2**64), 2**64) | st.booleans() | st.complex_numbers()
)
VALUES: Any = st.recursive(
    st.none() | TEXTS | NUMBERS | MOMENTS | st.binary(max_size=8) | st.sampled_from([*Ack, int, object()]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
SOUND = st.sampled_from([None, Ack.ACCEPT, Ack.RELEASE, Ack.REJECT, 1, 2, 3, "accept", "Reject"])
REASONED = st.builds(Acknowledgement, SOUND | VALUES, VALUES, VALUES)
ANSWERS = SOUND | VALUES | REASONED

_INNER: Any = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))])
OUTPUT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("rate", pa.float64()),
        pa.field("took", pa.duration("us")),
        pa.field("body", pa.binary()),
        pa.field("places", pa.list_(pa.field("element", _INNER))),
        pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
    ]
)
FITTING: dict[str, Any] = {
    "name": st.text(max_size=4),
    "at": st.datetimes(timezones=st.just(UTC)),
    "day": st.dates(),
    "rate": st.floats(),
    "body": st.binary(max_size=4),
    "places": st.lists(st.fixed_dictionaries({"x": st.integers(0, 9), "at": MOMENTS})),
    "counts": st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1)),
}
RAISING = st.sampled_from([raises(PanicException("no index")), raises(ValueError("no price"))])
COST_FUNCTIONS = RAISING | (VALUES | st.floats(0, 1e9)).map(lambda value: lambda: value)
SOUND_ROWS = st.fixed_dictionaries({"id": st.integers(0, 9)}, optional=FITTING)
WILD_ROWS = st.dictionaries(st.sampled_from(OUTPUT.names) | TEXTS, VALUES, max_size=3)
ONE_WILD = st.tuples(SOUND_ROWS, st.sampled_from(OUTPUT.names), VALUES).map(lambda of: {**of[0], of[1]: of[2]})
ROWS = SOUND_ROWS | ONE_WILD | WILD_ROWS | st.lists(SOUND_ROWS | ONE_WILD, max_size=2) | VALUES


def judged(handler: Any, records: int, output: pa.Schema | None = None) -> tuple[Answered, pa.Table | None]:
    with tempfile.TemporaryDirectory() as directory:
        outcome, answers = handled(handler, records, Path(directory) / "0", output)
    assert len(answers) == records
    assert all(code in (Ack.ACCEPT, Ack.RELEASE, Ack.REJECT) for code, _ in answers)
    if outcome.outputs is not None:  # Parquet and Delta's log take them
        json.dumps(statistics(parquet_of(outcome.outputs)[1], OUTPUT.names))
    return answers, outcome.outputs


def converts(value: Any) -> list[dict[str, Any]] | None:
    """The rows that a record which returned ``value`` for rows gives by itself; None if it is released."""
    answers, outputs = judged(lambda _: (Ack.ACCEPT, value), 1, OUTPUT)
    assert outputs is not None
    return rows_in(outputs) if answers[0][0] == Ack.ACCEPT else None


def rows_in(outputs: pa.Table) -> list[Any]:
    """As text: NaN is not equal to itself, and some times are no Python dates."""
    return [str([column[row] for column in outputs.columns]) for row in range(outputs.num_rows)]


@given(st.lists(ANSWERS, min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_answers_of_records(answers: list[Any]) -> None:
    found, _ = judged(lambda record: answers[record.offset], len(answers))
    for answer, (code, error) in zip(answers, found, strict=True):
        if answer is None or isinstance(answer, Ack):
            assert (code, error) == (answer or Ack.ACCEPT, None)
        elif code == Ack.ACCEPT:
            assert error is None


@given(st.lists(TEXTS, min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_errors_of_records(texts: list[str]) -> None:
    def handle(record: Any) -> Any:
        raise ValueError(texts[record.offset])

    found, _ = judged(handle, len(texts))
    for text, (_, error) in zip(texts, found, strict=True):
        clean = text.encode("utf-8", "backslashreplace").decode()
        assert error == (f"ValueError: {clean}" if text else "ValueError")


@given(st.lists(ROWS, min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_output_rows_of_records(rows: list[Any]) -> None:
    found, outputs = judged(lambda record: (Ack.ACCEPT, rows[record.offset]), len(rows), OUTPUT)
    assert outputs is not None
    alone = [converts(value) for value in rows]
    assert [code == Ack.ACCEPT for code, _ in found] == [one is not None for one in alone]
    assert rows_in(outputs) == [row for one in alone for row in one or ()]


@given(st.lists(COST_FUNCTIONS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_costs(costs: list[Any]) -> None:
    """Numbers of 0 or more are added up; anything else is the failure of its record."""

    def said(record: Any) -> Any:
        return costs[record.offset]()

    found, total = costed(lambda record: Ack.accept(cost=said(record)), len(costs))
    right = [value for value in map(valid_cost, costs) if value is not None]
    assert [code == Ack.ACCEPT for code in found] == [valid_cost(one) is not None for one in costs]
    assert math.isclose(total, sum(right))
    assert costed(lambda _: None, len(costs), cost=said) == (found, total)
    of_a_batch, total_of_it = costed(arrow_handler(lambda batch: [1] * batch.num_rows), len(costs), cost=said)
    assert of_a_batch == found
    assert math.isclose(total_of_it, total)


def costed(handler: Any, records: int, **settings: Any) -> tuple[list[int], float]:
    """The codes of the records, and what they have cost."""
    with TimeLimit(None) as limit:
        calls = Calls(limit=limit)
        outcome = call_handler(as_handler(handler, **settings), batch_of(records), calls)
    return outcome.answers.codes.tolist(), calls.cost


def valid_cost(cost: Any) -> float | None:
    try:
        value = cost()
    except BaseException:  # noqa: BLE001
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < math.inf else None


@given(st.lists(ANSWERS, min_size=1, max_size=5), st.sampled_from([list, tuple, pd.Series]))
@settings(max_examples=30, deadline=None)
def test_answers_of_a_batch(answers: list[Any], form: Any) -> None:
    found = judged_or_refused(
        lambda _: form(answers) if form is not pd.Series else pd.Series(answers, dtype=object), len(answers)
    )
    if found is not None and form is list:
        assert [code for code, _ in found] == [alone(answer) for answer in answers]


def alone(answer: Any) -> int:
    """The code of an answer to one record; to a batch, None is none."""
    ((code, _),) = judged(lambda _: answer, 1)[0]
    return int(Ack.RELEASE) if answer is None else code


def judged_or_refused(handler: Any, records: int, output: pa.Schema | None = None) -> Answered | None:
    """None if the contract of the batch as a whole is broken: nothing else may be raised."""
    try:
        return judged(pandas_handler(handler), records, output)[0]
    except HandlerError:
        return None


@given(st.lists(st.tuples(ANSWERS, VALUES, VALUES, VALUES, VALUES), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_tables_of_a_batch(rows: list[tuple[Any, ...]]) -> None:
    acks, errors, delays, costs, names = (pd.Series(list(values), dtype=object) for values in zip(*rows, strict=True))
    frame = pd.DataFrame({"ack": acks, "error": errors, "delay_ms": delays, "cost": costs})
    judged_or_refused(lambda _: frame, len(rows))
    columns = dict.fromkeys(OUTPUT.names) | {"id": 1, "name": names, "at": names, "day": names, "ack": 1}
    judged_or_refused(lambda _: pd.DataFrame(columns, index=names.index), len(rows), OUTPUT)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_arrow_columns_of_a_batch(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    kinds = st.sampled_from([pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.null(), pa.timestamp("us", "UTC")])

    def column() -> Any:
        kind = data.draw(kinds)
        numbers = [data.draw(st.none() | st.integers(0, 4) | st.integers(0, 2**63 - 1)) for _ in range(size)]
        if kind == pa.null():
            return pa.nulls(size)
        return (
            pa.array([str(one) for one in numbers])
            if kind == pa.string()
            else pa.array(numbers, pa.int64()).cast(kind, safe=False)
        )

    table = pa.table({name: column() for name in ("ack", "error", "delay_ms", "cost", "at")})
    judged_or_refused(lambda _: table, size)
    columns: dict[str, Any] = {name: pa.nulls(size, OUTPUT.field(name).type) for name in OUTPUT.names}
    columns |= {"ack": [1] * size, "id": [1] * size, "at": table.column("at")}
    rows = pa.table(columns)
    try:
        judged(arrow_handler(lambda _: rows), size, OUTPUT)
    except HandlerError as fault:
        raise AssertionError("rows that do not fit release their records") from fault
