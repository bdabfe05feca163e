"""What the engine needs from the world, as small protocols. The edges implement them; ``memory`` has a twin of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from share_spark.engine.attempts import ErrorRun
from share_spark.engine.pauses import Pauses
from share_spark.engine.ranges import NONE_EARLIER, AcknowledgedRanges, AcquiredRanges, EarlierRanges, NumberedRanges
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ShareError
from share_spark.model.ids import BatchStamp, LogEnds, SharePartitionKey, TopicPartition
from share_spark.model.requests import RetryDelay
from share_spark.partition import PartitionLimits

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.engine.record_reader import RecordReader

RECORD_COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
"""Columns of every frame of records, as Spark's Kafka source names them (``timestampType`` left out)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as its log knows it. ``topic_id`` changes when the topic is deleted and created again."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]


class OffsetSpan(NamedTuple):
    """A stretch of one topic-partition to read, inclusive; may cover offsets that are not needed."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


class TopicLog(Protocol):
    """A log of topics that others write to: Kafka, or a Delta table in Kafka's shape. Never written by the engine."""

    def describe(self, topic: str) -> TopicDescription:
        """The topic now. Raises TopicError (no such topic), TopicUnreachableError (no answer in bounded time)."""
        ...

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """Ends per partition, all partitions in one call; new partitions appear here. Errors as ``describe``."""
        ...

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """Per partition the first offset stamped at or after ``timestamp_ms``, or its end offset if there is none."""
        ...

    def read(self, spark: SparkSession, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
        """The records inside the spans, columns RECORD_COLUMNS, in about ``tasks`` tasks whatever the number of
        partitions. Offsets without a record (compacted, control, aborted, below the log start) are simply missing.
        Records of one task come in ascending offset order per partition. Lazy; reading twice reads the log twice."""
        ...

    def for_workers(
        self, spark: SparkSession, acquired: Sequence[AcquiredSpan], *, ordered: bool
    ) -> RecordReader | None:
        """Return what Python workers read these records with; None where Spark reads them better, or only Spark can.
        ``ordered``: Spark would shuffle what it has read. Errors as ``read``."""
        ...

    def stop_waiting(self) -> None:
        """From any thread: who waits for an answer gets TopicUnreachableError soon, and so does who asks later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A group that an engine has claimed, and all that its ports need to know of that.

    ``member_id``: the engine as a member of its group; a new run is a new member. ``directory``: of the state log;
    what ports keep of their own is beside it. ``log_id``: of the state log, in the names under which its groups write
    elsewhere: a state that was removed and made again counts from one again.
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
        """(topic name, topic id) of every topic in the group's state; asked before the claim. Raises StateError."""
        ...

    def claim(self) -> Claim:
        """Claim the group for this engine. Raises FencedError, StateError."""
        ...

    def load(self) -> Mapping[SharePartitionKey, PartitionSummary]:
        """(Re)build the live state from the log as far as it counts. Raises StateError, FencedError."""
        ...

    def advance(
        self,
        partition_inputs: Mapping[SharePartitionKey, PartitionInput],
        *,
        limits: PartitionLimits,
        batch_id: int,
        now_ms: int,
    ) -> Sequence[PartitionOutcome]:
        """Decide for every share-partition that has an input; others stay as they are. Tentative until ``commit``.

        ``limits`` may be others each time: the log has what came of them, and no state is folded by them."""
        ...

    def commit(self) -> None:
        """Append what the last ``advance`` decided, check that no other engine has claimed the group, adopt the new
        state. Raises FencedError; any other exception leaves the outcome unknown until ``was_committed``."""
        ...

    def was_committed(self, batch_id: int) -> bool:
        """After a failed ``commit``: did the append of that micro-batch happen? Call ``load`` afterwards."""
        ...

    @property
    def last_counted(self) -> BatchStamp:
        """The last micro-batch that counts, as of the last ``load``: after the first one, that of the engine before."""
        ...

    @property
    def last_time_ms(self) -> int:
        """The time that the last micro-batch that counts was decided at, as of the last ``load``; 0 if there is none.
        Time must not go back behind it, whatever the clock of the next engine says."""
        ...


class AcquiredSpan(NamedTuple):
    """What a micro-batch acquired of one topic-partition. ``earlier``: where records are delivered in order of their
    keys, those that are not finished, lie before acquired ones and are not acquired: they hold back their keys."""

    partition: TopicPartition
    ranges: AcquiredRanges
    earlier: EarlierRanges = NONE_EARLIER


class NumberedSpan(NamedTuple):
    """Archived offsets of one topic-partition, with the numbers of their dead letters."""

    partition: TopicPartition
    ranges: NumberedRanges


class AcknowledgedSpan(NamedTuple):
    """What handlers said of one topic-partition. ``errors``: ascending; only what has a text. ``delays``: ascending and
    disjoint: of released records what a handler asked for; of records that were not entered since an earlier one of
    their key is not finished, how long that surely waits."""

    partition: TopicPartition
    ranges: AcknowledgedRanges
    errors: Sequence[ErrorRun]
    delays: Sequence[RetryDelay] = ()


class Delivered(NamedTuple):
    """What became of a delivery.

    ``answers``: per topic-partition; offsets acquired but missing there hold no record or, if there is a ``fault``,
    were never entered. ``fault``: what ends the query, and is no record's failure: a handler that cannot be loaded or
    broke its contract as a whole, a topic that cannot be read. After TopicUnreachableError the engine goes on, and the
    answers count. ``entered`` records kept the busiest worker for ``busy_s`` seconds. ``is_explained``: workers
    have died, and it is known which records were in the handler.
    """

    answers: Sequence[AcknowledgedSpan]
    fault: ShareError | None = None
    entered: int = 0
    busy_s: float = 0.0
    is_explained: bool = False


NO_TRACE = np.empty((0, 4), dtype=np.int64)


class MemberTrace(NamedTuple):
    """What workers of an ended member have left about their last delivery. ``entered``: int64 (n, 4) of first offset,
    last offset, delivery count, ``Loss``, ascending and disjoint; what the member held and is not there was not
    entered."""

    member_id: str
    entered: Mapping[TopicPartition, NDArray[np.int64]]


class DeliveryLimits(NamedTuple):
    """Of one delivery. ``budget_ms``: past this time after its first records are there a worker begins no call.
    ``timeout_ms``: of a call, where the handler does not say its own. ``most_tasks``: handlers at a time, 0 for as many
    as there are cores."""

    budget_ms: int
    timeout_ms: int
    most_tasks: int = 0

    @classmethod
    def of(cls, config: GroupConfig) -> DeliveryLimits:
        """By the settings of a group."""
        return cls(config.delivery_budget_ms, config.delivery_timeout_ms, config.max_concurrency)


class Delivery(Protocol):
    """Brings acquired records to the handler and its acknowledgements back; enters it at most once per record and
    delivery count, and leaves a trace of it that outlives the process where that can be."""

    def start(self, claim: Claim) -> None:
        """The group is claimed: from now on a trace that is missing says that nothing was entered."""
        ...

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        """``in_turn``: one record after another, in one task, none of them with others in a batch. Raises what is not
        to be expected; then nothing is known, and nothing is taken to have been entered."""
        ...

    def traces(self) -> Sequence[MemberTrace]:
        """Of members other than this one. Nothing is known of members that are missing here."""
        ...

    def forget_traces(self) -> None:
        """No lock is left of the members that were there at the start. A successor is none of them."""
        ...

    def forget_last(self) -> None:
        """The state has absorbed what the last delivery has left as a trace, and a log was truncated: the next records
        may have the same offsets and delivery counts, and are others."""
        ...

    def stop_waiting(self) -> None:
        """From any thread: records that do not come are not waited for any more."""
        ...

    def close(self) -> None:
        """The engine has ended: free what was kept for its next delivery."""
        ...


AcknowledgedSpans = Mapping[SharePartitionKey, AcknowledgedSpan]
"""The acknowledgements of one micro-batch's delivery."""


class CommittedOutput(NamedTuple):
    """A delivery whose output is in the sink, so its acknowledgements count, though perhaps no state row says so yet.

    ``stamp``: the micro-batch that acquired what it delivered; once a later one counts, it has been absorbed.
    """

    stamp: BatchStamp
    member_id: str
    answers: AcknowledgedSpans


class OutputSink(Protocol):
    """Where output rows go: together with the acknowledgements they belong to, in one commit that decides both.

    An answer is final once ``commit`` has returned; the next state row absorbs it, then it may be forgotten.

    A run without output has one as well, that commits nothing: engines before may have written to a sink.
    """

    @property
    def has_output(self) -> bool:
        """Do rows decide? Else an answer counts once it is known."""
        ...

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        """Before all else. From now on older engines cannot write here. Returns what the last of them committed here
        and did not live to absorb; of what it does not return, a micro-batch up to ``last_counted`` has absorbed it.
        Raises FencedError, SinkError, and StateError if there are rows of which neither is known."""
        ...

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans) -> None:
        """Write the rows that the last delivery put out. Nothing to do if there are none. Raises FencedError, and
        SinkError if the sink refused them, OutputLostError if they died with an executor, StateError if they cannot be
        journaled: then nothing was written. OutputUnknownError, and any other exception, leave that to the next
        engine's ``claim``."""
        ...

    def forget(self) -> None:
        """A state row that counts has absorbed all that was committed here."""
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
    """Where archived records go. Announced durably before the commit that archives them and written after it, so a
    crash in between is made good by the next engine: never lost, and never there without being archived.

    Stamps are announced, and written, in their order, and each is settled before a later one is committed: it is
    written; or it is committed and stays announced, to be written first; or it is withdrawn.

    A run without a target has a sink as well, that announces and writes nothing: what runs before have left has to be
    judged by this run's claim, as its commits hide the ones to judge by.
    """

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Remember what the commit of ``stamp`` is about to archive. Raises DeadLetterError, and may have happened."""
        ...

    def withdraw(self, stamp: BatchStamp) -> None:
        """The commit of ``stamp`` has not happened, and a later one is about to be tried. Not forgotten: if we die
        before that and the first one lands all the same, it counts. Raises DeadLetterError."""
        ...

    def write(self, stamp: BatchStamp) -> None:
        """The commit has happened: write what was announced for it, now, or soon and after all that came before. Raises
        DeadLetterError, and FencedError if a successor has taken over what was announced: then nothing is written."""
        ...

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """The logs were found to end there (exclusive). What is not written yet loses the offsets from there on: their
        records are gone, and others will have these offsets. Raises DeadLetterError."""
        ...

    def is_settled(self) -> bool:
        """Is everything written that was to be? Does not wait."""
        ...

    def check(self) -> None:
        """Raises DeadLetterError if something cannot be written; it stays announced. TopicUnreachableError: its target
        or its records could not be reached, and it is tried again from now on."""
        ...

    def wait(self) -> None:
        """Until it is. Raises DeadLetterError."""
        ...

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """Before all else: judge what engines before announced (``is_committed``), and cut it as in ``truncate``. Write
        what they committed and did not live to write, in the order of the stamps, or without a target keep it for a run
        that has one; drop the rest. What engines of higher epochs than ours announce meanwhile is not ours to judge.
        Raises DeadLetterError, and then nothing of a higher stamp than the one that failed is written."""
        ...


class DeadLetterTarget(Protocol):
    """A topic or table that takes dead letters with their content."""

    def write(self, spark: SparkSession, claim: Claim, stamp: BatchStamp, letters: DataFrame | pa.Table) -> None:
        """Write one dead letter per row of ``letters`` (RECORD_COLUMNS, delivery_count int, reason string, error
        string), a table if there are few. A table takes those of one stamp once. Raises DeadLetterError."""
        ...


class PauseSource(Protocol):
    """What the operators of the group have paused."""

    def __call__(self) -> Pauses:
        """As of now, or a moment ago. Raises StateError."""
        ...


class CurrentConfig(Protocol):
    """The settings of the group: those of its job, and over them those that operators have set since."""

    def __call__(self) -> GroupConfig:
        """As of now, or a moment ago."""
        ...


class Clock(Protocol):
    """Wall-clock time."""

    def __call__(self) -> int:
        """Milliseconds since the epoch."""
        ...
