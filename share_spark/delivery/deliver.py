"""Delivery: acquired records go to a handler inside Spark, acknowledgements come back. One job, one action.

``SparkDelivery`` is the engine's port: the records of a micro-batch are read by range, by Spark or by the workers
(``record_sources``), and ``handled`` calls the handler on them.

The records go through one Python stage (``worker.HandlerTask``); the driver gets one row per run of records with the
same answer, so that a quarter of a million accepted records are a handful of rows. A handler is entered at most once
per record (``worker`` says how). Nothing here decides anything about a record.

A worker that is lost: Spark runs its task again, which continues from the ledger. Where Spark does not (``local[2]``
runs a task once), or has done so too often, the job is run again here, with the same effect. The last run does not
enter the handler; it only reports what is known.

Output rows of accepted records leave the workers in the same frame and stay on the executors (``result.held``) until a
sink has read them; without a declared output schema there are none, and nothing is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from share_spark.delivery.frame import RUN_TYPE, frame_runs, released_frame, settled
from share_spark.delivery.kept_input import Wanted
from share_spark.delivery.kept_rows import MOST_BYTES, KeptPlace, KeptRows, earlier_offsets
from share_spark.delivery.large_records import has_limit, set_limit, with_marks
from share_spark.delivery.ledger import CallStatus, LedgerEntries
from share_spark.delivery.member_ledgers import LedgerDelivery, MemberLedgers, frame_of
from share_spark.delivery.record_sources import RecordSources
from share_spark.delivery.result import DeliveryResult, decoded, held, is_lost_output, read_once
from share_spark.delivery.runs import OUTPUT_COLUMN, RUN_SCHEMA, RunLog
from share_spark.delivery.traces import WORKER_LOST, codes_of, read_delivery
from share_spark.delivery.worker import DELIVERY_PROPERTY, DeliveryRun, HandlerTask, Terms
from share_spark.delta.data_file import DataFile
from share_spark.delta.table_layout import FilePlace
from share_spark.engine.attempts import ErrorRun
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    Delivered,
    DeliveryAtOnce,
    DeliveryLimits,
)
from share_spark.engine.ports import Claim, TopicLog
from share_spark.engine.ranges import ascending
from share_spark.handlers.handler import KEY_COLUMNS, Handler
from share_spark.handlers.kinds import HandlerKind
from share_spark.model.errors import (
    EnvironmentFault,
    HandlerError,
    OutputLostError,
    ShareError,
    SinkError,
    TopicError,
    TopicUnreachableError,
    is_of_storage,
)
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, AnsweredRange, Loss
from share_spark.partition.columns import in_best_form
from share_spark.spark.errors import first_line, is_lost_worker, is_unreachable, tells_lost_workers
from share_spark.spark.schemas import spark_schema
from share_spark.spark.threads import TASK_COLUMN, give_up_task_thread, with_task_thread

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SparkDelivery(DeliveryAtOnce, LedgerDelivery):
    """Delivery port: one Spark job per micro-batch, with as many tasks as there are cores, or fewer if the limits say
    so. ``ordered``: by key.

    Output rows of a delivery are kept until the next one. ``output_place``: where workers write them to files, which
    they can if all run where the directory is.
    """

    spark: SparkSession
    log: TopicLog
    handler: Handler
    output_place: FilePlace | None = None
    ordered: bool = False
    _result: DeliveryResult = field(default_factory=DeliveryResult)
    _kept: KeptRows = field(init=False)
    _sources: RecordSources = field(init=False)
    _seconds_per_record: float | None = None

    def __post_init__(self) -> None:
        # Spark schedules handlers of frames: the present record is not known.
        self._ledgers = MemberLedgers(are_written=self.handler.kind is not HandlerKind.FRAME)
        self._kept = KeptRows(ordered=self.ordered)
        self._sources = RecordSources(spark=self.spark, log=self.log, kept=self._kept)

    def start(self, claim: Claim) -> None:
        """Begin. Workers keep their ledgers beside the state log."""
        self._sources.is_stopping = self._ledgers.start(self.spark, claim).is_stopping
        if self.ordered or not self._ledgers.are_written:
            # A large record would hold back its key. What a handler of frames sends to Python is not looked at.
            set_limit(self.spark)

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:
        rows = self._ledgers.take_rows(accepted, self.handler.output)
        if rows is None:
            return False
        self.free_outputs()
        if rows.num_rows:
            self._result = DeliveryResult(outputs=frame_of(self.spark, rows))
        return True

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:  # noqa: ARG002 - all that is known is absorbed
        self._ledgers.place.clear()
        self._kept.clear()

    def stop_waiting(self) -> None:
        """Tell workers to begin no more calls, and to wait for no topic; a wait inside Spark's source goes on."""
        self._ledgers.show_stop_sign()

    def close(self) -> None:
        self.free_outputs()
        self._kept.clear()

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        """Deliver the records. Raises ShareError."""
        self._ledgers.drop_rows()
        self.free_outputs()
        tasks, is_bounded = self._tasks(limits.most_tasks, in_turn=in_turn)
        topics = {one.partition.topic for one in acquired}
        topic = topics.pop() if len(topics) == 1 else None
        if self._ledgers.are_written:
            records, inputs = self._sources.parted(acquired, tasks, is_bounded=is_bounded)
            task = HandlerTask.of(
                self.handler,
                self._ledgers.place,
                topic=topic,
                output_place=self.output_place,
                keeps=self._keeps(tasks) if self.ordered or in_turn or not is_bounded else None,
                inputs=inputs,
                ordered=self.ordered,
                terms=Terms(limits.budget_ms / 1_000, self._seconds_per_record, in_turn, limits.timeout_ms),
            )
            result = handled(records.coalesce(tasks) if is_bounded else records, task)
        else:
            records = self._sources.by_spark(acquired, tasks)
            result = handled_as_frame(records, self.handler)
        self._result = result
        if result.has_large:
            for session in (self.spark, records.sparkSession):  # a topic log may read in a session of its own
                set_limit(session)
        earlier = earlier_offsets(acquired) if self.ordered else {}
        self._kept.drop_used()  # before new files are added: these may be for dead letters only
        self._kept.add(result.kept, topic, result.partitions.values(), earlier)
        if result.entered and not in_turn:
            self._seconds_per_record = result.busy_s * tasks / result.entered
        return _delivered(result, acquired)

    def _tasks(self, most_tasks: int, *, in_turn: bool) -> tuple[int, bool]:
        """Return (number of tasks, whether there must not be more)."""
        cores = self.spark.sparkContext.defaultParallelism
        if in_turn:
            return 1, True
        return (most_tasks, True) if 0 < most_tasks < cores else (cores, False)

    @property
    def outputs(self) -> DataFrame | Sequence[DataFile] | None:
        """The output rows of the last delivery, as a frame or in files; None if there are none."""
        return self._result.files or self._result.outputs

    def outputs_here(self) -> pa.Table | None:
        """Return the output rows of the last delivery on the driver, None if there are none. Raises OutputLostError:
        they died with an executor."""
        frame = self._result.outputs
        if frame is None:
            return None
        try:
            return frame.toArrow()
        except Exception as fault:
            if is_lost_output(fault):
                raise OutputLostError("output was lost with its executor before it was read") from fault
            raise SinkError(f"output rows cannot be read: {first_line(fault)}") from fault

    def kept_records(self, wanted: Wanted) -> pa.Table | None:
        """Return all of ``wanted`` (RECORD_COLUMNS and ``number``) that workers have kept; None if one is missing."""
        return self._kept.records(wanted)

    def _keeps(self, tasks: int) -> KeptPlace | None:
        directory = self._ledgers.place.kept_directory if self._ledgers.are_written else None
        return KeptPlace(directory, MOST_BYTES // tasks, self._kept.answers) if directory is not None else None

    def free_outputs(self) -> None:
        """Free the output rows of the last delivery."""
        self._result.close()
        self._result = DeliveryResult()


def _delivered(result: DeliveryResult, acquired: Sequence[AcquiredSpan]) -> Delivered:
    """Return the result as the engine takes it."""
    if result.lost:
        _log.warning("the handler's job died with its workers, and what it did is not known")
        return Delivered([_all_lost(one) for one in acquired])
    answers, explains_deaths = [*result.partitions.values()], result.explains_deaths
    return Delivered(answers, result.fault, result.entered, result.busy_s, explains_deaths, cost=result.cost)


def _all_lost(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = [AnsweredRange(first, last, Loss.UNKNOWN) for first, last, _ in ascending(acquired.ranges).tolist()]
    whole = ErrorRun(ranges[0].first_offset, ranges[-1].last_offset, WORKER_LOST)
    return AcknowledgedSpan(acquired.partition, in_best_form(ranges), [whole])


_MOST_RUNS = 10
"""The number of jobs that may die with their workers before one only reports."""

_HEADERS = "coalesce(headers, cast(array() AS array<struct<key:string,value:binary>>)) AS headers"
"""No list is null: Spark 4.0 adds up the size of an Arrow batch after every row, and for null lists that is a loop over
all rows so far (10,000 a batch: three times the time of the whole stage)."""


def handled(records: DataFrame, task: HandlerTask) -> DeliveryResult:
    """Call the handler of ``task`` on ``records`` (RECORD_COLUMNS and delivery_count int), and return its answers.

    ``records`` are exactly the acquired ones, each once, lazy, in as many tasks as shall run at a time; where the task
    has inputs of its own, with a marker in each of them; where it is ordered, as ``by_key`` makes them. Output rows of
    records that are not accepted are dropped in the worker; the result must be closed when those of the accepted ones
    have been read.

    Raises ShareError (a record was read twice, a handler that cannot be sent); then nothing is known. An error of the
    delivery as a whole is the ``fault`` of the result.
    """
    task.place.clear()
    frame = _called(records, task)
    return _with_output(frame, task) if task.sends_output else _plain(frame, task)


def handled_as_frame(records: DataFrame, handler: Handler) -> DeliveryResult:
    """Deliver to a handler of frames. A frame that fails when it is computed releases all records that can be read."""
    records = records.persist()
    try:
        return decoded(frame_runs(records, handler).toArrow(), settled(handler.name))
    except HandlerError as fault:
        return DeliveryResult(fault=fault)
    except Exception as fault:  # noqa: BLE001 - of the handler's own plan, or of the records; the second action says so
        if is_unreachable(fault):
            return DeliveryResult(fault=unread_error(handler.name, fault))
        if is_lost_worker(fault):
            return DeliveryResult(lost=True)
        return decoded(released_frame(records, first_line(fault)).toArrow(), settled(handler.name))
    finally:
        records.unpersist()


def _plain(frame: DataFrame, task: HandlerTask) -> DeliveryResult:
    return _worked_off(frame.sparkSession, task, frame.toArrow)


def _with_output(frame: DataFrame, task: HandlerTask) -> DeliveryResult:
    sent = held(frame)
    try:
        result = _worked_off(frame.sparkSession, task, sent.runs)
    except BaseException:
        sent.free()
        raise
    if any(result.produced.values()) and (result.fault is None or isinstance(result.fault, TopicUnreachableError)):
        return replace(result, outputs=sent.outputs(result.produced), free=sent.free)
    sent.free()
    return result


def _worked_off(spark: SparkSession, task: HandlerTask, action: Callable[[], pa.Table]) -> DeliveryResult:
    """Run the job. Its frame is the same each time: tasks must find the ledgers of records that they read before."""
    entered = -1
    for number in range(_MOST_RUNS + 1):
        run = DeliveryRun(task.delivery, number, reports_only=number == _MOST_RUNS)
        try:
            with _marked(spark, run):
                return _checked(decoded(action(), read_once), task, run)
        except ShareError:
            raise
        except Exception as fault:  # noqa: BLE001 - whatever Spark, or the source of the records, makes of it
            if not is_lost_worker(fault):
                before, entered = entered, -1 if tells_lost_workers() else _entered(task)
                if entered == before or run.reports_only:
                    return _broken_off(task, fault)
            _log.warning("handler %s: a worker was lost and with it the job; it goes on", task.name)
    return DeliveryResult(lost=True)


def _entered(task: HandlerTask) -> int:
    """Return how many records the ledgers have, if the driver sees them. A job that dies with its workers makes
    progress from run to run; one whose records cannot be read does not."""
    return sum(int((entries.status != CallStatus.NOT_ENTERED).sum()) for entries in _ledgers(task))


def _ledgers(task: HandlerTask) -> Iterator[LedgerEntries]:
    for directory in task.place.deliveries(task.place.member_id):
        yield from read_delivery(directory)


def _checked(result: DeliveryResult, task: HandlerTask, run: DeliveryRun) -> DeliveryResult:
    """Return the result. Workers that die before they can call the handler are no record's fault."""
    if result.unknown_thread is not None:
        give_up_task_thread(result.unknown_thread)
    if run.reports_only and not result.entered and result.fault is None:
        return replace(result, fault=HandlerError(f"handler {task.name}: its workers die before it is called"))
    return result


def _broken_off(task: HandlerTask, fault: Exception) -> DeliveryResult:
    """Return the answers in the ledgers, if the driver sees them. Output rows are gone with the job: their records are
    given back as if they had not been tried or, where the query goes on, as entered."""
    unread = unread_error(task.name, fault)
    goes_on = isinstance(unread, TopicUnreachableError)
    answers = RunLog(task.topic)
    for entries in _ledgers(task) if task.output is None or goes_on else ():
        codes = codes_of(entries)
        if goes_on:
            is_undone = entries.status == CallStatus.IN_HANDLER
            is_undone |= (codes == AcknowledgeType.ACCEPT) & (task.output is not None)
            codes = np.where(is_undone, np.int8(Loss.FINISHED), codes)
        answers.add_entries(
            entries, codes, codes != Loss.NOT_ENTERED if goes_on else np.isin(codes, [*AcknowledgeType, Loss.THROTTLED])
        )
    result = decoded(pa.Table.from_batches([answers.batch()], RUN_SCHEMA), read_once)
    return replace(result, fault=unread)


def unread_error(handler: str, fault: Exception) -> ShareError:
    """Return the error, TopicUnreachableError if another try may help."""
    reason = first_line(fault)
    if is_of_storage(reason):
        return EnvironmentFault(f"Spark could not deliver records to handler {handler}: {reason}")
    text = f"the records for handler {handler} cannot be read: {reason}"
    return TopicUnreachableError(text) if is_unreachable(fault) else TopicError(text)


@contextmanager
def _marked(spark: SparkSession, run: DeliveryRun) -> Iterator[None]:
    """Mark the tasks of the job as belonging to this run."""
    context: Any = spark.sparkContext
    before = context.getLocalProperty(DELIVERY_PROPERTY)
    context.setLocalProperty(DELIVERY_PROPERTY, str(run))
    try:
        yield
    finally:
        context.setLocalProperty(DELIVERY_PROPERTY, before)


def _called(records: DataFrame, task: HandlerTask) -> DataFrame:
    wanted = task.columns
    keys = (*(KEY_COLUMNS if task.topic is None else KEY_COLUMNS[1:]), "delivery_count", *["key"] * task.ordered)
    columns = [*wanted, *(name for name in keys if name not in wanted)]
    chosen = columns if task.ordered or has_limit(records.sparkSession) else with_marks(columns)
    chosen = [_HEADERS if name == "headers" else name for name in chosen]
    return with_task_thread(records, chosen, TASK_COLUMN).mapInArrow(task, _sent_type(task))


def _sent_type(task: HandlerTask) -> StructType:
    """Return the schema that a task sends, as a Spark type."""
    if task.output is None or not task.sends_output:
        return RUN_TYPE
    output = spark_schema(pa.schema([field.with_nullable(True) for field in task.output]))
    return StructType([*RUN_TYPE.fields, StructField(OUTPUT_COLUMN, output)])
