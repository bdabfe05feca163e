"""The ledger of a task: workers are killed in the middle of calls, in processes of their own, and run again. No JVM."""

from __future__ import annotations

import hashlib
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from share_spark.delivery.ledger import CallLedger, CallStatus, LedgerEntries, read_entries
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.member_ledgers import MemberLedgers
from share_spark.delivery.packed_handler import packed
from share_spark.delivery.task_report import TaskReport
from share_spark.delivery.traces import codes_of, left_calls, member_traces
from share_spark.delivery.worker import HandlerTask, Terms
from share_spark.engine.attempts import FinishedCalls, MemberTrace
from share_spark.engine.ports import Claim
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Handler, Record, arrow_handler, as_handler
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss
from tests.support.small_disk import fill, small_disk
from tests.unit.delivery.test_calling import batch_of

AT = TopicPartition("orders", 0)
RECORDS = 50


class Worker:
    """A task that is run in a child process, again and again, as Spark does. ``calls``: offsets, as the handlers wrote
    them down before anything else."""

    def __init__(self, directory: Path, handler: Callable[..., Any], **settings: Any) -> None:
        self.place = LedgerPlace(group="group", member_id=uuid.uuid4().hex, shared=str(directory / "ledgers"))
        self.place.start()
        self._calls, self._sent = directory / "calls", directory / "sent"
        self.handler: Handler = as_handler(self._noted(handler), **settings)

    def _noted(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        path = self._calls

        def noted(record: Any) -> Any:
            offsets = [record.offset] if isinstance(record, Record) else record.column("offset").to_pylist()
            with path.open("a") as file:
                print(*offsets, file=file, flush=True)
            return handler(record)

        return arrow_handler(noted) if handler.__name__.startswith("batch") else noted

    def run(self, records: int = RECORDS, batch: int = 20, terms: Terms | None = None) -> bool:
        """Did the process live to the end?"""
        child = os.fork()
        if child == 0:
            self._work(records, batch, terms or Terms())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        return status == 0

    def _work(self, records: int, size: int, terms: Terms) -> None:
        task = HandlerTask(
            name=self.handler.name,
            payload=packed(self.handler),
            output=self.handler.output,
            place=self.place,
            delivery="delivery",
            terms=terms,
        )
        whole = batch_of(records).append_column("__task", pa.nulls(records, pa.string()))
        sent = list(task(iter([whole.slice(at, size) for at in range(0, records, size)])))
        with pa.OSFile(str(self._sent), "wb") as file, pa.ipc.new_stream(file, sent[0].schema) as writer:
            for batch in sent:
                writer.write_batch(batch)

    def answers(self) -> dict[int, tuple[int, str | None]]:
        """What the run that lived has sent, by offset."""
        rows = self.rows()
        return {
            offset: (row["ack"], row["error"])
            for row in rows
            if row["ack"] is not None
            for offset in range(row["first_offset"], row["last_offset"] + 1)
        }

    def rows(self) -> list[dict[str, Any]]:
        with pa.OSFile(str(self._sent), "rb") as file:
            return [*pa.ipc.open_stream(file).read_all().to_pylist()]

    def report(self) -> TaskReport:
        (text,) = (row["report"] for row in self.rows() if row["report"])
        return TaskReport.parse(text)

    @property
    def calls(self) -> Counter[int]:
        return Counter(int(offset) for offset in self._calls.read_text().split())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_record_that_kills_its_worker_costs_one_record_one_attempt(tmp_path: Path) -> None:
    def handle(record: Record) -> Any:
        if record.offset in (7, 33):
            die()
        if record.offset == 5:
            raise ValueError("not yet")
        return Ack.reject("never") if record.offset == 6 else None

    worker = Worker(tmp_path, handle)
    assert [worker.run(), worker.run(), worker.run()] == [False, False, True]
    assert worker.calls == Counter(range(RECORDS))
    others = {5: (2, "ValueError: not yet"), 6: (3, "never"), 7: (2, "worker lost"), 33: (2, "worker lost")}
    assert worker.answers() == {offset: others.get(offset, (1, None)) for offset in range(RECORDS)}


def test_a_batch_that_kills_its_worker_costs_its_records_and_the_others_go_on(tmp_path: Path) -> None:
    def batch(records: pa.RecordBatch) -> Any:
        if 33 in records.column("offset").to_pylist():
            die()
        return [1] * records.num_rows

    worker = Worker(tmp_path, batch)
    assert [worker.run(), worker.run()] == [False, True]
    assert worker.calls == Counter(range(RECORDS))
    lost = (int(Loss.AMONG_OTHERS), None)
    assert worker.answers() == {offset: lost if 20 <= offset < 40 else (1, None) for offset in range(RECORDS)}


def test_in_turn_the_one_of_a_batch_is_found(tmp_path: Path) -> None:
    def batch(records: pa.RecordBatch) -> Any:
        if 33 in records.column("offset").to_pylist():
            die()
        return [1] * records.num_rows

    worker = Worker(tmp_path, batch)
    terms = Terms(in_turn=True)
    assert [worker.run(terms=terms), worker.run(terms=terms)] == [False, True]
    assert worker.calls == Counter(range(RECORDS))
    assert {offset for offset, (ack, _) in worker.answers().items() if ack != Ack.ACCEPT} == {33}


def slow_rows(record: Record) -> Any:
    time.sleep(0.03)
    if record.offset == 12:
        die()
    return Ack.ACCEPT, {"id": record.offset}


def fast_rows(record: Record) -> Any:
    if record.offset == 32:
        die()
    return Ack.ACCEPT, {"id": record.offset}


def test_rows_that_were_written_outlive_the_worker_and_the_others_come_again(tmp_path: Path) -> None:
    """What is put out and what is accepted are the same records, each once."""
    for handle, most_lost in ((slow_rows, 3), (fast_rows, 12)):
        directory = tmp_path / handle.__name__
        directory.mkdir()
        worker = Worker(directory, handle, output=pa.schema([("id", pa.int64())]))
        assert [worker.run(), worker.run()] == [False, True]
        answers = worker.answers()
        accepted = [offset for offset, (ack, _) in answers.items() if ack == Ack.ACCEPT]
        again = [offset for offset, (ack, _) in answers.items() if ack == Loss.FINISHED]
        put_out = [row["output"]["id"] for row in worker.rows() if row["output"]]
        assert sorted(put_out) == sorted(accepted)
        assert len(accepted) + len(again) + 1 == RECORDS
        assert len(again) <= most_lost
        assert worker.calls == Counter(range(RECORDS))
        assert worker.report().output_rows == len(put_out)


def test_rows_of_a_batch_outlive_the_worker(tmp_path: Path) -> None:
    def batch(records: pa.RecordBatch) -> Any:
        offsets = records.column("offset").to_pylist()
        if 45 in offsets:
            die()
        return pa.table({"ack": [1] * len(offsets), "id": offsets})

    worker = Worker(tmp_path, batch, output=pa.schema([("id", pa.int64())]))
    assert [worker.run(), worker.run()] == [False, True]
    assert sorted(row["output"]["id"] for row in worker.rows() if row["output"]) == list(range(40))
    assert worker.calls == Counter(range(RECORDS))


def test_code_that_does_not_return_to_the_interpreter_is_ended_and_the_rest_goes_on(tmp_path: Path) -> None:
    """No alarm is seen by C code: only the watchdog acts."""

    def handle(record: Record) -> None:
        if record.offset == 7:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10**9)

    worker = Worker(tmp_path, handle, timeout_ms=300)
    assert [worker.run(), worker.run()] == [False, True]
    answers = worker.answers()
    assert (answers[7][1] or "").startswith("time limit of 300 ms exceeded and did not react: File ")
    assert answers[7][0] == Ack.RELEASE
    assert {ack for offset, (ack, _) in answers.items() if offset != 7} == {1}


