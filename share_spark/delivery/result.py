"""The result of a delivery: the acknowledgements of every topic-partition as arrays, decoded from the workers' runs,
and the output rows.

If the handler has output, the rows that workers send are kept on the executors: runs for the driver now, output rows
for a sink afterwards. The handler runs once, whatever happens to the executors.

Spark's own ways of keeping a frame do not promise that. A cached frame, and a local checkpoint until its job has ended,
compute a lost block again, and that would call the handler again. So:
- the frame is a local checkpoint that never checks: its blocks are kept, its lineage is not replaced by them, and
  nothing but the one action computes it (tasks know their delivery, see ``worker``); a later read of a lost block
  raises OutputLostError;
- where two attempts of a task wrote the same block (speculation, an executor that was given up too early), the block
  may be of the attempt whose answers were not taken. It names its attempt, and reading it is the same error.

Where Spark does not let its checkpoint be changed so (``HELD_OUTPUT``), the output rows come to the driver with the
runs, in the one action, and go back to the executors from there: slower, and in one micro-batch no more than the driver
can hold, but computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from share_spark.delivery.acquired_records import SMALL
from share_spark.delivery.kept_rows import KeptFile
from share_spark.delivery.runs import OUTPUT_COLUMN, REPORT_COLUMN, RUN_SCHEMA, AnswerRuns, RunColumn
from share_spark.delivery.task_report import TaskReport
from share_spark.delivery.traces import WORKER_LOST
from share_spark.delta.data_file import DataFile
from share_spark.engine.answers import offsets_by_answer
from share_spark.engine.attempts import ErrorRun
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.handlers.acknowledgement import NO_DELAY, Ack
from share_spark.model.errors import HandlerError, OutputLostError, ShareError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import ANSWERS, AnsweredRange, Loss, RetryDelay
from share_spark.partition.columns import coded
from share_spark.spark.capabilities import HELD_OUTPUT, use
from share_spark.spark.frames import checkpoint_without_check, unpersist

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """The result of a delivery.

    ``fault``: the error of the delivery as a whole; records that are in no run of ``partitions`` were then not entered.
    ``lost``: the job died with its workers, and nothing is known of records in no run. ``entered`` records kept the
    busiest worker for ``busy_s`` seconds, and have cost ``cost``. ``outputs``: the output rows of accepted records,
    lazy, in the declared schema; None if there are none. They are kept on the executors until ``close``; once some have
    died with an executor, reading raises OutputLostError inside Spark. ``files``: those that workers wrote.
    ``kept``: files of released records. ``has_large``: some were too large for a batch, and not entered.
    """

    partitions: Mapping[TopicPartition, AcknowledgedSpan] = field(default_factory=dict)
    fault: ShareError | None = None
    lost: bool = False
    entered: int = 0
    busy_s: float = 0.0
    cost: float = 0.0
    produced: Mapping[int, int] = field(default_factory=dict)
    outputs: DataFrame | None = None
    free: Callable[[], None] | None = None
    unknown_thread: str | None = None
    files: Sequence[DataFile] = ()
    kept: Sequence[KeptFile] = ()
    has_large: bool = False

    def close(self) -> None:
        """Free the output rows. Safe to call twice."""
        if self.free is not None:
            self.free()

    @property
    def accepted(self) -> int:
        """Records accepted."""
        return self._count(Ack.ACCEPT)

    @property
    def released(self) -> int:
        """Records released."""
        return self._count(Ack.RELEASE)

    @property
    def rejected(self) -> int:
        """Records rejected."""
        return self._count(Ack.REJECT)

    @property
    def lost_records(self) -> int:
        """Records whose attempt was lost with a worker."""
        return sum(self._count(loss) for loss in Loss if loss not in (Loss.NOT_ENTERED, Loss.THROTTLED))

    @property
    def explains_deaths(self) -> bool:
        """Whether workers have died whose ledgers show their records."""
        texts = (run.error for span in self.partitions.values() for run in span.errors)
        return self._count(Loss.AMONG_OTHERS) > 0 or WORKER_LOST in texts

    @property
    def not_entered(self) -> int:
        """Records that were read, and that the handler was not called with."""
        return self._count(Loss.NOT_ENTERED)

    @property
    def throttled(self) -> int:
        """Records given back since a service has asked the handler to wait."""
        return self._count(Loss.THROTTLED)

    def _count(self, answer: int) -> int:
        """Return the number of records with this acknowledgement, or Loss."""
        return sum(offsets_by_answer(span.ranges)[answer] for span in self.partitions.values())


Settle = Callable[[Sequence[str], AnswerRuns], AnswerRuns]
"""A function that makes the answers out of all runs, sorted by topic, partition and offset; with the names of the
topics. Raises ShareError."""


def decoded(table: pa.Table, settle: Settle) -> DeliveryResult:
    """Decode what the workers sent (RUN_SCHEMA, in any order). Raises ShareError (a record was read twice)."""
    reports, acks = _parted(table)
    names, topic_ids = _encoded(acks.column("topic"))
    texts, error_ids = _encoded(acks.column("error"))
    runs = settle(names, _runs(acks, topic_ids, error_ids).ordered())
    return DeliveryResult(
        partitions=_spans(names, texts, runs),
        fault=_fault(reports),
        entered=sum(report.entered for report in reports),
        busy_s=max((report.busy_s for report in reports), default=0.0),
        cost=sum(report.cost for report in reports),
        produced={report.attempt_id: report.output_rows for report in reports},
        files=[DataFile.from_json(file) for report in reports for file in report.files],
        kept=[KeptFile(report.kept, report.kept_rows) for report in reports if report.kept],
        has_large=any(report.has_large for report in reports),
        unknown_thread=next((report.unknown_thread for report in reports if report.unknown_thread), None),
    )


def read_once(names: Sequence[str], runs: AnswerRuns) -> AnswerRuns:
    """Settle the answers of workers, which answer each record they read once. Raises ShareError if one was read
    twice."""
    runs = runs.joined()
    if (row := runs.first_overlap()) is not None:
        (key,) = runs.places(names, [row])
        raise ShareError(f"record {key}@{runs.first[row]} was read twice in one delivery")
    return runs


def each_partition(settle: Callable[[TopicPartition, AnswerRuns], AnswerRuns]) -> Settle:
    """Return a function that settles the runs of each topic-partition by themselves."""

    def settle_all(names: Sequence[str], runs: AnswerRuns) -> AnswerRuns:
        stretches = runs.stretches()
        keys = runs.places(names, [begin for begin, _ in stretches])
        parts = (runs.picked(slice(begin, end)) for begin, end in stretches)
        settled = [settle(key, part) for key, part in zip(keys, parts, strict=True)]
        return AnswerRuns.concatenated(settled) if settled else runs

    return settle_all


def _parted(table: pa.Table) -> tuple[list[TaskReport], pa.Table]:
    """Return (the reports of the tasks, acknowledgements and existing records)."""
    texts: Any = table.column(REPORT_COLUMN)
    reports = [TaskReport.parse(text) for text in texts.drop_null().to_pylist()]
    return reports, table.filter(pc.is_null(texts)) if reports else table


def _fault(reports: Sequence[TaskReport]) -> ShareError | None:
    """Return the first error: a broken contract before a fault of ours, and that before an outage."""
    for name, error in (("violation", HandlerError), ("fault", ShareError), ("unreachable", TopicUnreachableError)):
        for text in filter(None, (getattr(report, name) for report in reports)):
            return error(" ".join(text.split()))
    return None


def _encoded(column: Any) -> tuple[list[str], npt.NDArray[Any]]:
    """Return the different texts of a column, and the index of each row's text; -1 where it is null."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy()


