"""The share-state store on Delta: a log of records, one blind append per micro-batch, and the live state as a
cached frame.

Delta is the truth (``group_log``), the frame is a cache of it (``live_frame``).

Which rows count: a segment belongs to one claim (writer epoch, run id) and begins with a snapshot of every live
share-partition, so the state is the snapshots and updates of the newest valid segment. ``commits`` finds that
segment from the commit notes without reading data; where log clean-up has taken them, the rows' own stamps are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from share_spark.engine.pending import LEAST_RANGES, OpenSegment
from share_spark.engine.ports import Claim
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.model.errors import StateError
from share_spark.model.ids import NO_STAMP, BatchStamp, SharePartitionKey
from share_spark.partition import PartitionLimits
from share_spark.spark.delta_log import table_id
from share_spark.spark.progress import log_progress
from share_spark.spark.threads import running_query_id
from share_spark.state.buckets import OUTCOME, Advance, bucket_numbers, bucket_of, outcomes_in, summaries_in
from share_spark.state.commits import CommitNote, record_rows
from share_spark.state.group_log import GroupLog
from share_spark.state.live_frame import LiveFrame, empty_frame, folded_frame, loading_session, payloads_in
from share_spark.state.segments import LogTail
from share_spark.state.state_view import LiveState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _Decided(NamedTuple):
    """What the last ``advance`` decided. ``ranges``: in its records; not ``dirty``: there is nothing to append."""

    frame: DataFrame
    note: CommitNote
    ranges: int
    dirty: bool


@dataclass(slots=True, kw_only=True)
class DeltaShareStateStore:
    """ShareStateStore on Delta for one group and one run. See ``engine.ports`` for what each method promises.

    ``audit``: rows also say which attempts ended and how; worth its space where history is kept. ``buckets``: as many
    as Spark runs tasks at a time where they are left out.
    """

    log: GroupLog
    limits: PartitionLimits
    updates_per_snapshot: int
    audit: bool = False
    least_ranges: int = LEAST_RANGES
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
        self.buckets = self.buckets or bucket_numbers(max(1, log.spark.sparkContext.defaultParallelism))
        self._open_segment = OpenSegment(number=log.claim().segment)
        with log.as_state_error():
            log_id = table_id(log.spark, log.directory)
        return Claim(
            group_id=log.group_id,
            writer_epoch=log.writer_epoch,
            run_id=log.run_id,
            member_id=self.member_id,
            directory=log.directory,
            log_id=log_id,
        )

    def load(self) -> Mapping[SharePartitionKey, PartitionSummary]:
        """Fold the newest valid segment, in parallel over the buckets."""
        log, session = self.log, loading_session(self.log.spark)
        tail = log.tail(session)
        summaries: Mapping[SharePartitionKey, PartitionSummary] = {}
        if tail.empty:  # the first micro-batch will compute the empty frame on its way
            folded = empty_frame(log.spark, self.buckets).localCheckpoint(eager=False)
        else:
            with log.as_state_error(), log_progress(log.spark, f"loading the state of group {log.group_id}"):
                folded = folded_frame(log.spark, session, tail.rows, self.buckets, log.group_id)
                summaries, last_seen = summaries_in(payloads_in(folded, OUTCOME))
            if last_seen != tail.last.batch_id:
                raise StateError(
                    f"{log.table} is damaged: micro-batch {tail.last.batch_id} of group {log.group_id!r} "
                    f"(writer epoch {tail.last.writer_epoch}) was committed, but its rows are gone; was the table "
                    "restored?"
                )
        self._loaded, self._has_state = tail, bool(summaries)
        self.live.adopt(self.live.state._replace(frame=folded, writer_epoch=log.writer_epoch))
        return summaries

    def advance(
        self, partition_inputs: Mapping[SharePartitionKey, PartitionInput], *, batch_id: int, now_ms: int
    ) -> Sequence[PartitionOutcome]:
        """One Python call per bucket; the result stays on the executors but for the outcomes."""
        begins = self._open_segment.begins
        ends = self._open_segment.is_full(self.updates_per_snapshot, self.least_ranges)
        function = Advance(
            partition_inputs=self._by_bucket(partition_inputs),
            group_id=self.log.group_id,
            limits=self.limits,
            member_id=self.member_id,
            now_ms=now_ms,
            snapshot_all=begins or ends,
            audit=self.audit,
        )
        frame, payloads = self.live.advance(function, rebuild=self.load)
        outcomes, ranges = outcomes_in(payloads)
        self._has_state = self._has_state or bool(partition_inputs)
        # A record commit has rows, always: by that a restart sees that none are missing.
        dirty = ((begins or ends) and self._has_state) or any(outcome.changed for outcome in outcomes)
        note = self.log.note("records", self.segment + int(ends), batch_id, now_ms)
        self._decided = _Decided(frame, note, ranges, dirty)
        return outcomes

    def commit(self) -> None:
        """One blind append, then a look at what others have committed since our own last one."""
        if self._decided is None:
            raise StateError("commit without advance")
        frame, note, _, dirty = self._decided
        if dirty:
            with self.log.as_state_error():
                rows = record_rows(frame, note, self._query_id)
            self.log.append(rows, note)
            self._count(note)
        self.live.adopt(LiveState(frame, note.writer_epoch, note.batch_id, note.at_ms))
        self._decided = None

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
        return running_query_id(self.log.spark)