def test_code_that_swallows_the_alarm_is_ended_by_the_watchdog(tmp_path: Path) -> None:
    def stubborn(record: Record) -> None:
        while record.offset == 7:
            try:
                time.sleep(0.01)
            except BaseException:  # noqa: BLE001
                continue

    worker = Worker(tmp_path, stubborn, timeout_ms=200)
    assert [worker.run(), worker.run()] == [False, True]
    text = worker.answers()[7][1] or ""
    assert text.startswith("time limit of 200 ms exceeded and did not react: File ")
    assert "stubborn" in text
    assert worker.calls == Counter(range(RECORDS))


# ------------------------------------------------------------------------------------------- the next engine


def traces(place: LedgerPlace) -> dict[str, list[tuple[int, ...]]]:
    successor = LedgerPlace(group=place.group, member_id="successor", shared=place.shared)
    found: list[MemberTrace] = member_traces(successor)
    return {trace.member_id: [tuple(row) for row in trace.entered.get(AT, ())] for trace in found}


def test_a_trace_of_an_engine_that_died_in_a_handler(tmp_path: Path) -> None:
    def handle(record: Record) -> None:
        if record.offset == 7:
            die()

    worker = Worker(tmp_path, handle)
    worker.run()
    assert traces(worker.place) == {worker.place.member_id: [(0, 6, 1, Loss.FINISHED), (7, 7, 1, Loss.IN_HANDLER)]}


