"""The engine's interfaces to the outside, as small protocols. ``tests/twins`` has an in-memory twin of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from share_spark.coordinator.group import GroupRecord, ShareGroup
from share_spark.engine.delivery_port import AcknowledgedSpans, AcquiredSpan
from share_spark.engine.pauses import Pauses
from share_spark.engine.ranges import NumberedRanges
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.model.config import GroupConfig
from share_spark.model.ids import BatchStamp, LogEnds, SharePartitionKey, TopicPartition
from share_spark.model.records import InFlightBatch
from share_spark.partition import PartitionLimits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.engine.record_reader import RecordReader

RECORD_COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
"""The columns of every frame of records, named as by Spark's Kafka source (``timestampType`` left out)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as described by its log. ``topic_id`` changes when the topic is deleted and created again."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]


class OffsetSpan(NamedTuple):
    """A stretch of one topic-partition to read, inclusive; it may cover offsets that are not needed."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


class TopicLog(Protocol):
    """A log of topics that others write to: Kafka, or a Delta table in Kafka's shape. Never written by the engine."""

    def describe(self, topic: str) -> TopicDescription:
        """Return the topic. Raises TopicError (no such topic), TopicUnreachableError (no answer in bounded time)."""
        ...

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """Return the ends of all partitions in one call; new partitions appear here. Errors as ``describe``."""
        ...

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """Return, per partition, the first offset stamped at or after ``timestamp_ms``, or its end if there is none."""
        ...

    def read(self, spark: SparkSession, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
        """Return the records inside the spans, columns RECORD_COLUMNS, in about ``tasks`` tasks for any number of
        partitions. Offsets without a record (compacted, control, aborted, below the log start) are simply missing.
        Records of one task come in ascending offset order per partition. Lazy; reading twice reads the log twice."""
        ...

    def for_workers(
        self, spark: SparkSession | None, acquired: Sequence[AcquiredSpan], *, ordered: bool
    ) -> RecordReader | None:
        """Return a reader for Python workers, or without Spark for this process; None where Spark reads these records
        better, or only Spark can. ``ordered``: Spark would shuffle what it has read. Errors as ``read``."""
        ...

    def stop_waiting(self) -> None:
        """End all waiting, from any thread: present calls raise TopicUnreachableError soon, and so do later ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A group that an engine has claimed, with all that its ports need to know of it.

    ``member_id``: the engine as a member of its group; a new run is a new member. ``directory``: of the state log;
    files of the ports are beside it. ``log_id``: the id of the state log, a part of the names under which its groups
    write elsewhere: a state that was removed and made again counts from one again.
    """

    group_id: str
    writer_epoch: int
    run_id: str
    member_id: str
    directory: str
    log_id: str


class ShareStateStore(Protocol):
    """Durable share-partition state of one group: a log of records, and the live state folded from it.

    ``advance`` computes and changes nothing; ``commit`` makes the last ``advance`` durable in one append and adopts it.
    """

    def known_topics(self) -> Iterable[tuple[str, str]]:
        """Return (topic name, topic id) of each topic in the group's state, before the claim. Raises StateError."""
        ...

    def claim(self) -> Claim:
        """Claim the group for this engine. Raises FencedError, StateError."""
        ...

    def load(self) -> Mapping[SharePartitionKey, PartitionSummary]:
        """Build the live state (again) from the valid part of the log. Raises StateError, FencedError."""
        ...

    def advance(
        self,
        partition_inputs: Mapping[SharePartitionKey, PartitionInput],
        *,
        limits: PartitionLimits,
        batch_id: int,
        now_ms: int,
        group_records: Sequence[GroupRecord] = (),
    ) -> Sequence[PartitionOutcome]:
        """Decide for every share-partition that has an input; others stay as they are. Tentative until ``commit``.

        ``limits`` may change each time: the log has the results, and no state is folded by them. ``group_records``:
        what was decided of the members, for the same append."""
        ...

    def commit(self) -> None:
        """Append what the last ``advance`` decided, check that no other engine has claimed the group, adopt the new
        state. Raises FencedError; any other exception leaves the outcome unknown until ``was_committed``."""
        ...

    def was_committed(self, batch_id: int) -> bool:
        """Return whether that append happened, after a failed ``commit``. Call ``load`` afterwards."""
        ...

    def held_by(self, member_id: str) -> Mapping[SharePartitionKey, Sequence[InFlightBatch]]:
        """Return what this member holds at or above the SPSO, as of the last ``load`` or ``commit``, without
        share-partitions where that is nothing."""
        ...

    @property
    def group(self) -> ShareGroup | None:
        """The members and epochs of the group, as of the last ``load`` or ``commit``; None if it never had a member."""
        ...

    @property
    def last_counted(self) -> BatchStamp:
        """The last valid micro-batch, as of the last ``load``: after the first ``load``, that of the engine before."""
        ...

    @property
    def last_time_ms(self) -> int:
        """The time at which the last valid micro-batch was decided, as of the last ``load``; 0 if there is none. Time
        must not go back behind it, whatever the clock of the next engine says."""
        ...


class NumberedSpan(NamedTuple):
    """Archived offsets of one topic-partition, with the numbers of their dead letters."""

    partition: TopicPartition
    ranges: NumberedRanges


class CommittedOutput(NamedTuple):
    """A delivery whose output is in the sink, so its acknowledgements are valid, even if no state row has them yet.

    ``stamp``: the micro-batch that acquired what it delivered; once a later one is valid, the state has absorbed it.
    """

    stamp: BatchStamp
    member_id: str
    answers: AcknowledgedSpans


class OutputSink(Protocol):
    """The target of output rows: they and their acknowledgements are decided by one commit.

    An answer is final once ``commit`` has returned; the next state row absorbs it, then it may be forgotten.

    A run without output has a sink as well, which commits nothing: earlier engines may have written to a sink.
    """

    @property
    def has_output(self) -> bool:
        """Whether rows decide. Otherwise an answer is valid once it is known."""
        ...

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        """Claim the sink before all else: older engines cannot write here any more. Return what the last of them
        committed here and the state has not absorbed; all other output is absorbed by a micro-batch up to
        ``last_counted``. Raises FencedError, SinkError, and StateError if there are rows of which neither is known."""
        ...

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None = None) -> None:
        """Write the rows of the last delivery, if there are any. ``member_id``: whose answers they are, None for this
        engine's. Raises FencedError; SinkError if the sink refused them, OutputLostError if they died with an executor,
        StateError if they cannot be journaled: then nothing was written; OutputRefusedError if those of some records
        are refused, and all others are there. After OutputUnknownError, and any other exception, the next engine's
        ``claim`` finds out."""
        ...

    def forget(self) -> None:
        """Forget what was committed here: a valid state row has absorbed it."""
        ...