def _runs(acks: pa.Table, topic_ids: RunColumn, error_ids: RunColumn) -> AnswerRuns:
    delays: Any = pc.fill_null(acks.column("delay_ms"), pa.scalar(NO_DELAY, pa.int64()))
    return AnswerRuns(
        topic=topic_ids,
        partition=acks.column("partition").to_numpy(),
        first=acks.column("first_offset").to_numpy(),
        last=acks.column("last_offset").to_numpy(),
        code=acks.column("ack").to_numpy(),
        error=error_ids,
        delay=delays.to_numpy(),
    )


def _spans(names: Sequence[str], texts: Sequence[str], runs: AnswerRuns) -> dict[TopicPartition, AcknowledgedSpan]:
    """Return the spans by topic-partition. Only those with errors or delays are looked at once more: there may be ten
    thousand."""
    stretches = runs.stretches()
    if not stretches:
        return {}
    begins = [begin for begin, _ in stretches]
    has_errors = np.logical_or.reduceat(runs.error >= 0, begins).tolist()
    has_delays = np.logical_or.reduceat(_asks_delay(runs), begins).tolist()
    spans = {}
    for (begin, end), key, is_noted, is_delayed in zip(
        stretches, runs.places(names, begins), has_errors, has_delays, strict=True
    ):
        rows = slice(begin, end)
        ranges = coded(AnsweredRange, runs.first[rows], runs.last[rows], runs.code[rows], _MEANINGS)
        part = runs.picked(rows) if is_noted or is_delayed else None
        errors = _errors(part, texts) if part is not None and is_noted else ()
        delays = _delays(part) if part is not None and is_delayed else ()
        spans[key] = AcknowledgedSpan(key, ranges, errors, delays)
    return spans


