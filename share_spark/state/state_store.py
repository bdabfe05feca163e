"""The share-state store on Delta: a log of records, one blind append per micro-batch, and the live state as a value.

Delta is the truth (``group_log``), the live state is folded from its rows (``live_state``).

Valid rows: a segment belongs to one claim (writer epoch, run id) and begins with a snapshot of every live
share-partition, and of the group, so the state is the snapshots and updates of the newest valid segment. ``commits``
finds that segment from the commit notes without reading data; if log clean-up has removed them, the stamps of the rows
are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from share_spark.coordinator.group import GroupRecord, ShareGroup
from share_spark.engine.pending import LEAST_RANGES, OpenSegment
from share_spark.engine.ports import Claim
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.model.errors import StateError
from share_spark.model.ids import NO_STAMP, BatchStamp, SharePartitionKey
from share_spark.model.records import InFlightBatch
from share_spark.partition import PartitionLimits
from share_spark.spark.delta_log import table_id
from share_spark.spark.on_demand import given_session
from share_spark.spark.threads import running_query_id
from share_spark.state.commits import CommitNote
from share_spark.state.group_log import GroupLog
from share_spark.state.live_state import Advance, LiveState, StepTerms
from share_spark.state.log_rows import record_table, stamp_values
from share_spark.state.segments import LogTail

_ONLY_SPARK = "is read by Spark: it is large, or has something that only Spark knows"


class _Decided(NamedTuple):
    """The decision of the last ``advance``. Not ``dirty``: there is nothing for the log."""

    advance: Advance
    note: CommitNote
    dirty: bool


class _Known(NamedTuple):
    """The log up to ``tail``, and the state folded from its rows."""

    tail: LogTail
    live: LiveState


@dataclass(slots=True, kw_only=True)
class DeltaShareStateStore:
    """ShareStateStore on Delta for one group and one run. See ``engine.ports`` for the promises of each method.

    ``audit``: rows also have the ended attempts; worth its space if history is kept.
    """

    log: GroupLog
    updates_per_snapshot: int
    audit: bool = False
    least_ranges: int = LEAST_RANGES
    _open_segment: OpenSegment = field(default_factory=OpenSegment)
    _known: _Known | None = None
    _loaded: LogTail | None = None
    _decided: _Decided | None = None

    @property
    def live(self) -> LiveState | None:
        """The live state as of the last commit, for any thread; None before the state was read."""
        return None if self._known is None else self._known.live

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
        """The last valid micro-batch, as of the last ``load``."""
        return NO_STAMP if self._loaded is None else self._loaded.last

    @property
    def last_time_ms(self) -> int:
        """The time at which that micro-batch was decided, 0 if there is none."""
        return 0 if self._loaded is None else self._loaded.at_ms

    def known_topics(self) -> Iterable[tuple[str, str]]:
        """Return the topics of the present log, which a later ``load`` does not read again."""
        return self._read(self.log.open()).topics()

    def claim(self) -> Claim:
        """Claim the group, with the segment to begin."""
        log = self.log
        tail = log.claim(log.open() if self._known is None else self._known.tail)
        self._loaded, self._open_segment = tail, OpenSegment(number=tail.last_segment)
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
        """Read the rows since the last load."""
        before = self._loaded if self._known is None else self._known.tail
        assert before is not None, "load before claim"
        self._loaded = tail = self.log.tail_since(before)
        return self._read(tail).summaries(self.member_id)

    def _read(self, tail: LogTail) -> LiveState:
        """Return the state as of ``tail``; the known one, if the same rows are valid."""
        known = self._known
        is_same = known is not None and known.tail.valid == tail.valid
        before = LiveState() if known is None else known.live
        states, group = (before.states, before.group) if is_same else self.log.folded(tail)
        live = replace(before, states=states, group=group, writer_epoch=self.log.writer_epoch)
        self._known = _Known(tail, live)
        return live

    def advance(
        self,
        partition_inputs: Mapping[SharePartitionKey, PartitionInput],
        *,
        limits: PartitionLimits,
        batch_id: int,
        now_ms: int,
        group_records: Sequence[GroupRecord] = (),
    ) -> Sequence[PartitionOutcome]:
        """Decide on the driver."""
        assert self._known is not None, "advance before load"
        ends = self._open_segment.is_full(self.updates_per_snapshot, self.least_ranges)
        terms = StepTerms(
            group_id=self.log.group_id,
            limits=limits,
            member_id=self.member_id,
            now_ms=now_ms,
            snapshot_all=self._open_segment.begins or ends,
            audit=self.audit,
        )
        found = self._known.live.advance(partition_inputs, terms, group_records)
        # A record commit always has rows, so a restart can see that none are missing.
        has_snapshots = terms.snapshot_all and bool(found.live.states)
        dirty = has_snapshots or bool(found.group_records) or any(outcome.changed for outcome in found.outcomes)
        note = self.log.note("records", self.segment + int(ends), batch_id, now_ms)
        self._decided = _Decided(found, note, dirty)
        return found.outcomes

    def commit(self) -> None:
        """Append once; the append is valid only if no other run has claimed the group before it."""
        if self._decided is None or self._known is None:
            raise StateError("commit without advance")
        found, note, dirty = self._decided
        tail = self._known.tail
        if dirty:
            is_noted, query_id = self.log.notes_rows and found.fits_into_note, self._query_id
            self.log.append(
                lambda: record_table(found.records(), note, query_id),
                note,
                noted=note.with_rows(found.values(), stamp_values(query_id)) if is_noted else None,
            )
            self._open_segment = self._open_segment.after(note.segment, found.ranges)
            tail = replace(tail, version=self.log.version, last_segment=note.segment, valid=note)
        live = replace(found.live, writer_epoch=note.writer_epoch, batch_id=note.batch_id, at_ms=note.at_ms)
        self._known = _Known(tail, live)
        self._decided = None

    @property
    def group(self) -> ShareGroup | None:
        return None if self.live is None else self.live.group

    def held_by(self, member_id: str) -> Mapping[SharePartitionKey, Sequence[InFlightBatch]]:
        assert self.live is not None, "held_by before load"
        return self.live.held_by(member_id)

    def was_committed(self, batch_id: int) -> bool:
        """Look for the stamp of the micro-batch in the commits since our own last one."""
        found = self.log.find(batch_id)
        if found is not None:
            ranges = self._decided.advance.ranges if self._decided is not None else 0
            self._open_segment = self._open_segment.after(found.segment, ranges)
        return found is not None

    @property
    def _query_id(self) -> str | None:
        """The id that Spark sets on the thread that runs the micro-batch."""
        spark = given_session(self.log.spark)
        return None if spark is None else running_query_id(spark)
