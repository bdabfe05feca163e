"""What runs in a Python worker: one task's records in, a handful of runs out, and output rows if the
handler has any.

Everything here is reached by its import name; what travels is the handler alone, pickled by us, so
that one that cannot be unpickled on a worker is told by name instead of failing the task (a failed
task is repeated, and a repeat calls nothing).

**One acquisition calls the handler at most once per record.** Spark runs a task again when its
first run failed or its worker died, and runs copies of slow tasks; any of these may come after
calls whose answers were lost. So only the first attempt of a task, in the first attempt of its
stage, calls the handler. All others report their records as LOST. (A speculative copy is a later
attempt as well; where speculation is on, it can win over a slow first attempt, whose records are
then lost although nobody died. They come again with their count one higher.)

Where output rows are kept on the executors until a sink has read them, Spark would compute lost ones
anew, in a later job that looks like a first attempt. So a task with output runs only inside the
delivery that it was made for, known by a local property of Spark's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from share_spark.engine.python_worker import drop_zip_importers
from share_spark.engine.step import LOST
from share_spark.model.errors import HandlerError, OutputLostError, ShareError
from share_spark.process.acknowledgement import Answers, exception_text
from share_spark.process.calling import Outcome, call_handler
from share_spark.process.handlers import Handler
from share_spark.process.runs import (
    FAULT,
    VIOLATION,
    RunLog,
    output_batches,
    produced_row,
    special_row,
    with_output_column,
)
from share_spark.process.timelimit import TimeLimit

WORKER_LOST = "worker lost"
"""Error of records whose handler may have been called in a run of their task that came to
nothing."""

TASK_COLUMN = "__task"
"""Name of the column whose first value in each task is the JVM's thread, which is named after the
task."""

DELIVERY_PROPERTY = "share_spark.delivery"
"""Spark's local property that holds the running delivery's id."""


def packed(handler: Handler) -> bytes:
    """The handler as it travels. Raises HandlerError if it cannot."""
    try:
        return bytes(cloudpickle.dumps(handler))  # type: ignore[no-untyped-call]
    except Exception as fault:
        raise HandlerError(f"handler {handler.name} cannot be sent to the workers: {exception_text(fault)}") from fault


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerTask:
    """The function for ``mapInArrow``: batches of KEY_COLUMNS, what the handler asked for, and
    TASK_COLUMN, to RUN_SCHEMA, with OUTPUT_COLUMN if there is an ``output`` schema.

    ``payload``: the packed handler of this ``name``. ``topic``: all records are of this one, and the
    column is left out. ``delivery``: the id of the delivery outside which it must not run; None: it
    may run anywhere. ``mark``: a file that is there while the handler runs (``marks``). Answers of a task
    leave together, at its end; output rows batch by batch. A broken contract leaves as the one row that tells it.
    """

    name: str
    payload: bytes
    topic: str | None = None
    output: pa.Schema | None = None
    delivery: str | None = None
    mark: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Raises OutputLostError outside its delivery."""
        drop_zip_importers()
        if self.delivery is not None and _local_property(DELIVERY_PROPERTY) != self.delivery:
            raise OutputLostError(f"output rows of handler {self.name} were lost with their executor")
        try:
            yield from self._results(batches)
        except HandlerError as fault:
            yield self._row(special_row(VIOLATION, str(fault)))
        except ShareError as fault:
            yield self._row(special_row(FAULT, str(fault)))

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        log, produced = RunLog(self.topic), 0
        for batch, outcome in self._outcomes(batches):
            log.add(batch, outcome.answers)
            if outcome.outputs is not None:
                produced += outcome.outputs.num_rows
                yield from output_batches(outcome.outputs)
        yield self._row(log.batch())
        if self.output is not None:
            yield self._row(produced_row(_attempt_id(), produced))

    def _outcomes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Outcome]]:
        handler, first = _unpacked(self.name, self.payload), None
        with TimeLimit() as limit:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if first is None:
                    first = is_first_attempt(_attempt_number(), batch.column(TASK_COLUMN)[0].as_py())
                with _marked(self.mark if first else None):
                    outcome = _called(handler, batch, limit) if first else _not_called(batch)
                yield batch, outcome

    def _row(self, runs: pa.RecordBatch) -> pa.RecordBatch:
        return runs if self.output is None else with_output_column(runs, self.output)


@contextmanager
def _marked(mark: str | None) -> Iterator[None]:
    """The mark is there while the body runs, and for ever if the worker dies in it."""
    if mark is None:
        yield
        return
    Path(mark).touch()
    try:
        yield
    finally:
        Path(mark).unlink(missing_ok=True)


def is_first_attempt(attempt_number: int, task_thread: str | None) -> bool:
    """Whether nobody can have called the handler for this task's records before.

    ``attempt_number`` counts the runs of a task within its stage attempt, speculative copies
    included. The attempt of the stage Python is not told; ``task_thread`` holds it, as Spark names
    the thread of a task ``task 1.0 in stage 3.1 (TID 45)``: attempt 1 of stage 3. None where Spark
    would not tell it.
    """
    stage = re.search(r"in stage \d+\.(\d+)\b", task_thread or "")
    return attempt_number == 0 and (stage is None or stage.group(1) == "0")


@functools.lru_cache(maxsize=4)
def _unpacked(name: str, payload: bytes) -> Handler:
    """The handler, kept from task to task, and with it what it keeps in globals (a client, a
    model)."""
    try:
        handler: Handler = cloudpickle.loads(payload)
    except Exception as fault:  # noqa: BLE001 - whatever importing the user's module does
        raise HandlerError(f"handler {name} cannot be loaded on a worker: {exception_text(fault)}") from None
    return handler


def _called(handler: Handler, batch: pa.RecordBatch, limit: TimeLimit) -> Outcome:
    """The handler's outcome. Raises HandlerError, and ShareError for a fault of our own, which must
    not pass for a lost worker when Spark repeats the task."""
    try:
        return call_handler(handler, batch, limit)
    except HandlerError:
        raise
    except Exception as fault:
        raise ShareError(f"delivery to handler {handler.name} failed: {exception_text(fault)}") from fault


def _not_called(batch: pa.RecordBatch) -> Outcome:
    return Outcome(answers=Answers.same(batch.num_rows, LOST, WORKER_LOST))


def _attempt_number() -> int:
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def _attempt_id() -> int:
    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0


def _local_property(name: str) -> str | None:
    context = TaskContext.get()
    return context.getLocalProperty(name) if context is not None else None