def test_a_worker_stops_once_another_engine_takes_over_or_has_removed_what_was_left(tmp_path: Path) -> None:
    place = LedgerPlace(group="group", member_id="one", shared=str(tmp_path / "ledgers"))
    successor = replace(place, member_id="successor")
    place.start()
    ledger, _ = place.open("delivery", 0, None)
    assert not place.is_stopping()
    successor.show_stop_sign("one")
    assert place.is_stopping()
    (tmp_path / "ledgers" / "group" / "one" / "stop").unlink()
    assert not place.is_stopping()
    ledger.close()
    successor.forget(["one"])
    assert place.is_stopping()
    successor.show_stop_sign("one")
    assert not (tmp_path / "ledgers" / "group" / "one").exists()


def test_a_task_that_begins_after_its_member_was_forgotten_enters_no_handler(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lambda _: None)
    successor = replace(worker.place, member_id="successor")
    successor.show_stop_sign(worker.place.member_id)
    successor.forget(successor.all_others())
    worker.run()
    assert {code for code, _ in worker.answers().values()} == {Loss.NOT_ENTERED}


def test_the_next_engine_waits_for_a_worker_that_still_writes(tmp_path: Path) -> None:
    """Its call ends within that time, and counts; it begins no other one."""

    def slow(record: Record) -> None:
        time.sleep(0.5)

    worker = Worker(tmp_path, slow)
    worker.place = LedgerPlace.beside(str(tmp_path), "log", "group", "one", one_machine=True)
    worker.place.start()
    child = os.fork()
    if child == 0:
        worker.run()
        os._exit(0)
    while not (tmp_path / "calls").exists():
        time.sleep(0.01)
    ledgers = MemberLedgers()
    claim = Claim(
        group_id="group", writer_epoch=2, run_id="run", member_id="successor", directory=str(tmp_path), log_id="log"
    )
    ledgers.start(None, claim)
    (calls,) = ledgers.finished_calls()
    entered = sum(worker.calls.values())
    assert [run[:2] for run in calls.answered[AT]] == [(0, entered - 1)]
    os.waitpid(child, 0)
    assert sum(worker.calls.values()) == entered <= 3


def finished(worker: Worker) -> list[FinishedCalls]:
    place = worker.place
    successor = LedgerPlace(group=place.group, member_id="successor", shared=place.shared)
    return [left.calls for left in left_calls(successor)]


