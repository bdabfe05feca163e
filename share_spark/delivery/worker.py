"""The code of a Python worker: one task's records in, a handful of runs out, and output rows if the handler has any.

Everything here is reached by its import name. Only the handler travels, pickled by us (``packed_handler``), so that one
that cannot be unpickled on a worker does not fail the task.

**One acquisition enters the handler at most once per record.** Spark runs a task again when its first run failed or its
worker died, and runs copies of slow tasks. Each run follows the ledger of the task (``ledger``): records that earlier
runs have finished keep their answer and their output rows, those that were in the handler when a run died have failed,
and only the rest is handled. Where the ledger may be on another machine (``ledger_place``), a run that is not the first
and finds none reports its records as lost.

Where output rows are kept on the executors until a sink has read them, Spark would compute lost ones again, in a later
job. So a task runs only inside the delivery that it was made for, which is in a local property of Spark's.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.calling import call_handler, watched_code
from share_spark.delivery.calls import CallOutcome, Calls
from share_spark.delivery.kept_rows import KeptPlace, KeptWriter
from share_spark.delivery.key_batches import TaskOrder
from share_spark.delivery.ledger import CallLedger, CallStatus, LedgerEntries
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.marked_rows import parted, unmarked
from share_spark.delivery.opened_handlers import opened_handler
from share_spark.delivery.output_files import OutputFiles
from share_spark.delivery.packed_handler import packed, unpacked
from share_spark.delivery.runs import RunLog, output_batches, with_output_column
from share_spark.delivery.task_inputs import TaskInput, with_inputs
from share_spark.delivery.task_report import TaskReport
from share_spark.delivery.traces import WORKER_LOST, codes_of
from share_spark.delivery.unknown_records import unknown_records
from share_spark.delta.table_layout import FilePlace
from share_spark.engine.key_order import FINISHED
from share_spark.handlers.acknowledgement import Answers
from share_spark.handlers.error_texts import exception_text
from share_spark.handlers.handler import HANDLER_COLUMNS, Handler
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.time_limit import TimeLimit, overrun_text, stuck_at, stuck_text
from share_spark.model.errors import (
    HandlerError,
    OutputLostError,
    ShareError,
    StateError,
    TopicError,
    TopicUnreachableError,
)
from share_spark.model.requests import Loss
from share_spark.spark.python_worker import begin_task, task_context
from share_spark.spark.threads import TASK_COLUMN, stage_attempt

DELIVERY_PROPERTY = "share_spark.delivery"
"""Spark's local property that holds the running delivery as a DeliveryRun."""


class DeliveryRun(NamedTuple):
    """A job of a delivery. ``number``: how many jobs of it have died with their workers. ``reports_only``: it enters no
    handler any more."""

    delivery: str
    number: int = 0
    reports_only: bool = False

    def __str__(self) -> str:
        return f"{self.delivery}/{self.number}/{int(self.reports_only)}"

    @classmethod
    def parse(cls, text: str) -> DeliveryRun:
        """Undo ``str``."""
        delivery, number, reports_only = text.split("/")
        return cls(delivery, int(number), reports_only == "1")


