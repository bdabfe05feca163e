"""Groups without a running engine: how they are recognized, and a fresh snapshot of their share-partitions.

A claim fences the group's engine, so a group is only claimed on evidence that it has none: no heartbeat, no commit and
no lock for longer than any engine is silent. An engine that starts meanwhile wins: our claim takes the epoch after the
examined one, and of two claims of one epoch the first counts. An engine that was frozen for as long, and wakes up,
finds the group claimed, and its sinks (``claim_idle_sinks``).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.delta.journal import OUTPUT, Journal
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.engine.ports import ShareStateStore
from share_spark.maintenance.heartbeat import has_journals, heartbeat_file
from share_spark.model.errors import FencedError
from share_spark.output.sink_journal import as_state_error, claim_sinks_before
from share_spark.partition import PartitionLimits
from share_spark.spark import functions as F
from share_spark.spark.on_demand import AnySpark, session_of
from share_spark.state.commits import CommitListing, CommitsAsOf
from share_spark.state.direct_rows import FOLDED_SCHEMA, WHOLE_KINDS, last_written_in, last_written_ms, rows_by_batch
from share_spark.state.group_log import GroupLog
from share_spark.state.group_rows import GROUP_UPDATE
from share_spark.state.record_rows import UPDATE
from share_spark.state.segments import LogTail, tail_of
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.state.tables import load_log, log_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvidence:
    """The evidence of the log and the heartbeat about a group, at one version of the log. Times in ms since the epoch.

    ``segment``: the newest valid one, -1 if there is none; all lower ones are closed. ``updates``: the number of its
    rows that are no snapshots. ``locked_until_ms``: the latest lock deadline in it, 0 if there is none. ``beat_at_ms``:
    the last heartbeat, None if there is none. ``unfinished``: journals hold work that the next engine finishes with the
    help of this segment.
    """

    group_id: str
    version: int
    segment: int
    batch_id: int
    updates: int
    written_at_ms: int
    locked_until_ms: int
    beat_at_ms: int | None = None
    unfinished: bool = False

    def has_engine(self, now_ms: int, idle_ms: int) -> bool:
        """Return whether an engine may run this group, judging by the evidence."""
        heard_at_ms = max(self.written_at_ms, self.beat_at_ms or 0)
        return now_ms - heard_at_ms < idle_ms or self.locked_until_ms > now_ms


def evidence_of(
    spark: AnySpark, location: Location, group_id: str, commits: CommitListing, version: int
) -> GroupEvidence:
    """Return the evidence of the newest valid segment and of claims after it."""
    tail = tail_of(spark, location, group_id, commits, version)
    try:
        found = _evidence_in_files(tail, group_id, TableLog.open(commits.files, keeps_files=True, version=version))
    except UnknownTableError as reason:
        session = session_of(spark, f"{log_table(location)} is read by Spark ({reason})")
        found = _evidence_by_spark(session, location, tail, group_id, version)
    return replace(
        found,
        beat_at_ms=heartbeat_file(spark, location, group_id).modified_at_ms(),
        unfinished=has_journals(spark, location, group_id),
    )


def _evidence_in_files(tail: LogTail, group_id: str, log: TableLog) -> GroupEvidence:
    """Return what ``_evidence_by_spark`` returns. Raises UnknownTableError: only Spark can, or should, read them."""
    parts = () if tail.valid is None else rows_by_batch(log, tail.valid)
    rows = pa.concat_tables([FOLDED_SCHEMA.empty_table(), *parts])
    kinds: list[Any] = rows.column("kind").to_pylist()
    segment = tail.valid.segment if tail.valid is not None and not set(WHOLE_KINDS).isdisjoint(kinds) else -1
    held: Any = pc.list_flatten(rows.column("acquired").combine_chunks())
    own = [(path, file.values) for path, file in log.row_files.items() if file.values["group_id"] == group_id]
    later = last_written_ms(log, [path for path, values in own if int(values["segment"]) > segment])
    return GroupEvidence(
        group_id=group_id,
        version=log.version,
        segment=segment,
        batch_id=max(pc.max(rows.column("batch_id")).as_py() or 0, 0),
        updates=kinds.count(UPDATE) + kinds.count(GROUP_UPDATE),
        written_at_ms=max(last_written_in(rows) or 0, later or 0),
        locked_until_ms=pc.max(held.field("lock_deadline_ms")).as_py() or 0,
    )


def _evidence_by_spark(
    spark: SparkSession, location: Location, tail: LogTail, group_id: str, version: int
) -> GroupEvidence:
    """Return the evidence. Acquisitions that have ended since count as well: one lock later is early enough."""
    found = _evidence_in(spark, tail, group_id, version)
    later = load_log(spark, log_table(location), version)
    later = later.where((F.col("group_id") == group_id) & (F.col("segment") > found.segment))
    (row,) = later.agg(F.unix_millis(F.max("written_at")).alias("at")).collect()
    return replace(found, written_at_ms=max(found.written_at_ms, row.at or 0))


def _evidence_in(spark: SparkSession, tail: LogTail, group_id: str, version: int) -> GroupEvidence:
    deadline = F.expr("array_max(transform(acquired, held -> held.lock_deadline_ms))")
    (row,) = (
        tail.rows(spark)
        .agg(
            F.max(F.when(F.col("kind").isin(*WHOLE_KINDS), F.col("segment"))).alias("segment"),
            F.max("batch_id").alias("batch_id"),
            F.count(F.when(F.col("kind").isin(UPDATE, GROUP_UPDATE), 1)).alias("updates"),
            F.unix_millis(F.max("written_at")).alias("written_at_ms"),
            F.max(deadline).alias("locked_until_ms"),
        )
        .collect()
    )
    return GroupEvidence(
        group_id=group_id,
        version=version,
        segment=-1 if row.segment is None else row.segment,
        batch_id=0 if row.batch_id is None else max(row.batch_id, 0),
        updates=row.updates,
        written_at_ms=row.written_at_ms or 0,
        locked_until_ms=row.locked_until_ms or 0,
    )


def snapshot_group(spark: AnySpark, location: Location, commits: CommitListing, found: GroupEvidence) -> int | None:
    """Claim the group as an engine would and write a snapshot of each share-partition (R74). Returns their number.

    None if an engine was at work since the evidence was collected: it has claimed the group, and goes on, or it has
    left something to the next one. Raises SinkError if a sink cannot be claimed; then there is no snapshot either.
    """
    log = GroupLog(
        spark=spark,
        location=location,
        group_id=found.group_id,
        run_id=f"compaction-{uuid.uuid4().hex[:12]}",
        commits=CommitsAsOf(commits.files, found.version),
    )
    store = DeltaShareStateStore(log=log, updates_per_snapshot=1)
    try:
        return snapshot_idle(store, LeftInJournals(log), found.batch_id)
    except FencedError:
        return None


@dataclass(frozen=True, slots=True)
class LeftInJournals:
    """A LeftBehind of the engines of a group, beside the log that has been opened."""

    log: GroupLog

    def claim_sinks(self, writer_epoch: int) -> None:
        """Claim the sinks of all entries in the group's journal."""
        with as_state_error():
            journal = Journal(self.log.spark, self.log.directory, OUTPUT, self.log.group_id)
        claim_sinks_before(self.log.spark, journal, writer_epoch)

    def is_unfinished(self) -> bool:
        """Return whether any journal holds work for the next engine."""
        with as_state_error():
            return has_journals(self.log.spark, self.log.location, self.log.group_id)


