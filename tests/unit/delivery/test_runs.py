"""Answers as runs: what workers send, what the driver makes of it, and which task may call a handler. No JVM."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import zipimport
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from share_spark.delivery.frame import settled
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.packed_handler import packed
from share_spark.delivery.result import DeliveryResult, decoded, read_once
from share_spark.delivery.runs import (
    PRESENT,
    RUN_SCHEMA,
    RunLog,
)
from share_spark.delivery.task_report import TaskReport
from share_spark.delivery.worker import HandlerTask, Terms, is_first_attempt
from share_spark.delta.table_layout import FilePlace, TableLayout
from share_spark.handlers.acknowledgement import Ack, Answers
from share_spark.handlers.handler import Handler, arrow_handler, as_handler
from share_spark.model.errors import HandlerError, ShareError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss
from share_spark.spark.python_worker import drop_zip_importers
from tests.support.handled import new_place
from tests.unit.delivery.test_calling import batch_of

Row = tuple[str, int, int, int, int, str | None]


def keys(*records: tuple[str, int, int]) -> pa.RecordBatch:
    """A batch of (topic, partition, offset)."""
    topics, partitions, offsets = zip(*records, strict=True)
    columns = [pa.array(topics), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset"])


def orders(*offsets: int) -> pa.RecordBatch:
    return keys(*(("orders", 0, offset) for offset in offsets))


def rows(batch: pa.RecordBatch) -> list[Row]:
    """Without the delay, and without the report."""
    return [tuple(row.values())[:6] for row in batch.to_pylist() if row["report"] is None]  # type: ignore[misc]


def logged(*parts: tuple[pa.RecordBatch, Answers]) -> list[Row]:
    log = RunLog()
    for batch, answers in parts:
        log.add(batch, answers)
    return rows(log.batch())


def accepted(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Answers]:
    return batch, Answers.same(batch.num_rows, Ack.ACCEPT)


# ----------------------------------------------------------------------------------------- what workers send


def test_equal_answers_of_consecutive_offsets_are_one_run_across_batches() -> None:
    assert logged(accepted(orders(5, 6)), accepted(orders(7, 8))) == [("orders", 0, 5, 8, 1, None)]


def test_a_missing_offset_ends_a_run() -> None:
    assert logged(accepted(orders(1, 2, 4))) == [("orders", 0, 1, 2, 1, None), ("orders", 0, 4, 4, 1, None)]


def test_another_answer_or_error_ends_a_run() -> None:
    answers = Answers.listed([1, 2, 2, 2, 3], {1: "a", 2: "a", 3: "b"})
    assert logged((orders(0, 1, 2, 3, 4), answers)) == [
        ("orders", 0, 0, 0, 1, None),
        ("orders", 0, 1, 2, 2, "a"),
        ("orders", 0, 3, 3, 2, "b"),
        ("orders", 0, 4, 4, 3, None),
    ]


def test_another_delay_ends_a_run_and_comes_to_the_driver_with_the_release_it_is_of() -> None:
    log = RunLog()
    log.add(orders(0, 1, 2, 3, 4), Answers.listed([2, 2, 2, 2, 1], {}, {0: 500, 1: 500, 2: 0, 4: 9}))
    assert [tuple(row.values())[2:] for row in log.batch().to_pylist()] == [
        (0, 1, 2, None, 500, None),
        (2, 2, 2, None, 0, None),
        (3, 3, 2, None, None, None),
        (4, 4, 1, None, None, None),
    ]
    (span,) = decoded(table(log.batch()), read_once).partitions.values()
    assert span.delays == ((0, 1, 500), (2, 2, 0))


def test_interleaved_partitions_and_topics() -> None:
    mixed = keys(("a", 0, 1), ("a", 1, 2), ("a", 0, 2), ("b", 0, 3), ("a", 1, 3))
    assert logged(accepted(mixed)) == [("a", 0, 1, 2, 1, None), ("a", 1, 2, 3, 1, None), ("b", 0, 3, 3, 1, None)]


def test_no_records() -> None:
    assert logged(accepted(orders(1).slice(0, 0))) == []


def test_random_answers_are_neither_lost_nor_joined_wrongly() -> None:
    random = np.random.default_rng(7)
    offsets = np.flatnonzero(random.random(2000) < 0.9)
    codes = np.where(random.random(len(offsets)) < 0.9, 1, 2)
    batch = orders(*offsets.tolist())
    parts = [
        (batch.slice(at, 300), Answers.listed(codes[at : at + 300].tolist(), {})) for at in range(0, len(offsets), 300)
    ]
    runs = logged(*parts)
    expanded = [(offset, code) for _, _, first, last, code, _ in runs for offset in range(first, last + 1)]
    assert expanded == list(zip(offsets.tolist(), codes.tolist(), strict=True))
    assert all(a[3] + 1 < b[2] or a[4] != b[4] for a, b in itertools.pairwise(runs))


# ------------------------------------------------------------------------------------- what the driver makes


def table(*sent: Row | pa.RecordBatch) -> pa.Table:
    """Rows as workers send them, in the order given."""
    batches = [
        one
        if isinstance(one, pa.RecordBatch)
        else pa.RecordBatch.from_pylist([dict(zip(RUN_SCHEMA.names, (*one, None, None), strict=False))], RUN_SCHEMA)
        for one in sent
    ]
    return pa.Table.from_batches(batches, RUN_SCHEMA)


def acknowledgements(result: DeliveryResult) -> dict[str, Any]:
    return {str(key): [(*run,) for run in span.ranges] for key, span in result.partitions.items()}


def test_runs_of_all_tasks_are_sorted_and_joined() -> None:
    sent = table(("a", 1, 10, 19, 1, None), ("a", 0, 5, 9, 2, "x"), ("a", 1, 0, 9, 1, None), ("a", 0, 10, 12, 2, "x"))
    result = decoded(sent, read_once)
    assert acknowledgements(result) == {"a-0": [(5, 12, 2)], "a-1": [(0, 19, 1)]}
    assert result.partitions[TopicPartition("a", 0)].errors == ((5, 12, "x"),)
    assert (result.accepted, result.released, result.rejected, result.lost) == (20, 8, 0, False)


def test_nothing_delivered() -> None:
    assert acknowledgements(decoded(RUN_SCHEMA.empty_table(), read_once)) == {}


def report(**found: Any) -> pa.RecordBatch:
    return TaskReport(**found).row()


def test_reports() -> None:
    row = ("a", 0, 0, 1, 1, None)
    result = decoded(table(row, report(attempt_id=7, output_rows=3), report(attempt_id=8)), read_once)
    assert (result.accepted, result.produced) == (2, {7: 3, 8: 0})
    assert result.fault is None
    both = table(row, report(fault="b"), report(violation="handler x\n returned nothing"))
    broken = decoded(both, read_once).fault
    assert isinstance(broken, HandlerError)
    assert str(broken) == "handler x returned nothing"
    failed = decoded(table(row, report(fault="b")), read_once)
    assert type(failed.fault) is ShareError
    assert failed.accepted == 2


def test_the_busiest_task_sets_the_pace() -> None:
    result = decoded(table(report(entered=10, busy_s=0.5), report(entered=30, busy_s=2.0)), read_once)
    assert (result.entered, result.busy_s) == (40, 2.0)


def test_a_record_read_twice() -> None:
    with pytest.raises(ShareError, match=r"record a-0@4 was read twice"):
        decoded(table(("a", 0, 0, 5, 1, None), ("a", 0, 4, 8, 1, None)), read_once)


# -------------------------------------------------------------------------------------------- frame handlers

PRESENT_ROWS: tuple[Row, ...] = (
    ("a", 0, 0, 9, PRESENT, None),
    ("a", 0, 10, 14, PRESENT, None),
    ("a", 0, 20, 22, PRESENT, None),
)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(0, 14, 1), (20, 22, 1)], [(0, 14, 1), (20, 22, 1)]),
        ([], [(0, 14, 2), (20, 22, 2)]),
        ([(3, 4, 1), (12, 14, 3)], [(0, 2, 2), (3, 4, 1), (5, 11, 2), (12, 14, 3), (20, 22, 2)]),
        ([(21, 21, 1)], [(0, 14, 2), (20, 20, 2), (21, 21, 1), (22, 22, 2)]),
    ],
)
def test_what_a_frame_leaves_out_is_released(answers: list[tuple[int, int, int]], expected: Any) -> None:
    sent = [("a", 0, first, last, ack, None) for first, last, ack in answers]
    assert acknowledgements(decoded(table(*PRESENT_ROWS, *sent), settled("h")))["a-0"] == expected


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([(0, 4, 1), (3, 3, 1)], "handler h returned record a-0@3 twice"),
        ([(13, 16, 1)], "handler h returned record a-0@15, which it was not given"),
        ([(16, 17, 1)], "handler h returned record a-0@16, which it was not given"),
        ([(23, 23, 1)], "handler h returned record a-0@23, which it was not given"),
    ],
)
def test_what_a_frame_must_not_return(answers: list[tuple[int, int, int]], message: str) -> None:
    sent = [("a", 0, first, last, ack, None) for first, last, ack in answers]
    with pytest.raises(HandlerError, match=message):
        decoded(table(*PRESENT_ROWS, *sent), settled("h"))


def test_a_partition_that_a_frame_was_not_given() -> None:
    with pytest.raises(HandlerError, match="record b-0@0, which it was not given"):
        decoded(table(*PRESENT_ROWS, ("b", 0, 0, 0, 1, None)), settled("h"))


# -------------------------------------------------------------------------------------------------- the task


@pytest.mark.parametrize(
    ("attempt", "thread", "first"),
    [
        (0, "Thread[Executor task launch worker for task 1.0 in stage 3.0 (TID 45),5,main]", True),
        (0, "Thread[Executor task launch worker for task 1.0 in stage 3.1 (TID 45),5,main]", False),
        (0, "Thread[Executor task launch worker for task 1.0 in stage 3.10 (TID 45),5,main]", False),
        (1, "Thread[Executor task launch worker for task 1.1 in stage 3.0 (TID 46),5,main]", False),
        (0, None, True),
        (1, None, False),
    ],
)
def test_who_may_call(attempt: int, thread: str | None, first: bool) -> None:
    assert is_first_attempt(attempt, thread) is first


def made(handler: Handler, place: LedgerPlace | None = None, **settings: Any) -> HandlerTask:
    place = place or new_place()
    given = {"name": handler.name, "payload": packed(handler), "output": handler.output, "delivery": "x", **settings}
    return HandlerTask(place=place, **given)


def sent(
    handler: Handler, *batches: pa.RecordBatch, place: LedgerPlace | None = None, thread: str | None = None
) -> list[pa.RecordBatch]:
    """What a task of this handler sends."""
    with_task = [one.append_column("__task", pa.array([thread] * one.num_rows, pa.string())) for one in batches]
    return list(made(handler, place)(iter(with_task)))


def reported(batches: Sequence[pa.RecordBatch]) -> TaskReport:
    """The report of a task: its last row."""
    return TaskReport.parse(batches[-1].column("report")[-1].as_py())


def task(function: Any, *batches: pa.RecordBatch, **settings: Any) -> list[Row]:
    results = sent(as_handler(arrow_handler(function)), *batches, **settings)
    return [row for batch in results for row in rows(batch)]


def test_a_task() -> None:
    assert task(lambda batch: [1] * len(batch), batch_of(3).slice(0, 0), batch_of(3)) == [("orders", 0, 0, 2, 1, None)]
    assert task(lambda batch: [1] * len(batch)) == []


def test_records_that_take_longer_to_read_than_the_budget_are_handled() -> None:
    """Or else none of them would ever be."""

    def slowly_read() -> Iterator[pa.RecordBatch]:
        time.sleep(0.2)
        yield batch_of(3).append_column("__task", pa.nulls(3, pa.string()))

    handler = as_handler(arrow_handler(lambda batch: [1] * len(batch)))
    found = [*made(handler, terms=Terms(budget_s=0.1))(slowly_read())]
    assert rows(found[0]) == [("orders", 0, 0, 2, 1, None)]


REPEAT = "task 0.0 in stage 2.1 (TID 3)"


def test_a_repeat_that_may_have_lost_the_ledger_calls_nothing() -> None:
    place = new_place(one_machine=False)
    assert task(lambda _: 1 / 0, batch_of(3), thread=REPEAT, place=place) == [
        ("orders", 0, 0, 2, Loss.UNKNOWN, "worker lost")
    ]


def test_a_repeat_that_would_have_found_a_ledger_handles_what_no_run_has() -> None:
    assert task(lambda batch: [1] * len(batch), batch_of(3), thread=REPEAT) == [("orders", 0, 0, 2, 1, None)]


def test_a_thread_with_a_name_of_another_form_is_said_to_the_driver() -> None:
    handler = as_handler(arrow_handler(lambda batch: [1] * len(batch)))
    result = decoded(pa.Table.from_batches(sent(handler, batch_of(3), thread="Worker-7")), read_once)
    assert (result.unknown_thread, result.accepted) == ("Worker-7", 3)


def test_a_task_that_is_run_again_calls_nothing_twice() -> None:
    place = new_place()
    first = task(lambda _: [1, 2, 3], batch_of(3), place=place)
    assert task(lambda _: 1 / 0, batch_of(3), place=place) == first


def test_a_repeat_of_a_task_reports_the_delays_of_the_first_run() -> None:
    place = new_place()
    answers = pa.table({"ack": [2, 2, 1], "delay_ms": [500, None, None]})
    handler = as_handler(arrow_handler(lambda _: answers))
    first, repeat = (pa.Table.from_batches(sent(handler, batch_of(3), place=place)) for _ in range(2))
    said = [500, None, None, None]  # the last row is the report
    assert first.column("delay_ms").to_pylist() == repeat.column("delay_ms").to_pylist() == said


def price(batch: pa.RecordBatch) -> pa.Table:
    """Accepts even offsets and rejects odd ones, with an output row for each."""
    offsets = batch.column("offset").to_pylist()
    return pa.table({"ack": [1 if offset % 2 == 0 else 3 for offset in offsets], "id": offsets})


def test_output_rows_of_accepted_records_leave_batch_by_batch_in_one_schema() -> None:
    handler = as_handler(arrow_handler(price), output=pa.schema([pa.field("id", pa.int32(), nullable=False)]))
    batches = list(sent(handler, batch_of(3), batch_of(2)))
    assert len({batch.schema for batch in batches}) == 1
    rows = [(row["ack"], row["output"]) for batch in batches for row in batch.to_pylist()]
    assert rows[:3] == [(None, {"id": 0}), (None, {"id": 2}), (None, {"id": 0})]
    assert [output for _, output in rows[3:]] == [None] * len(rows[3:])
    assert reported(batches).output_rows == 3


def in_files(directory: Path, function: Any) -> DeliveryResult:
    """What a task says whose output rows go to files of a table that is partitioned by ``id``."""
    handler = as_handler(arrow_handler(function), output=pa.schema([("id", pa.int64())]))
    layout = TableLayout(columns=("id", "more"), partitioned_by=("id",))
    task = made(handler, output_place=FilePlace(str(directory), layout))
    batch = batch_of(4).append_column("__task", pa.nulls(4, pa.string()))
    return decoded(pa.Table.from_batches(task(iter([batch]))), read_once)


def test_output_rows_in_files_of_their_partitions(tmp_path: Path) -> None:
    result = in_files(tmp_path, price)
    assert [(file.values, file.rows) for file in result.files] == [({"id": "0"}, 1), ({"id": "2"}, 1)]
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")} == {
        file.path for file in result.files
    }


def test_output_rows_that_cannot_be_written_are_one_line_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "id=2").touch()  # not a directory: the file of id=0 is begun by then
    result = in_files(tmp_path, price)
    assert str(result.fault).startswith(f"output rows cannot be written to {tmp_path}: ")
    assert (result.files, list(tmp_path.rglob("*.parquet"))) == ([], [])


def test_a_lost_attempt_has_no_output() -> None:
    handler = as_handler(arrow_handler(price), output=pa.schema([("id", pa.int64())]))
    place = new_place(one_machine=False)
    batches = sent(handler, batch_of(3), thread=REPEAT, place=place)
    assert [row["ack"] for batch in batches for row in batch.to_pylist()] == [Loss.UNKNOWN, None]


def test_a_broken_contract_leaves_in_the_report_and_its_records_have_no_answer() -> None:
    batches = sent(as_handler(arrow_handler(lambda _: [1])), batch_of(3))
    assert [row for batch in batches for row in rows(batch)] == [("orders", 0, 0, 2, Loss.NOT_ENTERED, None)]
    violation = reported(batches).violation
    assert violation is not None
    assert violation.endswith("returned 1 acknowledgements for 3 records")


def test_a_handler_that_cannot_travel() -> None:
    lock = threading.Lock()
    with pytest.raises(HandlerError, match="cannot be sent to the workers: TypeError: cannot pickle"):
        packed(as_handler(lambda _: lock.locked()))


def test_a_handler_that_cannot_be_loaded_on_a_worker() -> None:
    task = made(as_handler(price), name="m:f", payload=b"nonsense")
    violation = reported(list(task(iter(())))).violation
    assert violation is not None
    assert violation.startswith("handler m:f cannot be loaded on a worker: UnpicklingError")


def test_zip_importers_are_forgotten(tmp_path: Any) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("module.py", "")
    path = str(tmp_path / "lib.zip")
    sys.path_importer_cache[path] = zipimport.zipimporter(path)  # type: ignore[assignment]
    drop_zip_importers()
    assert path not in sys.path_importer_cache