class Terms(NamedTuple):
    """Limits of a task. ``budget_s``: no call begins later than so many seconds after the task's first records are
    there: reading may take longer than that, and then no record would ever be handled. ``seconds_per_record`` of a
    worker, None if not known. ``in_turn``: no record shares a call with others. ``timeout_ms``: of a call whose handler
    has none; not packed with the handler, as a worker that finds another payload loads it anew."""

    budget_s: float = float("inf")
    seconds_per_record: float | None = None
    in_turn: bool = False
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerTask:
    """The function for ``mapInArrow``: batches of KEY_COLUMNS, delivery_count, the columns that the handler asked for,
    and TASK_COLUMN, to RUN_SCHEMA, with OUTPUT_COLUMN if there is an ``output`` schema.

    ``payload``: the packed handler of this ``name``, which asks for ``columns``. ``topic``: all records are of this
    one, and the column is left out. ``delivery``: the id of the delivery outside which it must not run.
    ``output_place``: where workers write files of output rows; None: the rows leave with the runs. ``keeps``: where
    they write released and rejected records; None: they do not. ``inputs``: records that come without Spark, not with
    the batches. ``ordered``: by key, which is then a column of the batches. Answers of a task leave at its end,
    output rows batch by batch. If the contract is broken as a whole, the report says so.
    """

    name: str
    payload: bytes
    place: LedgerPlace
    delivery: str
    columns: tuple[str, ...] = HANDLER_COLUMNS
    topic: str | None = None
    output: pa.Schema | None = None
    output_place: FilePlace | None = None
    keeps: KeptPlace | None = None
    inputs: tuple[TaskInput, ...] = ()
    ordered: bool = False
    terms: Terms = field(default_factory=Terms)

    @classmethod
    def of(cls, handler: Handler, place: LedgerPlace, payload: bytes | None = None, **more: Any) -> HandlerTask:
        """Make the task of a new delivery to ``handler``; ``more``: the other fields. ``payload``: the packed handler,
        if there is one. Raises HandlerError: it cannot be sent."""
        delivery = uuid.uuid4().hex
        columns = tuple(handler.columns or HANDLER_COLUMNS)
        if handler.kind is HandlerKind.RECORD and "topic" not in columns:
            columns = (*columns, "topic")  # of a Record, which has always one
        return cls(
            name=handler.name,
            payload=packed(handler) if payload is None else payload,
            place=place,
            delivery=delivery,
            columns=columns,
            output=handler.output,
            **more,
        )

    @property
    def sends_output(self) -> bool:
        """Whether output rows leave with the runs."""
        return self.output is not None and self.output_place is None

    def row(self, runs: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``runs`` in the form in which they leave."""
        return with_output_column(runs, self.output) if self.sends_output and self.output is not None else runs

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task. Raises OutputLostError outside its delivery."""
        begin_task()
        run = _running_delivery(self.delivery)
        if run is None:
            raise OutputLostError(f"output rows of handler {self.name} were lost with their executor")
        try:
            ledger, is_sure = self.place.open(self.delivery, _of_task("partitionId"), self.topic)
        except StateError as fault:
            yield self.row(TaskReport(fault=str(fault)).row())
            return
        try:
            yield from _TaskRun(task=self, run=run, ledger=ledger, is_sure=is_sure).results(batches)
        finally:
            ledger.close()


@dataclass(slots=True, kw_only=True)
class _TaskRun:
    """One run of a task."""

    task: HandlerTask
    run: DeliveryRun
    ledger: CallLedger
    is_sure: bool
    calls: Calls | None = None
    files: OutputFiles | None = None
    keeps: KeptWriter | None = None
    report: TaskReport = field(default_factory=TaskReport)

    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the runs, and the output rows unless they go to a file."""
        task = self.task
        if task.output_place is not None:
            self.files = OutputFiles(task.output_place)
        if task.keeps is not None:
            self.keeps = KeptWriter(task.keeps)
        try:
            yield from self._results(batches)
        except BaseException:
            if self.keeps is not None:
                self.keeps.discard()
            raise
        finally:
            if self.files is not None:
                self.files.discard()

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.task
        log = RunLog(task.topic)
        entries = self.ledger.settle(self._lost_error())
        known = entries.status != CallStatus.NOT_ENTERED
        log.add_entries(entries, codes_of(entries), known)
        try:
            yield from self._saved_rows(entries)
            rest = self._rest(with_inputs(task.inputs, _of_task("partitionId"), batches), entries, known, log)
            if self.run.reports_only:  # the handler is not even loaded: loading it may be what kills the worker
                for batch in map(unmarked, rest):
                    log.add(batch, Answers.same(batch.num_rows, Loss.NOT_ENTERED))
            else:
                yield from self._reached(self._handled(rest, log, len(entries) > 0))
            if self.files is not None:
                self._reports(files=tuple(file.to_json() for file in self.files.close()))
        except TopicError:  # as where Spark reads: the task is tried again, and then the job fails
            raise
        except HandlerError as fault:
            self._reports(violation=str(fault))
        except ShareError as fault:
            self._reports(fault=str(fault))
        calls = self.calls
        if calls is None or not calls.all_misfit:  # if the handler is at fault, no record has an answer
            yield task.row(log.batch())
        entered, busy_s, cost = (calls.entered, calls.busy_s, calls.cost) if calls is not None else (0, 0.0, 0.0)
        self._reports(entered=int(known.sum()) + entered, busy_s=busy_s, cost=cost)
        if self.keeps is not None and (kept := self.keeps.close()) is not None:
            self._reports(kept=kept[0], kept_rows=kept[1])
        yield task.row(replace(self.report, attempt_id=_of_task("taskAttemptId")).row())

    def _reports(self, **found: Any) -> None:
        self.report = replace(self.report, **found)

    def _reached(self, handled: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield until records cannot be reached. What was handled until then is valid."""
        try:
            yield from handled
        except TopicUnreachableError as fault:
            self._reports(unreachable=str(fault))

    def _rest(
        self, batches: Iterable[pa.RecordBatch], entries: LedgerEntries, known: npt.NDArray[np.bool_], log: RunLog
    ) -> Iterator[pa.RecordBatch]:
        """Return the records for this run. In order, a record that is left out as large would hold back its key."""
        if self.task.ordered:
            return unknown_records(batches, entries, known, known & np.isin(codes_of(entries), FINISHED))
        return self._without_large(unknown_records(batches, entries, known, known), log)

    def _without_large(self, batches: Iterable[pa.RecordBatch], log: RunLog) -> Iterator[pa.RecordBatch]:
        for batch, large in map(parted, batches):
            if large.num_rows:
                self._reports(has_large=True)
                log.add(large, Answers.same(large.num_rows, Loss.NOT_ENTERED))
            if batch.num_rows:
                yield batch

    def _handled(self, batches: Iterable[pa.RecordBatch], log: RunLog, has_entries: bool) -> Iterator[pa.RecordBatch]:
        handler = self._handler()
        limit_s = handler.timeout_ms / 1_000 if handler.timeout_ms is not None else None
        with TimeLimit(limit_s, stuck=self._stuck, outside=watched_code()) as limit:
            self.calls = calls = self._new_calls(limit)
            loss: Loss | None = None
            order = TaskOrder(self.task.topic) if self.task.ordered else None
            if order is not None and handler.kind is not HandlerKind.RECORD:
                batches = order.joined(batches)
            for index, batch in enumerate(batches):
                if not index:
                    calls.until = time.monotonic() + self.task.terms.budget_s
                    loss = self._loss_of_all(batch, has_entries)
                    self._look_at_thread(batch)
                if order is not None and self.keeps is not None:
                    self.keeps.add_all(parted(batch)[1])
                own, outcome = self._own_outcome(handler, batch, calls, loss, order)
                log.add(own, outcome.answers)
                if self.keeps is not None:
                    self.keeps.add(own, outcome.answers)
                if outcome.outputs is not None:
                    yield from self._sent(outcome.outputs)
                if outcome.fault is not None:
                    raise outcome.fault
            calls.check(handler)

    def _handler(self) -> Handler:
        handler = opened_handler(self.task.name, self.task.payload)
        return replace(handler, timeout_ms=handler.limit_ms(self.task.terms.timeout_ms))

    def _own_outcome(
        self, handler: Handler, batch: pa.RecordBatch, calls: Calls, loss: Loss | None, order: TaskOrder | None
    ) -> tuple[pa.RecordBatch, CallOutcome]:
        """Return the records of a batch that have to be delivered, and their outcome. Raises as ``_outcome``."""
        if order is None:
            return batch, self._outcome(handler, batch, calls, loss)
        return order.outcome(batch, calls, functools.partial(self._outcome, handler, calls=calls, loss=loss))

    def _new_calls(self, limit: TimeLimit) -> Calls:
        terms = self.task.terms
        return Calls(
            limit=limit,
            ledger=self.ledger,
            seconds_per_record=terms.seconds_per_record,
            in_turn=terms.in_turn,
            is_stopping=self.task.place.is_stopping,
        )

    def _loss_of_all(self, batch: pa.RecordBatch, has_entries: bool) -> Loss | None:
        """Return the loss of the records if no call is made; None: they have to be handled."""
        first = self.run.number == 0 and is_first_attempt(
            _of_task("attemptNumber"), batch.column(TASK_COLUMN)[0].as_py()
        )
        return None if first or has_entries or self.is_sure else Loss.UNKNOWN

    def _look_at_thread(self, batch: pa.RecordBatch) -> None:
        thread = batch.column(TASK_COLUMN)[0].as_py()
        if thread is not None and stage_attempt(thread) is None:
            self._reports(unknown_thread=thread)

    def _outcome(self, handler: Handler, batch: pa.RecordBatch, calls: Calls, loss: Loss | None) -> CallOutcome:
        """Call the handler. Raises StateError (the ledger), and ShareError for a fault of our own."""
        if loss is None and calls.are_over(time.monotonic()):
            loss = Loss.NOT_ENTERED
        if loss is not None:
            text = WORKER_LOST if loss is Loss.UNKNOWN else None
            return CallOutcome(answers=Answers.same(batch.num_rows, loss, text))
        try:
            return call_handler(handler, batch, calls)
        except StateError:
            raise
        except Exception as fault:
            raise ShareError(f"delivery to handler {handler.name} failed: {exception_text(fault)}") from fault

    def _saved_rows(self, entries: LedgerEntries) -> Iterator[pa.RecordBatch]:
        """Yield output rows that earlier runs have written."""
        for rows in entries.rows_of(entries.have_rows):
            yield from self._sent(rows)

    def _sent(self, outputs: pa.Table) -> Iterator[pa.RecordBatch]:
        if self.files is not None:
            self.files.write(outputs)
            return
        self._reports(output_rows=self.report.output_rows + outputs.num_rows)
        yield from output_batches(outputs)

    @property
    def _stuck(self) -> Path:
        return self.ledger.beside("stuck")

    def _lost_error(self) -> str:
        """Return why the record that was in the handler has failed."""
        where = stuck_at(self._stuck)
        if where is None:
            return WORKER_LOST
        timeout_ms = unpacked(self.task.name, self.task.payload).limit_ms(self.task.terms.timeout_ms)
        self._stuck.unlink()
        return stuck_text(overrun_text(timeout_ms or 0), where)


def is_first_attempt(attempt_number: int, task_thread: str | None) -> bool:
    """Return whether no earlier run can have called the handler for this task's records.

    ``attempt_number`` counts the runs of a task within its stage attempt, speculative copies included. Python does not
    get the attempt of the stage; ``task_thread`` holds it (``spark.threads``). None if Spark does not say. If the name
    has another form, the task's rows say so to the driver, which warns.
    """
    return attempt_number == 0 and not stage_attempt(task_thread)


def _running_delivery(delivery: str) -> DeliveryRun | None:
    """Return the run of this delivery; None if another delivery runs, or none."""
    context = task_context()
    if context is None:
        return DeliveryRun(delivery)
    text = context.getLocalProperty(DELIVERY_PROPERTY)
    run = DeliveryRun.parse(text) if text else None
    return run if run is not None and run.delivery == delivery else None


def _of_task(number: str) -> int:
    """Read a number of the running task, by its name in Spark; 0 outside of one."""
    context = task_context()
    return int(getattr(context, number)()) if context is not None else 0
