"""What runs in a Python worker: one task's records in, a handful of runs out.

Everything here is reached by its import name; what travels is the handler alone, pickled by us, so
that one that cannot be unpickled on a worker is told by name instead of failing the task (a failed
task is repeated, and a repeat calls nothing).

**One acquisition calls the handler at most once per record.** Spark runs a task again when its
first run failed or its worker died, and runs copies of slow tasks; any of these may come after
calls whose answers were lost. So only the first attempt of a task, in the first attempt of its
stage, calls the handler. All others report their records as released, "worker lost". (A speculative
copy is a later attempt as well; where speculation is on, it can win over a slow first attempt,
whose records are then released although nobody died. They come again with their count one higher.)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from share_spark.engine.python_worker import drop_zip_importers
from share_spark.model.errors import HandlerError, ShareError
from share_spark.process.acknowledgement import Ack, Answers, exception_text
from share_spark.process.calling import Outcome, call_handler
from share_spark.process.handlers import Handler
from share_spark.process.runs import FAULT, STAGED, VIOLATION, RunLog, special_row
from share_spark.process.timelimit import TimeLimit

WORKER_LOST = "worker lost"
"""Error of records whose handler may have been called in a run of their task that came to
nothing."""

TASK_COLUMN = "__task"
"""Name of the column whose first value in each task is the JVM's thread, which is named after the
task."""

StageOutput = Callable[[pa.Table], str]
"""Takes the output rows of one task, in its worker, and returns where it put them."""


def packed(handler: Handler, stage_output: StageOutput | None) -> bytes:
    """The handler as it travels. Raises HandlerError if it cannot."""
    try:
        return bytes(cloudpickle.dumps((handler, stage_output)))  # type: ignore[no-untyped-call]
    except Exception as fault:
        raise HandlerError(f"handler {handler.name} cannot be sent to the workers: {exception_text(fault)}") from fault


def run_task(
    name: str, payload: bytes, topic: str | None, batches: Iterable[pa.RecordBatch]
) -> Iterable[pa.RecordBatch]:
    """The function for ``mapInArrow``: batches of KEY_COLUMNS, what the handler asked for, and
    TASK_COLUMN, to RUN_SCHEMA. ``topic``: all records are of this one, and the column is left out.

    All answers of a task leave together, at its end. A broken contract leaves as the one row that
    tells it.
    """
    drop_zip_importers()
    try:
        yield from _results(name, payload, topic, batches)
    except HandlerError as fault:
        yield special_row(VIOLATION, str(fault))
    except ShareError as fault:
        yield special_row(FAULT, str(fault))


def is_first_attempt(attempt_number: int, task_thread: str | None) -> bool:
    """Whether nobody can have called the handler for this task's records before.

    ``attempt_number`` counts the runs of a task within its stage attempt, speculative copies
    included. The attempt of the stage Python is not told; ``task_thread`` holds it, as Spark names
    the thread of a task ``task 1.0 in stage 3.1 (TID 45)``: attempt 1 of stage 3. None where Spark
    would not tell it.
    """
    stage = re.search(r"in stage \d+\.(\d+)\b", task_thread or "")
    return attempt_number == 0 and (stage is None or stage.group(1) == "0")


def _results(
    name: str, payload: bytes, topic: str | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    log, outputs, first = RunLog(topic), list[pa.Table](), None
    handler, stage_output = _unpacked(name, payload)
    with TimeLimit() as limit:
        for batch in batches:
            if not batch.num_rows:
                continue
            if first is None:
                first = is_first_attempt(_attempt_number(), batch.column(TASK_COLUMN)[0].as_py())
            outcome = _called(handler, batch, limit) if first else _not_called(batch)
            log.add(batch, outcome.answers)
            if outcome.outputs is not None and stage_output is not None:
                outputs.append(outcome.outputs)
    yield log.batch()
    if outputs and stage_output is not None:
        yield special_row(STAGED, stage_output(pa.concat_tables(outputs)))


@functools.lru_cache(maxsize=4)
def _unpacked(name: str, payload: bytes) -> tuple[Handler, StageOutput | None]:
    """The handler, kept from task to task, and with it what it keeps in globals (a client, a
    model)."""
    try:
        handler, stage_output = cloudpickle.loads(payload)
    except Exception as fault:  # noqa: BLE001 - whatever importing the user's module does
        raise HandlerError(f"handler {name} cannot be loaded on a worker: {exception_text(fault)}") from None
    return handler, stage_output


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
    return Outcome(answers=Answers.same(batch.num_rows, Ack.RELEASE, WORKER_LOST))


def _attempt_number() -> int:
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0