def test_answers_of_an_engine_that_died_in_a_handler(tmp_path: Path) -> None:
    """What was in the handler has none; all others count, with their errors and delays."""

    def handle(record: Record) -> Any:
        if record.offset == 7:
            die()
        special = {2: Ack.release("busy", delay=60), 3: Ack.release("busy"), 5: Ack.reject("never")}
        return special.get(record.offset)

    worker = Worker(tmp_path, handle)
    worker.run()
    (calls,) = finished(worker)
    assert calls.member_id == worker.place.member_id
    assert calls.answered == {
        AT: ((0, 1, 1, Ack.ACCEPT), (2, 3, 1, Ack.RELEASE), (4, 4, 1, Ack.ACCEPT), (5, 5, 1, Ack.REJECT), (6, 6, 1, 1))
    }
    assert calls.errors == {AT: [(2, 2, "busy"), (3, 3, "busy"), (5, 5, "never")]}
    assert calls.delays == {AT: [(2, 2, 60_000)]}


def test_accepted_records_whose_rows_are_lost_with_the_engine_have_no_answer(tmp_path: Path) -> None:
    def handle(record: Record) -> Any:
        if record.offset == 7:
            die()
        return None if record.offset == 1 else Ack.RELEASE if record.offset == 4 else (Ack.ACCEPT, [{"id": 1}])

    worker = Worker(tmp_path, handle, output=pa.schema([("id", pa.int64())]))
    worker.run()
    (calls,) = finished(worker)
    assert calls.answered == {AT: ((1, 1, 1, Ack.ACCEPT), (4, 4, 1, Ack.RELEASE))}


def test_answers_that_bring_down_each_engine_that_reads_them_are_given_up(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lambda _: None)
    worker.run()
    assert [len(finished(worker)) for _ in range(5)] == [1, 1, 1, 0, 0]
    assert traces(worker.place), "the trace is still there"


def test_a_trace_of_an_engine_that_died_after_the_handler(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lambda _: None)
    worker.run()
    assert traces(worker.place) == {worker.place.member_id: [(0, RECORDS - 1, 1, Loss.AFTER_HANDLER)]}


def test_a_trace_of_a_batch_that_was_in_the_handler(tmp_path: Path) -> None:
    def batch(_: pa.RecordBatch) -> None:
        die()

    worker = Worker(tmp_path, batch)
    worker.run()
    assert traces(worker.place) == {worker.place.member_id: [(0, 19, 1, Loss.AMONG_OTHERS)]}


def test_an_engine_that_entered_nothing_leaves_a_trace_that_says_so(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lambda _: None)
    assert traces(worker.place) == {worker.place.member_id: []}


def test_what_was_written_before_the_machine_was_started_is_not_believed(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lambda _: None)
    worker.run()
    (tmp_path / "ledgers" / "group" / worker.place.member_id / "boot").write_text("another")
    assert traces(worker.place) == {}


def test_traces_of_others_can_be_forgotten(tmp_path: Path) -> None:
    worker = Worker(tmp_path, lambda _: None)
    successor = LedgerPlace(group="group", member_id="successor", shared=worker.place.shared)
    others = successor.all_others()
    assert others == [worker.place.member_id]
    LedgerPlace(group="group", member_id="a later one", shared=worker.place.shared).start()
    successor.forget(others)
    assert successor.all_others() == ["a later one"]


def test_where_the_driver_does_not_come_workers_clear_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = LedgerPlace(group="group", member_id="member", one_machine=False)
    for delivery in ("first", "second"):
        for task in (0, 1):
            place.open(delivery, task, "orders")[0].close()
    assert {found.parent.name for found in tmp_path.rglob("[01]")} == {"second"}


def test_where_the_shared_directory_cannot_be_used_the_ledger_is_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "local"))
    (tmp_path / "file").touch()
    place = LedgerPlace(group="group", member_id="member", shared=str(tmp_path / "file"), one_machine=False)
    ledger, is_sure = place.open("delivery", 0, "orders")
    ledger.close()
    assert not is_sure
    assert [found.name for found in (tmp_path / "local").rglob("0")] == ["0"]


# ------------------------------------------------------------------------------------------------ the file


def test_a_second_process_waits_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "task"
    ledger = CallLedger(path, "orders")
    child = os.fork()
    if child == 0:
        began = time.monotonic()
        CallLedger(path, "orders")
        os._exit(0 if time.monotonic() - began > 0.15 else 1)
    ledger.begin(batch_of(3))
    ledger.begin(batch_of(3))
    time.sleep(0.3)
    ledger.close()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("left", range(0, 9_000, 1_000))