class DeadLetter(NamedTuple):
    """A run of archived offsets with the reason and the last error, to be written with their records' content."""

    partition: TopicPartition
    first_offset: int
    last_offset: int
    delivery_count: int
    reason: str
    error: str | None


class DeadLetterSink(Protocol):
    """The target of archived records. They are announced durably before the commit that archives them, and written
    after it, so the next engine can complete a crash in between: never lost, and never there without being archived.

    Stamps are announced, and written, in their order, and each is settled before a later one is committed: it is
    written; or it is committed and stays announced, to be written first; or it is withdrawn.

    A run without a target has a sink as well, which announces and writes nothing: announcements of earlier runs have to
    be judged by this run's claim, as its commits hide the ones to judge by.
    """

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Record what the commit of ``stamp`` is about to archive. Raises DeadLetterError, and may have happened."""
        ...

    def withdraw(self, stamp: BatchStamp) -> None:
        """Withdraw ``stamp``: its commit has not happened, and a later one is about to be tried. It is not forgotten:
        if the engine dies before that and the first commit lands after all, it is valid. Raises DeadLetterError."""
        ...

    def write(self, stamp: BatchStamp) -> None:
        """Write what was announced for ``stamp``, whose commit has happened: now, or soon, after earlier ones. Raises
        DeadLetterError, and FencedError if a successor has taken over what was announced: then nothing is written."""
        ...

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Drop offsets from ``ends`` (exclusive) on from letters that are not written yet: the logs were found to end
        there. The records are gone, and others will have these offsets. Raises DeadLetterError."""
        ...

    def is_settled(self) -> bool:
        """Return whether everything that has to be written is. Does not wait."""
        ...

    def check(self) -> None:
        """Raise DeadLetterError if something cannot be written; it stays announced. TopicUnreachableError: its target
        or its records could not be reached, and it is tried again from now on."""
        ...

    def wait(self) -> None:
        """Wait until everything is written. Raises DeadLetterError."""
        ...

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """Judge, before all else, the announcements of earlier engines (``is_committed``), and cut them as in
        ``truncate``. Write what is committed and not yet written, in the order of the stamps, or without a target keep
        it for a run that has one; drop the rest. Announcements of higher epochs than ours are not ours to judge. Raises
        DeadLetterError, and then nothing of a higher stamp than the one that failed is written."""
        ...


class DeadLetterTarget(Protocol):
    """A topic or table that takes dead letters with their content."""

    def write(self, spark: SparkSession | None, claim: Claim, stamp: BatchStamp, letters: DataFrame | pa.Table) -> None:
        """Write one dead letter per row of ``letters`` (RECORD_COLUMNS, delivery_count int, reason string, error
        string), a table if there are few, or there is no Spark. A table takes those of one stamp once. Raises
        DeadLetterError."""
        ...


class PauseSource(Protocol):
    """The pauses of the group, as set by its operators."""

    def __call__(self) -> Pauses:
        """Return the pauses, now or a moment ago. Raises StateError."""
        ...


class CurrentConfig(Protocol):
    """The settings of the group: those of its job, and over them those that operators have set since."""

    def __call__(self) -> GroupConfig:
        """Return the settings, now or a moment ago."""
        ...


class Clock(Protocol):
    """Wall-clock time."""

    def __call__(self) -> int:
        """Return milliseconds since the epoch."""
        ...
