"""The share-state store on Delta: a log of records, one blind append per micro-batch, and the live state as a
cached frame.

Delta is the truth (``group_log``), the frame is a cache of it (``live_frame``).

Which rows count: a segment belongs to one claim (writer epoch, run id) and begins with a snapshot of every live
share-partition, so the state is the snapshots and updates of the newest valid segment. ``commits`` finds that
segment from the commit notes without reading data; where log clean-up has taken them, the rows' own stamps are asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from share_spark.engine.pending import LEAST_RANGES, OpenSegment
from share_spark.engine.ports import Claim
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary, front_of
from share_spark.model.errors import StateError
from share_spark.model.ids import NO_STAMP, BatchStamp, SharePartitionKey
from share_spark.partition import PartitionLimits
from share_spark.spark.delta_log import table_id
from share_spark.spark.frames import unpersist
from share_spark.spark.on_demand import AnySpark, given_session
from share_spark.spark.progress import log_progress
from share_spark.spark.threads import running_query_id
from share_spark.state.advancing import StepTerms
from share_spark.state.buckets import STATE, Advance, bucket_numbers, bucket_of, outcomes_in, summaries_in
from share_spark.state.commits import CommitNote
from share_spark.state.driver_states import DriverAdvance, DriverCapacity, DriverStates, Extent
from share_spark.state.fold import fold_rows
from share_spark.state.group_log import GroupLog
from share_spark.state.live_frame import (
    LiveFrame,
    empty_frame,
    folded,
    frame_of,
    loading_session,
    payloads_in,
)
from share_spark.state.log_rows import record_rows, record_table
from share_spark.state.segments import LogTail
from share_spark.state.state_view import LiveState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

_ONLY_SPARK = "is read by Spark: it is large, or has something that only Spark knows"


class _Decided(NamedTuple):
    """What the last ``advance`` decided. ``live``: the state after it. ``rows``: to be appended; not ``dirty``: none.
    ``ranges``: in them. ``touched``: of the state; ``whole``: all of it, where that is known."""

    live: LiveState
    note: CommitNote
    rows: Callable[[str | None], pa.Table | DataFrame]
    outcomes: Sequence[PartitionOutcome]
    ranges: int
    touched: Extent
    whole: Extent | None
    dirty: bool = False


class _Loaded(NamedTuple):
    """The live state and its summaries."""

    live: LiveState
    summaries: Mapping[SharePartitionKey, PartitionSummary]


@dataclass(slots=True, kw_only=True)
class DeltaShareStateStore:
    """ShareStateStore on Delta for one group and one run. See ``engine.ports`` for what each method promises.

    ``audit``: rows also say which attempts ended and how; worth its space where history is kept. ``buckets``: as many
    as Spark runs tasks at a time where they are left out. ``driver``: up to where the state is kept on the driver; it
    moves to the executors beyond, and back where a segment begins below ``to_return``. None: never there.
    """

    log: GroupLog
    updates_per_snapshot: int
    audit: bool = False
    least_ranges: int = LEAST_RANGES
    driver: DriverCapacity | None = field(default_factory=DriverCapacity.of_this_machine)
    buckets: tuple[int, ...] = ()
    live: LiveFrame = field(default_factory=LiveFrame)
    _open_segment: OpenSegment = field(default_factory=OpenSegment)
    _loaded: LogTail | None = None
    _has_state: bool = False
    _decided: _Decided | None = None

    @property
    def member_id(self) -> str:
        """The engine as a member of its group."""
        return f"spark-{self.log.run_id}"

    @property
    def segment(self) -> int:
        """The segment being written; all lower ones of the group are closed."""
        return self._open_segment.number

    @property
    def last_counted(self) -> BatchStamp:
        """The last micro-batch that counts, as of the last ``load``."""
        return NO_STAMP if self._loaded is None else self._loaded.last

    @property
    def last_time_ms(self) -> int:
        """When that micro-batch was decided, 0 if there is none."""
        return 0 if self._loaded is None else self._loaded.at_ms

    def known_topics(self) -> Iterable[tuple[str, str]]:
        """From the log."""
        return self.log.known_topics()

    def claim(self) -> Claim:
        """The claim's segment is the one to begin."""
        log = self.log
        self.buckets = self.buckets or bucket_numbers(_tasks_at_a_time(log.spark))
        self._open_segment = OpenSegment(number=log.claim().segment)
        with log.as_state_error():
            found = log.table_log
            log_id = table_id(log.session(_ONLY_SPARK), log.directory) if found is None else found.table_id
        return Claim(
            group_id=log.group_id,
            writer_epoch=log.writer_epoch,
            run_id=log.run_id,
            member_id=self.member_id,
            directory=log.directory,
            log_id=log_id,
        )

    def load(self) -> Mapping[SharePartitionKey, PartitionSummary]:
        """Fold the newest valid segment."""
        return self._load(self.driver)

    def _load(self, driver: DriverCapacity | None) -> Mapping[SharePartitionKey, PartitionSummary]:
        log = self.log
        tail = log.tail()
        summaries: Mapping[SharePartitionKey, PartitionSummary] = {}
        live = LiveState(on_driver=DriverStates())
        if not tail.empty or driver is None:
            spark, what = given_session(log.spark), f"loading the state of group {log.group_id}"
            with log.as_state_error(), log_progress(spark, what):
                live, summaries = self._small(tail, driver) or self._folded(tail, driver)
        self._loaded, self._has_state = tail, bool(summaries)
        before = self.live.state
        self.live.adopt(live._replace(writer_epoch=log.writer_epoch, batch_id=before.batch_id, at_ms=before.at_ms))
        return summaries

    def _small(self, tail: LogTail, driver: DriverCapacity | None) -> _Loaded | None:
        """Without Spark; None if that cannot be, or if the state is not small."""
        rows = self.log.small_rows(tail) if driver is not None else None
        if rows is None or driver is None:
            return None
        states = DriverStates.of(fold_rows(rows, self.log.group_id))
        if not driver.holds(states.extent):
            return None
        summaries = {key: front_of(topic, state) for key, (topic, state) in states.states.items()}
        return _Loaded(LiveState(on_driver=states), summaries)

    def _folded(self, tail: LogTail, driver: DriverCapacity | None) -> _Loaded:
        """By Spark, in parallel over the buckets."""
        log, spark = self.log, self.log.session(_ONLY_SPARK)
        if tail.empty:  # the first micro-batch will compute the empty frame on its way
            return _Loaded(LiveState(frame=empty_frame(spark, self.buckets).localCheckpoint(eager=False)), {})
        session = loading_session(spark)
        frame, outcomes = folded(spark, session, tail.rows(session), self.buckets, log.group_id)
        summaries, end = summaries_in(outcomes)
        log.refuse_damaged(tail, end.batch_id)
        live = LiveState(frame=frame)
        if driver is not None and driver.holds(Extent(len(summaries), end.ranges)):
            live = _on_driver(live)
            unpersist(frame)
        return _Loaded(live, summaries)

    def advance(
        self,
        partition_inputs: Mapping[SharePartitionKey, PartitionInput],
        *,
        limits: PartitionLimits,
        batch_id: int,
        now_ms: int,
    ) -> Sequence[PartitionOutcome]:
        """On the driver, or one Python call per bucket; then the result stays on the executors but for the outcomes."""
        begins = self._open_segment.begins
        ends = self._open_segment.is_full(self.updates_per_snapshot, self.least_ranges)
        terms = StepTerms(
            group_id=self.log.group_id,
            limits=limits,
            member_id=self.member_id,
            now_ms=now_ms,
            snapshot_all=begins or ends,
            audit=self.audit,
        )
        note = self.log.note("records", self.segment + int(ends), batch_id, now_ms)
        if self.live.state.frame is None and self.live.state.on_driver is None:
            self.load()
        on_driver = self.live.state.on_driver
        if on_driver is not None:
            decided = _decided_on_driver(on_driver.advance(partition_inputs, terms), note)
        else:
            decided = self._decided_on_executors(Advance(self._by_bucket(partition_inputs), terms), note)
        self._has_state = self._has_state or bool(partition_inputs)
        # A record commit has rows, always: by that a restart sees that none are missing.
        dirty = (terms.snapshot_all and self._has_state) or any(outcome.changed for outcome in decided.outcomes)
        self._decided = decided._replace(dirty=dirty)
        return decided.outcomes

    def _decided_on_executors(self, function: Advance, note: CommitNote) -> _Decided:
        frame, payloads = self.live.advance(function, rebuild=lambda: self._load(None))
        outcomes, written = outcomes_in(payloads)
        return _Decided(
            live=_stamped(LiveState(frame=frame), note),
            note=note,
            rows=lambda query_id: record_rows(frame, note, query_id),
            outcomes=outcomes,
            ranges=written.ranges,
            touched=Extent(len(outcomes), written.touched),
            whole=Extent(written.records, written.ranges) if function.terms.snapshot_all else None,
        )

    def commit(self) -> None:
        """One append that counts only if no other run has claimed the group before it."""
        if self._decided is None:
            raise StateError("commit without advance")
        decided = self._decided
        if decided.dirty:
            with self.log.as_state_error():
                rows = decided.rows(self._query_id)
            self.log.append(rows, decided.note)
            self._count(decided.note)
        self.live.adopt(decided.live)
        self._decided = None
        self._choose_place(decided)

    def _choose_place(self, decided: _Decided) -> None:
        """Where the next micro-batch finds the state; one without a session is the only one."""
        live, driver, whole = decided.live, self.driver, decided.whole
        if whole is None or driver is None or given_session(self.log.spark) is None:
            return
        if live.on_driver is not None and not driver.holds(whole, decided.touched):
            _log.info("the state of group %s has grown: it moves to the executors", self.log.group_id)
            rows, spark = live.on_driver.to_frame_rows(self.buckets), self.log.session(_ONLY_SPARK)
            frame = frame_of(spark, rows, len(self.buckets))
            self.live.adopt(live._replace(on_driver=None, frame=frame))
        elif live.frame is not None and driver.to_return.holds(whole, decided.touched):
            _log.info("the state of group %s has shrunk: it moves to the driver", self.log.group_id)
            self.live.adopt(_on_driver(live))

    def was_committed(self, batch_id: int) -> bool:
        """Look for the stamp of the micro-batch in the commits since our own last one."""
        found = self.log.find(batch_id)
        if found is not None:
            self._count(found)
        return found is not None

    def borrow(self) -> AbstractContextManager[LiveState]:
        """The live frame as of the last commit, kept readable until given back. From any thread."""
        return self.live.borrow()

    def _count(self, note: CommitNote) -> None:
        self._open_segment = self._open_segment.after(note.segment, self._decided.ranges if self._decided else 0)

    def _by_bucket(
        self, partition_inputs: Mapping[SharePartitionKey, PartitionInput]
    ) -> dict[int, dict[SharePartitionKey, PartitionInput]]:
        buckets: dict[int, dict[SharePartitionKey, PartitionInput]] = {}
        for key, partition_input in partition_inputs.items():
            buckets.setdefault(bucket_of(key, self.buckets), {})[key] = partition_input
        return buckets

    @property
    def _query_id(self) -> str | None:
        """Spark sets it on the thread that runs the micro-batch."""
        spark = given_session(self.log.spark)
        return None if spark is None else running_query_id(spark)


def _decided_on_driver(advance: DriverAdvance, note: CommitNote) -> _Decided:
    return _Decided(
        live=_stamped(LiveState(on_driver=advance.states), note),
        note=note,
        rows=lambda query_id: record_table(advance.records(), note, query_id),
        outcomes=advance.outcomes,
        ranges=advance.ranges,
        touched=advance.touched,
        whole=advance.states.extent,
    )


def _tasks_at_a_time(spark: AnySpark) -> int:
    session = given_session(spark)
    return 1 if session is None else max(1, session.sparkContext.defaultParallelism)


def _stamped(live: LiveState, note: CommitNote) -> LiveState:
    return live._replace(writer_epoch=note.writer_epoch, batch_id=note.batch_id, at_ms=note.at_ms)


def _on_driver(live: LiveState) -> LiveState:
    """The states of its frame, which is freed when another one is adopted."""
    assert live.frame is not None
    states = DriverStates.unpickled(payloads_in(live.frame, STATE))
    return live._replace(frame=None, on_driver=states)
