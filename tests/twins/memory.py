"""In-memory twins of the ports: a whole share group without Spark, Delta or Kafka, in milliseconds.

Theory of operation. What outlives a process is one object each: ``InMemoryTopicLog`` (what others write) and
``InMemoryStateLog`` (what engines write, a list of commits whose index is the version). A store belongs to one run of
one engine and can be thrown away at any moment, as a process can; two stores on one log fence each other as the Delta
ones do. ``step`` and ``evolve`` make the state, as in production.

Faults come from outside: what a hook raises (``interrupt`` of the store, the function of the delivery) goes
through the engine as it would in production. An ``Exception`` is a fault that the engine sees; a ``BaseException`` of
the test's own is the engine's death.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from share_spark.coordinator.group import GroupRecord, ShareGroup, replay, snapshot
from share_spark.engine.pending import LEAST_RANGES, OpenSegment
from share_spark.engine.plain_step import unaudited_step
from share_spark.engine.ports import Claim, OffsetSpan, TopicDescription
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary, front_of, with_snapshot
from share_spark.model.errors import FencedError, StateError, TopicError
from share_spark.model.ids import NO_STAMP, BatchStamp, LogEnds, SharePartitionKey, TopicPartition
from share_spark.model.records import InFlightBatch, ShareRecord
from share_spark.partition import PartitionLimits, SharePartition, evolve, held_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.engine.delivery_port import AcquiredSpan


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until a test advances it."""

    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms


class MemoryRecord(NamedTuple):
    """A record of a topic-partition."""

    timestamp_ms: int
    value: bytes = b""
    key: bytes | None = None


@dataclass(slots=True)
class _PartitionLog:
    log_start: int = 0
    end: int = 0
    records: dict[int, MemoryRecord] = field(default_factory=dict)


@dataclass(slots=True)
class _Topic:
    topic_id: str
    partitions: list[_PartitionLog]


