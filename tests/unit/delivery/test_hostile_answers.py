"""Whatever one answer of a handler is or raises is the failure of its record, in the run and in its ledger. No JVM."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from share_spark.delivery.calling import call_handler
from share_spark.delivery.calls import CallOutcome, Calls
from share_spark.delivery.ledger import CallLedger
from share_spark.delivery.runs import RunLog
from share_spark.delivery.task_report import TaskReport
from share_spark.delivery.traces import codes_of
from share_spark.handlers.acknowledgement import Ack, Acknowledgement
from share_spark.handlers.handler import Record, arrow_handler, as_handler
from share_spark.handlers.time_limit import TimeLimit
from share_spark.model.errors import HandlerError
from tests.support.hostile_answers import COSTS, NAMES, NAMES_OF_ROWS, PanicException, Unseen, answer_of, error_of, lone
from tests.unit.delivery.test_calling import batch_of, without_fault

_PLACE: Any = [pa.field("x", pa.int32()), pa.field("counts", pa.map_(pa.string(), pa.int64()))]
OUTPUT = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("places", pa.list_(pa.field("element", pa.struct(_PLACE)))),
    ]
)

Answered = list[tuple[int, str | None]]


def handled(handler: Any, records: int, path: Path, output: pa.Schema | None = None) -> tuple[CallOutcome, Answered]:
    """What a task reports of the records, and that a repeat of it would report the same from the ledger."""
    batch = batch_of(records)
    ledger = CallLedger(path, "orders")
    log = RunLog("orders")
    with TimeLimit(None) as limit:
        made = as_handler(handler, output=output)
        outcome = without_fault(call_handler(made, batch, Calls(limit=limit, ledger=ledger)))
    log.add(batch, outcome.answers)
    ledger.close()
    again = CallLedger(path, "orders")
    entries = again.settle("worker lost")
    repeated = RunLog("orders")
    repeated.add_entries(entries, codes_of(entries), np.ones(len(entries), np.bool_))
    again.close()
    reported = answers_in(log)
    assert answers_in(repeated) == reported
    return outcome, reported


def answers_in(log: RunLog) -> Answered:
    found = {}
    for row in log.batch().to_pylist():
        for offset in range(row["first_offset"], row["last_offset"] + 1):
            assert offset not in found
            found[offset] = row["ack"], row["error"]
    return [found[offset] for offset in sorted(found)]


def misbehaving(name: str) -> Any:
    """With the second of three records."""

    def handle(record: Record) -> Any:
        return answer_of(name) if record.offset == 1 else None

    return handle


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_the_failure_of_its_record(name: str, tmp_path: Path) -> None:
    _, (before, (code, error), after) = handled(misbehaving(name), 3, tmp_path / "0")
    assert before == after == (Ack.ACCEPT, None)
    assert code in (Ack.RELEASE, Ack.REJECT)
    assert error is not None
    assert error.startswith(error_of(name))


@pytest.mark.parametrize("name", NAMES_OF_ROWS)
def test_output_is_the_failure_of_its_record(name: str, tmp_path: Path) -> None:
    def handle(record: Record) -> Any:
        return answer_of(name) if record.offset == 1 else (Ack.ACCEPT, {"id": record.offset})

    outcome, (before, (code, error), after) = handled(handle, 3, tmp_path / "0", OUTPUT)
    assert before == after == (Ack.ACCEPT, None)
    assert code == Ack.RELEASE
    assert error is not None
    assert error.startswith(error_of(name))
    assert outcome.outputs is not None
    assert outcome.outputs.column("id").to_pylist() == [0, 2]


@pytest.mark.parametrize("name", ["a coroutine", "a coroutine for rows", "a coroutine with rows"])
def test_a_coroutine_that_is_returned_is_closed(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        handled(misbehaving(name), 3, tmp_path / "0", OUTPUT)
        gc.collect()
    assert [str(one.message) for one in said] == []


def test_a_dict_that_the_handler_uses_again_has_its_row_of_each_record(tmp_path: Path) -> None:
    row: dict[str, Any] = {}

    def handle(record: Record) -> Any:
        row["id"] = record.offset
        return Ack.ACCEPT, row

    outcome, _ = handled(handle, 3, tmp_path / "0", OUTPUT)
    assert outcome.outputs is not None
    assert outcome.outputs.column("id").to_pylist() == [0, 1, 2]


def test_ctrl_c_is_no_answer(tmp_path: Path) -> None:
    def handle(record: Record) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handled(handle, 1, tmp_path / "0")


def test_a_ledger_with_a_text_that_no_file_takes(tmp_path: Path) -> None:
    """Releases before have written such."""
    handled(misbehaving("a panic"), 3, tmp_path / "0")
    notes = tmp_path / "0.notes"
    notes.write_text(notes.read_text().replace("index out of bounds", r"unknown \ud83d"))
    entries = CallLedger(tmp_path / "0", "orders").entries
    assert entries.errors == {1: r"PanicException: unknown \ud83d"}


def test_a_fault_of_the_task_with_a_lone_surrogate() -> None:
    (row,) = TaskReport(violation=lone()).row().to_pylist()
    assert TaskReport.parse(row["report"]).violation == r"unknown \ud83d"


def test_reasons_are_kept_as_texts() -> None:
    assert Ack.reject("no city") == Acknowledgement(Ack.REJECT, "no city")


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_cost_is_the_failure_of_its_record(name: str, is_batch: bool, tmp_path: Path) -> None:
    say, error = COSTS[name]
    handler: Any = arrow_handler(lambda batch: [1] * batch.num_rows) if is_batch else lambda _: None
    made = as_handler(handler, cost=lambda record: say() if record.offset == 1 else 5)
    _, (before, failed, after) = handled(made, 3, tmp_path / "0")
    assert before == after == (Ack.ACCEPT, None)
    assert failed[0] == Ack.RELEASE
    assert str(failed[1]).startswith(error)


# ------------------------------------------------------------------------------------------------ handlers of batches


@pytest.mark.parametrize("name", NAMES)
def test_an_element_of_a_list_is_the_failure_of_its_record(name: str, tmp_path: Path) -> None:
    def handle(_: pa.RecordBatch) -> Any:
        try:
            return [1, answer_of(name), 1]
        except BaseException as fault:  # noqa: BLE001
            return [1, Ack.release(fault), 1]

    _, (before, (code, error), after) = handled(arrow_handler(handle), 3, tmp_path / "0")
    assert before == after == (Ack.ACCEPT, None)
    assert code in (Ack.RELEASE, Ack.REJECT)
    assert error is not None
    assert error.startswith(error_of(name))


@pytest.mark.parametrize("error", [PanicException("no index"), GeneratorExit("no index"), ValueError(lone())])
def test_what_a_call_for_a_batch_raises_releases_the_batch(error: BaseException, tmp_path: Path) -> None:
    def handle(_: pa.RecordBatch) -> Any:
        raise error

    _, (first, second) = handled(arrow_handler(handle), 2, tmp_path / "0")
    assert first == second
    assert first[1] in (f"{type(error).__name__}: no index", r"ValueError: unknown \ud83d")


def test_an_answer_for_a_batch_that_raises_releases_the_batch(tmp_path: Path) -> None:
    _, answers = handled(arrow_handler(lambda _: Unseen()), 2, tmp_path / "0")
    assert answers == [(2, "answered what cannot be looked at: LookupError: not to be looked at")] * 2


MIXED: list[tuple[Any, list[str | None]]] = [
    ({"ack": [1, Ack.release("no city"), "reject"]}, [None, "no city", None]),
    ({"ack": [1, 2, 3], "error": [None, lone(), ValueError("x")]}, [None, r"unknown \ud83d", "ValueError: x"]),
    ({"ack": [1, 2, 3], "error": [float("nan"), 7, "late"]}, [None, "7", "late"]),
    ({"ack": [1, lone(), 3]}, [None, r"answered 'unknown \ud83d', which is not Ack.ACCEPT, ", None]),
    ({"ack": [1, 10**30, 3]}, [None, f"answered {10**30}, which is not Ack.ACCEPT, ", None]),
    ({"ack": [1.0, None, float("inf")]}, [None, "returned no acknowledgement (null)", "answered inf, which is not "]),
    ({"ack": [1, 2, 2], "delay_ms": [0, 2**63, 5]}, [None, f"answered with a delay_ms of {2**63}, not ", None]),
    ({"ack": [1, 2, 2], "delay_ms": [0, "5", 5]}, [None, "answered with a delay_ms of '5', not ", None]),
]


@pytest.mark.parametrize(("columns", "errors"), MIXED)
def test_columns_of_objects_are_judged_row_by_row(columns: Any, errors: list[str | None], tmp_path: Path) -> None:
    _, answers = handled(arrow_handler(lambda _: pd.DataFrame(columns)), 3, tmp_path / "0")
    assert answers[0] == (1, None)
    for (_, error), expected in zip(answers, errors, strict=True):
        assert error == expected or str(error).startswith(expected or "nothing")


def test_rows_of_a_batch_that_do_not_convert(tmp_path: Path) -> None:
    def handle(_: pa.RecordBatch) -> Any:
        return pd.DataFrame(
            {"ack": 1, "id": [1, 2, 3], "name": ["a", lone(), "c"], "at": [0, 0, 2**60], "places": None}
        )

    outcome, (first, second, third) = handled(arrow_handler(handle), 3, tmp_path / "0", OUTPUT)
    assert first == (1, None)
    assert "output column name that is no string: UnicodeEncodeError" in str(second[1])
    assert "output column at with a time outside of the years 1 to 9999" in str(third[1])
    assert outcome.outputs is not None
    assert outcome.outputs.column("id").to_pylist() == [1]


def test_a_coroutine_for_a_batch_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(HandlerError, match="returned a coroutine, which nothing awaits"):
        handled(arrow_handler(lambda _: answer_of("a coroutine")), 2, tmp_path / "0")


@pytest.mark.parametrize(
    ("spot", "is_right"), [({"x": 1, "y": None}, True), ({"x": None, "y": 1}, False), ({"y": 1}, False), (None, False)]
)
def test_a_null_inside_of_a_row_where_the_schema_has_none(tmp_path: Path, spot: Any, is_right: bool) -> None:
    """Delta refuses the rows, with all others, for a struct that is null as well."""
    inner = [pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())]
    output = pa.schema([pa.field("id", pa.int64()), pa.field("spot", pa.struct(inner))])
    handle: Any = lambda record: (Ack.ACCEPT, {"id": record.offset, "spot": spot if record.offset == 1 else {"x": 7}})  # noqa: E731
    outcome, (_, (code, error), _) = handled(handle, 3, tmp_path / "0", output)
    expected = "returned null in output column x, which must not be null (in spot)"
    assert (code, error) == ((Ack.ACCEPT, None) if is_right else (Ack.RELEASE, expected))
    assert outcome.outputs is not None
    assert outcome.outputs["id"].to_pylist() == ([0, 1, 2] if is_right else [0, 2])