class LeftBehind(Protocol):
    """The work that engines of the group have left outside of the state log."""

    def claim_sinks(self, writer_epoch: int) -> None:
        """Keep older engines from writing to any sink that one of them has claimed. Raises FencedError,
        SinkError, StateError."""
        ...

    def is_unfinished(self) -> bool:
        """Return whether a journal has anything for the next engine to judge. Raises StateError."""
        ...


def claim_idle_sinks(left: LeftBehind, writer_epoch: int) -> bool:
    """Claim the sinks of the group, after the group itself. Return False if the next engine has work to finish first,
    and nothing may be committed.

    Raises FencedError, SinkError, StateError.
    """
    left.claim_sinks(writer_epoch)
    return not left.is_unfinished()


def snapshot_idle(store: ShareStateStore, left: LeftBehind, batch_id: int) -> int | None:
    """Claim the group and write a snapshot of each of its share-partitions: their number, None if work is left.

    Raises FencedError, SinkError, StateError.
    """
    if not claim_idle_sinks(left, store.claim().writer_epoch):
        return None
    summaries = store.load()
    # Nothing is decided, by whatever limits, and no time passes.
    store.advance({}, limits=PartitionLimits(), batch_id=batch_id, now_ms=store.last_time_ms)
    store.commit()
    return len(summaries)