@dataclass(slots=True)
class InMemoryTopicLog:
    """A TopicLog of records in dictionaries. The methods from ``create_topic`` on do what producers and brokers do."""

    _topics: dict[str, _Topic] = field(default_factory=dict)
    _created: int = 0

    def describe(self, topic: str) -> TopicDescription:
        found = self._topic(topic)
        return TopicDescription(topic=topic, topic_id=found.topic_id, partitions=tuple(range(len(found.partitions))))

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        return {at: LogEnds(log.log_start, log.end) for at, log in enumerate(self._topic(topic).partitions)}

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        return {
            at: min((o for o, record in log.records.items() if record.timestamp_ms >= timestamp_ms), default=log.end)
            for at, log in enumerate(self._topic(topic).partitions)
        }

    def read(self, spark: SparkSession, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
        """Raise NotImplementedError: ``InMemoryDelivery`` looks records up itself."""
        raise NotImplementedError

    def for_workers(self, spark: SparkSession, acquired: Sequence[AcquiredSpan], *, ordered: bool) -> None:
        """Not here."""

    def stop_waiting(self) -> None:
        """Do nothing: no request ever waits."""

    def record(self, at: TopicPartition, offset: int) -> MemoryRecord | None:
        """Return the record at an offset, None where there is none (any more)."""
        return self._log(at).records.get(offset)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic; one of that name is deleted first, and the new one has a new topic id."""
        self._created += 1
        topic_id = base64.urlsafe_b64encode(self._created.to_bytes(16, "big")).decode().rstrip("=")
        self._topics[topic] = _Topic(topic_id, [_PartitionLog() for _ in range(partitions)])

    def delete_topic(self, topic: str) -> None:
        del self._topics[topic]

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._topic(topic).partitions.extend(_PartitionLog() for _ in range(partitions))

    def append(self, at: TopicPartition, records: Iterable[MemoryRecord]) -> None:
        log = self._log(at)
        for record in records:
            log.records[log.end] = record
            log.end += 1

    def skip(self, at: TopicPartition, offsets: int) -> None:
        """Use up offsets without a record, as transaction markers do."""
        self._log(at).end += offsets

    def compact(self, at: TopicPartition, offsets: Iterable[int]) -> None:
        """Take records away; their offsets stay empty."""
        for offset in offsets:
            self._log(at).records.pop(offset, None)

    def move_log_start(self, at: TopicPartition, offset: int) -> None:
        """Delete the records below ``offset``; never moves back."""
        log = self._log(at)
        log.log_start = max(log.log_start, offset)
        log.end = max(log.end, log.log_start)
        log.records = {o: record for o, record in log.records.items() if o >= log.log_start}

    def truncate(self, at: TopicPartition, end: int) -> None:
        """Lose the records from ``end`` on, as an unclean leader election does; the next one is written there."""
        log = self._log(at)
        log.end = min(log.end, end)
        log.log_start = min(log.log_start, log.end)
        log.records = {o: record for o, record in log.records.items() if o < log.end}

    def _topic(self, topic: str) -> _Topic:
        if topic not in self._topics:
            raise TopicError(f"topic {topic!r} does not exist")
        return self._topics[topic]

    def _log(self, at: TopicPartition) -> _PartitionLog:
        return self._topic(at.topic).partitions[at.partition]


class StateCommit(NamedTuple):
    """One append. ``kind``: ``claim`` or ``records``; ``records``: (topic name, record), at most one per key.
    ``at_ms``: the time of the decision of the micro-batch; for a claim the highest known time. ``group_records``: of
    the members; where a segment begins, all that count."""

    group_id: str
    kind: str
    writer_epoch: int
    run_id: str
    segment: int
    batch_id: int
    records: tuple[tuple[str, ShareRecord], ...] = ()
    at_ms: int = 0
    group_records: tuple[GroupRecord, ...] = ()


InMemoryState = dict[SharePartitionKey, tuple[str, SharePartition]]
"""The topic name and state of every share-partition of a group."""


@dataclass(slots=True)
class InMemoryStateLog:
    """The durable log of records of all groups. The version of a commit is its index."""

    commits: list[StateCommit] = field(default_factory=list)

    @property
    def version(self) -> int:
        """The newest version, -1 if there is none."""
        return len(self.commits) - 1

    def that_count(self, group_id: str, version: int) -> list[StateCommit]:
        """Return the ``records`` commits of a group up to ``version`` that count, judged in commit order: only the run
        of the highest claim so far may write, and the first of two claims of one epoch wins."""
        owner = (0, "")
        found: list[StateCommit] = []
        for commit in self.commits[: version + 1]:
            stamp = (commit.writer_epoch, commit.run_id)
            if commit.group_id != group_id:
                continue
            if commit.kind == "claim":
                owner = stamp if stamp[0] > owner[0] else owner
            elif stamp == owner:
                found.append(commit)
        return found

    def state(self, group_id: str, version: int | None = None) -> InMemoryState:
        """Fold the newest segment that counts; it begins with a snapshot of every live share-partition (R74, R85)."""
        counted = self.that_count(group_id, self.version if version is None else version)
        live: InMemoryState = {}
        for commit in counted:
            if (commit.segment, commit.run_id) == (counted[-1].segment, counted[-1].run_id):
                for topic, record in commit.records:
                    known = live.get(record.key)
                    live[record.key] = topic, evolve(known[1] if known else None, record)
        return live

    def group(self, group_id: str, version: int | None = None) -> ShareGroup | None:
        """Return the members and epochs, from the same segment."""
        counted = self.that_count(group_id, self.version if version is None else version)
        last = counted[-1:]
        own = [commit for commit in counted if (commit.segment, commit.run_id) == (last[0].segment, last[0].run_id)]
        return replay(record for commit in own for record in commit.group_records)

    def last_time_ms(self, group_id: str, version: int) -> int:
        """Return the time of the last commit that counts, 0 if there is none."""
        counted = self.that_count(group_id, version)
        return counted[-1].at_ms if counted else 0

    def highest(self, group_id: str) -> tuple[int, int]:
        """Return the highest writer epoch and segment that any engine used, (0, -1) if none did."""
        own = [commit for commit in self.commits if commit.group_id == group_id]
        return max((c.writer_epoch for c in own), default=0), max((c.segment for c in own), default=-1)


class Moment(StrEnum):
    """The moments at which ``interrupt`` is called around an append."""

    BEFORE_APPEND = "before append"
    AFTER_APPEND = "after append"
    """The append has happened; the check for foreign claims has not happened yet."""


Interrupt = Callable[[Moment, StateCommit], None]


def _uninterrupted(_moment: Moment, _commit: StateCommit) -> None:
    return


@dataclass(slots=True, kw_only=True)
class InMemoryShareStateStore:
    """A ShareStateStore on an ``InMemoryStateLog``, for one run. ``interrupt`` is called around every append; it may
    raise, or do what others do meanwhile."""

    log: InMemoryStateLog
    group_id: str
    run_id: str
    updates_per_snapshot: int = 500
    least_ranges: int = LEAST_RANGES
    interrupt: Interrupt = _uninterrupted
    _version: int = -1
    _epoch: int = 0
    _open: OpenSegment = field(default_factory=OpenSegment)
    _time_ms: int = 0
    _loaded_time_ms: int = 0
    _live: InMemoryState = field(default_factory=dict)
    _group: ShareGroup | None = None
    _tentative: tuple[InMemoryState, ShareGroup | None, StateCommit] | None = None

    @property
    def member_id(self) -> str:
        """The engine as a member of its group."""
        return f"memory-{self.run_id}"

    def known_topics(self) -> Iterable[tuple[str, str]]:
        live = self.log.state(self.group_id, self.log.version)
        return {(topic, key.topic_id) for key, (topic, _) in live.items()}

    def claim(self) -> Claim:
        before = self.log.version
        epoch, segment = self.log.highest(self.group_id)
        self._epoch, self._open = epoch + 1, OpenSegment(number=segment + 1)
        self._time_ms = self.log.last_time_ms(self.group_id, before)
        own = self._append(self._commit("claim", -1))
        for commit in self.log.commits[before + 1 : own]:
            self._refuse(commit, ties=True)
        self._version = own
        self._look_on()
        return Claim(
            group_id=self.group_id,
            writer_epoch=self._epoch,
            run_id=self.run_id,
            member_id=self.member_id,
            directory="memory",
            log_id="memory",
        )

    def load(self) -> Mapping[SharePartitionKey, PartitionSummary]:
        self._live = self.log.state(self.group_id, self._version)
        self._group = self.log.group(self.group_id, self._version)
        self._loaded_time_ms = self.log.last_time_ms(self.group_id, self._version)
        return {key: front_of(topic, state, self.member_id) for key, (topic, state) in self._live.items()}

    def held_by(self, member_id: str) -> Mapping[SharePartitionKey, Sequence[InFlightBatch]]:
        found = {key: held_by(state, member_id) for key, (_, state) in self._live.items()}
        return {key: runs for key, runs in found.items() if runs}

    def advance(
        self,
        partition_inputs: Mapping[SharePartitionKey, PartitionInput],
        *,
        limits: PartitionLimits,
        batch_id: int,
        now_ms: int,
        group_records: Sequence[GroupRecord] = (),
    ) -> Sequence[PartitionOutcome]:
        ends = self._open.is_full(self.updates_per_snapshot, self.least_ranges)
        self._time_ms = now_ms
        live, records, outcomes = dict(self._live), {}, []
        for key, partition_input in partition_inputs.items():
            before = live[key][1] if key in live else None
            result = unaudited_step(
                key, before, partition_input, limits=limits, member_id=self.member_id, now_ms=now_ms
            )
            live[key] = partition_input.topic, result.state
            outcomes.append(result.outcome)
            if result.record is not None:
                records[key] = partition_input.topic, result.record
        group = replay(group_records, self._group)
        if ends or self._open.begins:
            live, records = _snapshots(live)
            group_records = () if group is None else snapshot(group)
        commit = self._commit("records", batch_id)._replace(
            segment=self._open.number + int(ends),
            records=tuple(records.values()),
            group_records=tuple(group_records),
        )
        self._tentative = live, group, commit
        return outcomes

    def commit(self) -> None:
        if self._tentative is None:
            raise StateError("commit without advance")
        live, group, commit = self._tentative
        if commit.records or commit.group_records:
            self._append(commit)
            self._look_on()
            self._count(commit)
        self._live, self._group, self._tentative = live, group, None

    @property
    def group(self) -> ShareGroup | None:
        return self._group

    def was_committed(self, batch_id: int) -> bool:
        own = [commit for commit in self._look_on() if (commit.run_id, commit.batch_id) == (self.run_id, batch_id)]
        for commit in own:
            self._count(commit)
        return bool(own)

    @property
    def last_counted(self) -> BatchStamp:
        counted = self.log.that_count(self.group_id, self._version)
        return BatchStamp(counted[-1].writer_epoch, counted[-1].batch_id) if counted else NO_STAMP

    @property
    def last_time_ms(self) -> int:
        return self._loaded_time_ms

    def _commit(self, kind: str, batch_id: int) -> StateCommit:
        return StateCommit(
            self.group_id, kind, self._epoch, self.run_id, self._open.number, batch_id, at_ms=self._time_ms
        )

    def _append(self, commit: StateCommit) -> int:
        self.interrupt(Moment.BEFORE_APPEND, commit)
        self.log.commits.append(commit)
        version = self.log.version
        self.interrupt(Moment.AFTER_APPEND, commit)
        return version

    def _look_on(self) -> list[StateCommit]:
        """Return the commits since the last look. Raises FencedError."""
        seen = self.log.commits[self._version + 1 :]
        for commit in seen:
            self._refuse(commit)
        self._version += len(seen)
        return seen

    def _refuse(self, commit: StateCommit, *, ties: bool = False) -> None:
        foreign = commit.kind == "claim" and commit.group_id == self.group_id and commit.run_id != self.run_id
        if foreign and commit.writer_epoch + int(ties) > self._epoch:
            raise FencedError(
                f"another engine has claimed group {self.group_id!r} (writer epoch {commit.writer_epoch}, "
                f"run {commit.run_id}); this one (epoch {self._epoch}) stops"
            )

    def _count(self, commit: StateCommit) -> None:
        self._open = self._open.after(commit.segment, sum(len(record.batches) for _, record in commit.records))


def _snapshots(live: InMemoryState) -> tuple[InMemoryState, dict[SharePartitionKey, tuple[str, ShareRecord]]]:
    """Return the state, and the snapshots that begin a segment with it."""
    taken = {key: (topic, *with_snapshot(state)) for key, (topic, state) in live.items()}
    after = {key: (topic, state) for key, (topic, state, _) in taken.items()}
    return after, {key: (topic, record) for key, (topic, _, record) in taken.items()}