def test_a_block_that_was_cut_short_is_left_out(tmp_path: Path, left: int) -> None:
    path = tmp_path / "task"
    ledger = CallLedger(path, "orders")
    ledger.begin(batch_of(3))[0] = CallStatus.ACCEPTED
    whole = path.stat().st_size
    ledger.begin(batch_of(200))
    ledger.close()
    content = bytearray(path.read_bytes())
    content[whole : whole + 24] = bytes(24)
    path.write_bytes(content[: whole + left])
    assert len(read_entries(path)) == 3
    again = CallLedger(path, "orders")
    again.begin(batch_of(2))[1] = CallStatus.REJECTED
    again.close()
    entries = read_entries(path)
    assert entries.status.tolist() == [2, 0, 0, 0, 4]
    assert entries.offset.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("fills_at", [-1, 3])
def test_a_full_disk_is_no_fault_of_a_record(tmp_path: Path, fills_at: int) -> None:
    """Without a place of its own, a page of mapped memory kills the worker at its first record."""
    with small_disk(tmp_path / "disk") as disk:

        def handle(record: Record) -> None:
            if record.offset == fills_at:
                fill(disk)

        worker = Worker(tmp_path, handle)
        worker.place = LedgerPlace(group="group", member_id="member", shared=str(disk / "ledgers"))
        worker.place.start()
        if fills_at < 0:
            fill(disk)
        assert worker.run(batch=1_000, records=3_000)
        fault = worker.report().fault
        assert fault is not None
        assert fault.startswith(f"the ledger {disk}")
        assert fault.endswith("cannot be written: No space left on device")
        said = [(row["ack"], row["first_offset"], row["last_offset"]) for row in worker.rows() if row["ack"]]
        assert said == ([] if fills_at < 0 else [(Ack.ACCEPT, 0, 999)])


def throttled_until_it_dies(record: Record) -> Any:
    if record.offset == 7:
        die()
    return Ack.throttled("429", retry_after=60) if record.offset in (2, 3) else None


def test_a_throttled_record_is_not_entered_again_by_the_repeat_of_its_task(tmp_path: Path) -> None:
    worker = Worker(tmp_path, throttled_until_it_dies)
    assert [worker.run(), worker.run()] == [False, True]
    assert worker.calls == Counter(range(RECORDS))
    others = {2: (Loss.THROTTLED, "429"), 3: (Loss.THROTTLED, "429"), 7: (2, "worker lost")}
    assert worker.answers() == {offset: others.get(offset, (1, None)) for offset in range(RECORDS)}
    assert {row["first_offset"]: row["delay_ms"] for row in worker.rows() if row["delay_ms"]} == {2: 60_000}


def test_a_throttled_record_of_an_engine_that_died_is_given_back(tmp_path: Path) -> None:
    """Its answer is taken over; without that, the trace says the same."""
    worker = Worker(tmp_path, throttled_until_it_dies)
    worker.run()
    (calls,) = finished(worker)
    assert calls.answered == {AT: ((0, 1, 1, Ack.ACCEPT), (2, 3, 1, Loss.THROTTLED), (4, 6, 1, Ack.ACCEPT))}
    assert (calls.errors, calls.delays) == (
        {AT: [(2, 2, "429"), (3, 3, "429")]},
        {AT: [(2, 2, 60_000), (3, 3, 60_000)]},
    )
    assert [row for row in traces(worker.place)[worker.place.member_id] if row[3] == Loss.THROTTLED] == [
        (2, 3, 1, Loss.THROTTLED)
    ]


@pytest.mark.parametrize("status", CallStatus)
def test_each_status_has_an_answer(status: CallStatus) -> None:
    """Also those that another attempt of the task has noted."""
    columns = {name: np.zeros(1, np.int64) for name in ("topic", "partition", "offset", "count", "number")}
    entries = LedgerEntries(topics=["orders"], status=np.array([status], "u1"), **columns)
    (code,) = codes_of(entries).tolist()
    assert code in {*Ack, *Loss}
