"""The valid rows of the state log: the newest valid segment of a group.

A segment belongs to one claim and begins with a snapshot of every live share-partition, and of the group if it has had
members, all in one commit; so the rows of the newest valid segment, of that epoch, are the whole state, and no reader
ever needs an older one.

    version   commit               epoch   segment
       1      claim                  1        0
       2      records, snapshots     1        0
       3      records, updates       1        0
       4      claim                  2        1       the next engine
       5      records, updates       1        0       stale: after the claim of epoch 2, never valid
       6      records, snapshots     2        1       *
       7      records, updates       2        1       *  the valid rows as of version 7 and of version 8
       8      claim                  3        2       has no snapshots yet: segment 1 is still the newest valid one
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.ids import NO_STAMP, BatchStamp
from share_spark.spark import functions as F
from share_spark.spark.on_demand import AnySpark, given_session, session_of
from share_spark.state.commits import CommitListing, CommitNote, NotedCommit, SegmentStamps, tail_found
from share_spark.state.direct_rows import WHOLE_KINDS, segment_stamps
from share_spark.state.tables import load_log, log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of a group's log as of ``version`` of the log ``table``. ``epoch``: the highest claimed, 0 if none.
    ``last_segment``: the highest in use, -1 if none. ``valid``: the last valid commit, None if there is none."""

    table: Location
    group_id: str
    version: int
    epoch: int
    last_segment: int
    valid: CommitNote | None = None

    @property
    def last(self) -> BatchStamp:
        """The last valid micro-batch."""
        return NO_STAMP if self.valid is None else BatchStamp(self.valid.writer_epoch, self.valid.batch_id)

    @property
    def at_ms(self) -> int:
        """Its time, 0 if there is none."""
        return 0 if self.valid is None else self.valid.at_ms

    def rows(self, session: SparkSession) -> DataFrame:
        """Return the valid rows (LOG_COLUMNS), perhaps with claims; lazy."""
        frame = _rows_of_group(session, self.table, self.group_id, self.version)
        if self.valid is None:
            return frame.limit(0)
        # Micro-batches only grow within a segment; one after the last valid one is a stale append of a fenced writer.
        is_of_segment = F.col("segment") == self.valid.segment
        is_of_writer = F.col("writer_epoch") == self.valid.writer_epoch
        return frame.where(is_of_segment & is_of_writer & (F.col("batch_id") <= self.valid.batch_id))

    def after(self, commits: Iterable[NotedCommit]) -> LogTail:
        """Return the tail after all ``commits`` since, oldest first.

        A walk back would find the claim of an engine that has written nothing yet, and not see that the rows before it
        suffice. Of two runs that claim one epoch only the first ever appends.
        """
        valid, epoch, segment, version = self.valid, self.epoch, self.last_segment, self.version
        for commit in commits:
            version, note = commit.version, commit.note
            if note is None or note.group_id != self.group_id:
                continue
            epoch, segment = max(epoch, note.writer_epoch), max(segment, note.segment)
            if note.kind == "records" and note.writer_epoch == epoch:
                valid = note
        return replace(self, version=version, epoch=epoch, last_segment=segment, valid=valid)


def tail_of(spark: AnySpark, location: Location, group_id: str, commits: CommitListing, version: int) -> LogTail:
    """Find the tail of the log as of ``version``; see ``commits.tail_found``."""
    table = log_table(location)

    def stamps() -> Iterable[SegmentStamps]:
        session = given_session(spark)
        if session is None:
            try:
                log = TableLog.open(commits.files, keeps_files=True, version=version)
                return list(segment_stamps(log, group_id))
            except UnknownTableError as reason:
                session = session_of(spark, f"{table} is read by Spark ({reason})")
        return _stamps_in(_rows_of_group(session, table, group_id, version))

    found = tail_found(commits, version, group_id, stamps)
    return LogTail(
        table=table,
        group_id=group_id,
        version=version,
        epoch=found.epoch,
        last_segment=found.segment,
        valid=found.valid,
    )


def _rows_of_group(session: SparkSession, table: Location, group_id: str, version: int) -> DataFrame:
    return load_log(session, table, version).where(F.col("group_id") == group_id)


def _stamps_in(frame: DataFrame) -> list[SegmentStamps]:
    segments = frame.groupBy("segment", "writer_epoch").agg(
        F.max(F.col("kind").isin(*WHOLE_KINDS).cast("int")).alias("whole"), F.max("batch_id"), F.max("at_ms")
    )
    return [SegmentStamps(row[0], row[1], bool(row[2]), row[3], row[4] or 0) for row in segments.collect()]
