"""Delivery: acquired records go to a handler inside Spark, acknowledgements come back. One job, one
action.

    result = deliver(records, as_handler(bill))

The records go through one Python stage (``worker.HandlerTask``); what comes back to the driver is one
row per run of records with the same answer, so that a quarter of a million accepted records are a
handful of rows. A handler is called at most once per record (``worker`` says how); what is not
known to be answered is LOST.

Output rows of accepted records leave the workers in the same frame and stay on the executors (``held``)
until a sink has read them; without a declared output schema there are none, and nothing is kept.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from share_spark.process.frame import RUN_TYPE, frame_runs, settled
from share_spark.process.handlers import HANDLER_COLUMNS, KEY_COLUMNS, Handler, HandlerKind
from share_spark.process.held import HeldFrame
from share_spark.process.result import DeliveryResult, ErrorRun, PartitionAcks, decoded, read_once
from share_spark.process.runs import OUTPUT_COLUMN
from share_spark.process.worker import TASK_COLUMN, WORKER_LOST, HandlerTask, packed

__all__ = ["WORKER_LOST", "DeliveryResult", "ErrorRun", "PartitionAcks", "deliver"]

log = logging.getLogger(__name__)

_FIRST_OF_TASK = "(monotonically_increasing_id() & 8589934591L) = 0"
_THREAD = f"CASE WHEN {_FIRST_OF_TASK} THEN reflect('java.lang.Thread', 'currentThread') END"
"""The thread's name, which holds the stage attempt (see ``worker.is_first_attempt``), on each
task's first row only."""

_HEADERS = "coalesce(headers, cast(array() AS array<struct<key:string,value:binary>>)) AS headers"
"""No list is null: Spark 4.0 adds up the size of an Arrow batch after every row, which for null
lists is a loop over all rows so far (10,000 a batch: three times the time of the whole stage)."""

_LOST = ("Python worker exited unexpectedly", "ExecutorLostFailure")
"""What Spark says when a job has failed because a worker or an executor died."""


def deliver(
    records: DataFrame, handler: Handler, *, topic: str | None = None, mark: str | None = None
) -> DeliveryResult:
    """Calls ``handler`` on ``records`` (RECORD_COLUMNS and delivery_count int) and returns what it
    said of each.

    ``records`` are exactly the acquired ones, each once, lazy, in as many tasks as shall run at a
    time. They are read once, by one action. ``topic``: all records are of this one topic, so its name
    need not travel with each of them. ``mark``: a file that is there while the handler runs. Output
    rows of records that are released, rejected or lost are dropped in the worker; the result must be
    closed when those of the accepted ones have been read.

    A worker that dies: Spark repeats the task, and its records come back LOST, with the error WORKER_LOST.
    Where Spark would not (``local[2]`` runs a task once), the result is ``lost``. Its tasks may
    then still be running for a moment.

    Raises HandlerError (the handler broke its contract) and ShareError (a record was read twice);
    errors of Spark and of the topic log pass through. In each case no acknowledgement is known.
    """
    try:
        if handler.kind is HandlerKind.FRAME:
            return _of_frame(records, handler)
        if handler.output is not None:
            return _with_output(records, handler, topic, mark)
        return decoded(_handled(records, handler, topic, mark).toArrow(), read_once)
    except Exception as fault:
        if not _is_lost(fault):
            raise
        log.warning("delivery to handler %s: a worker was lost and with it the job", handler.name)
        return DeliveryResult(lost=True)


def _of_frame(records: DataFrame, handler: Handler) -> DeliveryResult:
    records = records.persist()
    try:
        return decoded(frame_runs(records, handler).toArrow(), settled(handler.name))
    finally:
        records.unpersist()


def _with_output(records: DataFrame, handler: Handler, topic: str | None, mark: str | None) -> DeliveryResult:
    delivery = uuid.uuid4().hex
    held = HeldFrame(_handled(records, handler, topic, mark, delivery), delivery)
    try:
        result = decoded(held.runs(), read_once)
    except BaseException:
        held.free()
        raise
    if any(result.produced.values()):
        return replace(result, outputs=held.outputs(result.produced), free=held.free)
    held.free()
    return result


def _handled(
    records: DataFrame, handler: Handler, topic: str | None, mark: str | None, delivery: str | None = None
) -> DataFrame:
    task = HandlerTask(
        name=handler.name, payload=packed(handler), topic=topic, output=handler.output, delivery=delivery, mark=mark
    )
    wanted = handler.columns or HANDLER_COLUMNS
    keys = KEY_COLUMNS if topic is None else KEY_COLUMNS[1:]
    columns = [*wanted, *(name for name in keys if name not in wanted)]
    chosen = [_HEADERS if name == "headers" else name for name in columns]
    return _with_task(records, chosen).mapInArrow(task, _sent_type(handler))


def _sent_type(handler: Handler) -> StructType:
    """What a task sends, in Spark's terms."""
    if handler.output is None:
        return RUN_TYPE
    output = from_arrow_schema(pa.schema([field.with_nullable(True) for field in handler.output]))
    return StructType([*RUN_TYPE.fields, StructField(OUTPUT_COLUMN, output)])


def _with_task(records: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The columns (SQL) and TASK_COLUMN, in one step, as each costs some milliseconds of a micro-batch.

    Without ``reflect`` (some shared clusters forbid it) a stage's repeat is not seen; a stage is repeated only when it
    reads a shuffle that was lost.
    """
    try:
        return records.selectExpr(*columns, f"{_THREAD} AS {TASK_COLUMN}")
    except AnalysisException as fault:
        frame = records.selectExpr(*columns, f"CAST(NULL AS string) AS {TASK_COLUMN}")
        log.warning("the repeat of a whole stage would call handlers again: %s", str(fault).splitlines()[0])
        return frame


def _is_lost(fault: Exception) -> bool:
    text = str(fault)
    return any(sign in text for sign in _LOST)