_MEANINGS = {number: (answer,) for number, answer in ANSWERS.items()}


def _errors(runs: AnswerRuns, texts: Sequence[str]) -> tuple[ErrorRun, ...]:
    noted = runs.picked(runs.error >= 0)
    rows = zip(noted.first.tolist(), noted.last.tolist(), noted.error.tolist(), strict=True)
    return tuple(ErrorRun(first, last, texts[error]) for first, last, error in rows)


def _asks_delay(runs: AnswerRuns) -> npt.NDArray[np.bool_]:
    may_wait = np.isin(runs.code, [Ack.RELEASE, Loss.NOT_ENTERED, Loss.THROTTLED])
    is_asked: npt.NDArray[np.bool_] = may_wait & (runs.delay != NO_DELAY)
    return is_asked


def _delays(runs: AnswerRuns) -> tuple[RetryDelay, ...]:
    asked = runs.picked(_asks_delay(runs))
    return tuple(map(RetryDelay, asked.first.tolist(), asked.last.tolist(), asked.delay.tolist()))


_OTHER_ATTEMPT = f"{OutputLostError.__name__}: output rows are of another attempt than the acknowledgements"


def is_lost_output(fault: BaseException | None) -> bool:
    """Return whether a read of output rows has failed because they died with an executor: Spark's error has the name of
    ours in its text."""
    return OutputLostError.__name__ in str(fault)


class SentRows(Protocol):
    """The rows that the workers of one delivery sent."""

    def runs(self) -> pa.Table:
        """Run the one action, again if it died with its workers. Return all but the output rows, in RUN_SCHEMA."""

    def outputs(self, produced: Mapping[int, int]) -> DataFrame:
        """Return the output rows that these attempts of tasks sent (``DeliveryResult.produced``); after ``runs``. A few
        rows come in one task, as each task makes a file of a sink."""

    def free(self) -> None:
        """Drop the rows."""


def held(sent: DataFrame) -> SentRows:
    """Keep the rows of ``sent``, the frame that a HandlerTask with output makes; lazy."""
    private: Callable[[], SentRows] = lambda: HeldFrame(sent)  # noqa: E731
    return use(HELD_OUTPUT, private, lambda: CollectedFrame(sent))


class HeldFrame:
    """Rows that stay on the executors."""

    def __init__(self, sent: DataFrame) -> None:
        self._frame = checkpoint_without_check(sent)
        self._runs = self._frame.where(f"{OUTPUT_COLUMN} IS NULL").select(*RUN_SCHEMA.names)

    def runs(self) -> pa.Table:
        return self._runs.toArrow()

    def outputs(self, produced: Mapping[int, int]) -> DataFrame:
        """Return the output rows; lazy, reads blocks only."""
        ids = ", ".join(f"'{attempt_id}'" for attempt_id in produced)
        # A condition that is null instead of false would not keep the error from being raised.
        foreign = f"{REPORT_COLUMN} IS NOT NULL AND get_json_object({REPORT_COLUMN}, '$.attempt_id') NOT IN ({ids})"
        checked = f"{OUTPUT_COLUMN} IS NOT NULL OR ({foreign} AND raise_error('{_OTHER_ATTEMPT}') IS NOT NULL)"
        rows = self._frame.where(checked).select(f"{OUTPUT_COLUMN}.*")
        return _few_in_one_task(rows, produced)

    def free(self) -> None:
        unpersist(self._frame)


class CollectedFrame:
    """Rows that pass through the driver. Of each task they are those of the attempt whose answers were taken."""

    def __init__(self, sent: DataFrame) -> None:
        self._sent = sent
        self._rows: pa.Table | None = None

    def runs(self) -> pa.Table:
        table = self._sent.toArrow()
        is_output = pc.is_valid(table.column(OUTPUT_COLUMN))
        self._rows = table.filter(is_output).select([OUTPUT_COLUMN])
        return table.filter(pc.invert(is_output)).select(RUN_SCHEMA.names)

    def outputs(self, produced: Mapping[int, int]) -> DataFrame:
        assert self._rows is not None, "outputs before runs"
        schema: Any = self._sent.schema[OUTPUT_COLUMN].dataType
        structs: Any = self._rows.column(OUTPUT_COLUMN).combine_chunks()
        table = pa.Table.from_arrays(structs.flatten(), names=schema.names)
        rows = self._sent.sparkSession.createDataFrame(table, schema)
        return _few_in_one_task(rows, produced)

    def free(self) -> None:
        self._rows = None


def _few_in_one_task(rows: DataFrame, produced: Mapping[int, int]) -> DataFrame:
    return rows.coalesce(1) if sum(produced.values()) <= SMALL else rows
