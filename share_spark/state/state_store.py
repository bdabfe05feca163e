"""The share-state store on Delta: a log of records, one blind append per micro-batch, and the live state as a
cached frame.

Delta is the truth, the frame is a cache of it. The frame's lineage is cut at every micro-batch (a local checkpoint,
the one before unpersisted), so a lost executor makes it unreadable; it is then rebuilt from the log inside the same
micro-batch.

Which rows count: a segment belongs to one claim (writer epoch, run id) and begins with a snapshot of every live
share-partition, so the state is the snapshots and updates of the newest valid segment. ``commits`` finds that
segment from the commit notes without reading data; where log clean-up has taken them, the rows' own stamps are asked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from share_spark.delta.journal import Journal
from share_spark.delta.location import Location
from share_spark.engine.open_segment import LEAST_RANGES, OpenSegment
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.model.errors import FencedError, StateError
from share_spark.model.ids import NO_STAMP, BatchStamp, SharePartitionKey
from share_spark.partition import PartitionLimits
from share_spark.spark.checkpointed_frame import unpersist
from share_spark.spark.delta_log import table_id
from share_spark.spark.errors import JVM_ERRORS, first_line, is_lost_block
from share_spark.spark.progress import told
from share_spark.spark.running_query import running_query_id
from share_spark.state.buckets import (
    FRAME_COLUMNS,
    HEADER,
    LIVE_COLUMNS,
    OUTCOME,
    STATE,
    Advance,
    bucket_numbers,
    bucket_of,
    outcomes_in,
    summaries_in,
)
from share_spark.state.commits import CommitListing, CommitNote
from share_spark.state.loading import empty_frame, folded_frame, loading_session, payloads_in
from share_spark.state.log_rows import claim_row, record_rows
from share_spark.state.record_rows import SNAPSHOT
from share_spark.state.segments import LogTail, tail_of, tail_since
from share_spark.state.state_view import LiveState
from share_spark.state.tables import ensure_tables, log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_STATE_ERRORS: tuple[type[Exception], ...] = (*JVM_ERRORS, ValueError)
_REBUILD_ATTEMPTS = 3


@dataclass(slots=True, kw_only=True)
class DeltaShareStateStore:
    """ShareStateStore on Delta for one group and one run. See ``engine.ports`` for what each method promises.

    ``audit``: rows also tell which attempts ended and how; worth its space where history is kept. ``least_epoch``: a
    writer epoch that is known to have been claimed; a log that knows less has been put back to an older state.
    """

    spark: SparkSession
    location: Location
    group_id: str
    run_id: str
    limits: PartitionLimits
    updates_per_snapshot: int
    audit: bool = False
    least_epoch: int = 0
    least_ranges: int = LEAST_RANGES
    buckets: tuple[int, ...] = ()
    _commits: Any = None
    _log_id: str | None = None
    _version: int = -1
    _claimed_on: tuple[int, LogTail] | None = None
    _epoch: int = 0
    _open_segment: OpenSegment = field(default_factory=OpenSegment)
    _frame: DataFrame | None = None
    _tentative: DataFrame | None = None
    _tentative_note: CommitNote | None = None
    _tentative_ranges: int = 0
    _dirty: bool = False
    _known: set[SharePartitionKey] = field(default_factory=set)
    _last: BatchStamp = NO_STAMP
    _last_time_ms: int = 0
    _time_ms: int = 0
    _batch_id: int = -1
    _at_ms: int = 0
    _lent: DataFrame | None = None
    _lending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def member_id(self) -> str:
        """The engine is one member of its group; a new run is a new member."""
        return f"spark-{self.run_id}"

    @property
    def segment(self) -> int:
        """The segment being written; all lower ones of the group are closed."""
        return self._open_segment.number

    @property
    def writer_epoch(self) -> int:
        """The epoch of this run's claim."""
        return self._epoch

    def known_topics(self) -> Iterable[tuple[str, str]]:
        """From the snapshots of the newest valid segment; no job at all for a group without state."""
        commits = self._open()
        with self._as_state_error():
            tail = tail_of(self.spark, self.location, self.group_id, commits, commits.latest_version())
            if tail.empty:
                return ()
            rows = tail.rows.where(F.col("kind") == SNAPSHOT).select("topic", "topic_id").distinct()
            return [(row.topic, row.topic_id) for row in rows.collect()]

    def claim(self) -> int:
        """Append a claim of the next epoch; the lowest version wins a tie."""
        commits = self._open()
        with self._as_state_error():
            before, session = commits.latest_version(), loading_session(self.spark)
            tail = tail_of(session, self.location, self.group_id, commits, before)
            if tail.epoch < self.least_epoch:
                raise StateError(
                    f"{log_table(self.location)} is older than the checkpoint of group {self.group_id!r}: it knows "
                    f"writer epoch {tail.epoch}, the checkpoint {self.least_epoch}; if the state was restored on "
                    "purpose, delete the checkpoint"
                )
            self._epoch, self._time_ms, self._version = tail.epoch + 1, tail.at_ms, before
            self._claimed_on = before, tail
            self._append_claim(tail.last_segment + 1)
        _log.info("group %s claimed with writer epoch %s", self.group_id, self._epoch)
        return self._epoch

    def _append_claim(self, segment: int) -> None:
        """In a segment above all that the engine before has closed: it may prune those, with all that is in them.

        It may have closed some since we looked; then the claim is said again, higher up.
        """
        highest, is_first = segment - 1, True
        while is_first or highest > segment:
            segment = highest + 1
            self._open_segment = OpenSegment(number=segment)
            note = self._note("claim", -1)
            log_table(self.location).append(claim_row(self.spark, note), {"userMetadata": note.to_json()})
            highest, is_first = self._look_for_claims(note, ties=is_first), False

    def _open(self) -> CommitListing:
        """Make sure that the tables are there and ours, once."""
        if self._commits is None:
            with self._as_state_error():
                ensure_tables(self.spark, self.location)
            self.buckets = self.buckets or bucket_numbers(max(1, self.spark.sparkContext.defaultParallelism))
            self._commits = CommitListing.of(self.spark, log_table(self.location).directory(self.spark))
        found: CommitListing = self._commits
        return found

    def load(self) -> Mapping[SharePartitionKey, PartitionSummary]:
        """Fold the newest valid segment, in parallel over the buckets."""
        session = loading_session(self.spark)
        with self._as_state_error():
            tail = self._tail(session)
        self._last_time_ms = tail.at_ms
        if tail.empty:  # the first micro-batch will compute the empty frame on its way
            self._known, self._last = set(), tail.last
            self._adopt(empty_frame(self.spark, self.buckets).localCheckpoint(eager=False))
            return {}
        with self._as_state_error(), told(self.spark, f"loading the state of group {self.group_id}"):
            folded = folded_frame(self.spark, session, tail.rows, self.buckets, self.group_id)
            summaries, last_seen = summaries_in(payloads_in(folded, OUTCOME))
        if last_seen != tail.last.batch_id:
            raise StateError(
                f"{log_table(self.location)} is damaged: micro-batch {tail.last.batch_id} of group {self.group_id!r} "
                f"(writer epoch {tail.last.writer_epoch}) was committed, but its rows are gone; was the table restored?"
            )
        self._known, self._last = set(summaries), tail.last
        self._adopt(folded)
        return summaries

    def _tail(self, session: SparkSession) -> LogTail:
        if self._claimed_on is None or not self._open_segment.begins:
            return tail_of(session, self.location, self.group_id, self._commits, self._version)
        version, before = self._claimed_on
        since = takewhile(lambda commit: commit.version <= self._version, self._commits.after(version))
        return tail_since(session, self.location, self.group_id, before, since, self._version)

    def advance(
        self, partition_inputs: Mapping[SharePartitionKey, PartitionInput], *, batch_id: int, now_ms: int
    ) -> Sequence[PartitionOutcome]:
        """One Python call per bucket; the result stays on the executors but for the outcomes."""
        begins = self._open_segment.begins
        ends = self._open_segment.is_full(self.updates_per_snapshot, self.least_ranges)
        function = Advance(
            partition_inputs=self._by_bucket(partition_inputs),
            group_id=self.group_id,
            limits=self.limits,
            member_id=self.member_id,
            now_ms=now_ms,
            snapshot_all=begins or ends,
            audit=self.audit,
        )
        payloads = self._run(function)
        outcomes, self._tentative_ranges = outcomes_in(payloads)
        self._time_ms = now_ms
        self._known |= partition_inputs.keys()
        # A record commit has rows, always: by that a restart sees that none are missing.
        self._dirty = ((begins or ends) and bool(self._known)) or any(outcome.changed for outcome in outcomes)
        self._tentative_note = self._note("records", batch_id)._replace(segment=self.segment + int(ends))
        return outcomes

    def commit(self) -> None:
        """One blind append, then a look at what others have committed since our own last one."""
        note, frame = self._tentative_note, self._tentative
        if note is None or frame is None:
            raise StateError("commit without advance")
        if self._dirty:
            with self._as_state_error():
                rows = record_rows(frame, note, self._query_id)
                log_table(self.location).append(rows, {"userMetadata": note.to_json()})
            self._look_for_claims(note)
            self._count(note)
        self._adopt(frame)
        self._batch_id, self._at_ms = note.batch_id, note.at_ms
        self._tentative = self._tentative_note = None

    def was_committed(self, batch_id: int) -> bool:
        """Look for the stamp of the micro-batch in the commits since our own last one."""
        wanted = self._note("records", batch_id)
        found, looked_to = None, self._version
        for version, note in self._commits.after(self._version):
            self._refuse_foreign(note)
            if note is not None and (note.run_id, note.batch_id) == (wanted.run_id, batch_id):
                found = note
            looked_to = version
        self._version = looked_to
        if found is not None:
            self._count(found)
        return found is not None

    @property
    def last_counted(self) -> BatchStamp:
        """The last micro-batch that counts, as of the last ``load``."""
        return self._last

    @property
    def last_time_ms(self) -> int:
        """When that micro-batch was decided, 0 if there is none."""
        return self._last_time_ms

    def journal(self, purpose: str) -> Journal:
        """Notes that belong to this group's micro-batches; after ``claim``."""
        return Journal(self.spark, self.directory, purpose, self.group_id)

    @property
    def directory(self) -> str:
        """Of the log table; after ``claim``."""
        return log_table(self.location).directory(self.spark)

    @property
    def log_id(self) -> str:
        """Of the log table, in the names under which its groups write elsewhere: a state that was removed and begun
        anew counts from one again. After ``claim``."""
        if self._log_id is None:
            self._log_id = table_id(self.spark, self.directory)
        return self._log_id

    @contextmanager
    def borrow(self) -> Iterator[LiveState]:
        """The live frame as of the last commit, kept readable until given back. From any thread."""
        with self._lending:
            lent, batch_id, at_ms = self._frame, self._batch_id, self._at_ms
            self._lent = lent
        try:
            yield LiveState(lent, self._epoch, batch_id, at_ms)
        finally:
            with self._lending:
                self._lent = None
                if lent is not None and lent is not self._frame:
                    unpersist(lent)

    @contextmanager
    def _as_state_error(self) -> Iterator[None]:
        try:
            yield
        except _STATE_ERRORS as fault:
            raise StateError(f"{log_table(self.location)} cannot be used: {first_line(fault)}") from fault

    def _note(self, kind: str, batch_id: int) -> CommitNote:
        return CommitNote(self.group_id, kind, self._epoch, self.run_id, self.segment, batch_id, self._time_ms)

    def _count(self, note: CommitNote) -> None:
        self._open_segment = self._open_segment.after(note.segment, self._tentative_ranges)

    def _look_for_claims(self, own: CommitNote, *, ties: bool = False) -> int:
        """Returns the highest segment that the group's commits before ``own`` wrote to, -1 if there are none."""
        seen, looked_to, highest = False, self._version, -1
        for version, note in self._commits.after(self._version):
            self._refuse_foreign(note, ties=ties and not seen)
            seen = seen or note == own
            if note is not None and note.group_id == self.group_id and not seen:
                highest = max(highest, note.segment)
            looked_to = version
        self._version = looked_to
        if not seen:
            raise StateError(f"the append of {own.kind} is not in the log of {self.location}")
        return highest

    def _refuse_foreign(self, note: CommitNote | None, *, ties: bool = False) -> None:
        """A claim above ours ends this engine; one of the same epoch only if it came first (``ties``)."""
        if note is None or note.group_id != self.group_id or note.run_id == self.run_id:
            return
        if note.kind == "claim" and note.writer_epoch + int(ties) > self._epoch:
            raise FencedError(
                f"another engine has claimed group {self.group_id!r} (writer epoch {note.writer_epoch}, "
                f"run {note.run_id}); this one (epoch {self._epoch}) stops"
            )

    def _run(self, function: Advance) -> list[bytes]:
        for attempt in range(1, _REBUILD_ATTEMPTS + 1):
            if self._frame is None:
                self.load()
            assert self._frame is not None
            live = self._frame.where(f"row IN ({HEADER}, {STATE})").selectExpr(*LIVE_COLUMNS)
            tentative = live.mapInArrow(function, FRAME_COLUMNS).localCheckpoint(eager=False)
            try:
                payloads = payloads_in(tentative, OUTCOME)
            except Exception as fault:
                if not is_lost_block(fault) or attempt == _REBUILD_ATTEMPTS:
                    raise
                _log.warning("an executor took part of the live state with it; rebuilding it from the log")
                self._frame = None
                continue
            self._tentative = tentative
            return payloads
        raise AssertionError("unreachable")

    def _by_bucket(
        self, partition_inputs: Mapping[SharePartitionKey, PartitionInput]
    ) -> dict[int, dict[SharePartitionKey, PartitionInput]]:
        buckets: dict[int, dict[SharePartitionKey, PartitionInput]] = {}
        for key, partition_input in partition_inputs.items():
            buckets.setdefault(bucket_of(key, self.buckets), {})[key] = partition_input
        return buckets

    @property
    def _query_id(self) -> str | None:
        return running_query_id(self.spark)

    def _adopt(self, frame: DataFrame) -> None:
        with self._lending:
            previous, self._frame = self._frame, frame
            stale = previous is not None and previous is not frame and previous is not self._lent
        if stale and previous is not None:
            unpersist(previous)
