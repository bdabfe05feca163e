"""Which rows of the state log count: the newest valid segment of a group.

A segment belongs to one claim and begins with a snapshot of every live share-partition, all in one commit; so the
rows of the newest valid segment, of that epoch, are the whole state, and no reader ever needs an older one.

    version   commit               epoch   segment
       1      claim                  1        0
       2      records, snapshots     1        0
       3      records, updates       1        0
       4      claim                  2        1       the next engine
       5      records, updates       1        0       stale: after the claim of epoch 2, never counts
       6      records, snapshots     2        1       *
       7      records, updates       2        1       *  the rows that count as of version 7 and of version 8
       8      claim                  3        2       has no snapshots yet: segment 1 is still the newest valid one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.ids import NO_STAMP, BatchStamp
from share_spark.spark.on_demand import AnySpark, given_session, session_of
from share_spark.state.commits import CommitListing, CommitNote, NotedCommit, SegmentStamps, tail_found
from share_spark.state.direct_rows import segment_stamps
from share_spark.state.record_rows import SNAPSHOT
from share_spark.state.tables import log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of a group's log as of one version.

    ``frame`` gives the group's rows (LOG_COLUMNS) as of that version in a session; a claim does without them, and a
    table as of a version takes Delta a tenth of a second. ``epoch``: the highest claimed, 0 if none.
    ``last_segment``: the highest in use, -1 if none. ``valid``: the last commit that counts, None if there is none.
    """

    frame: Callable[[SparkSession], DataFrame]
    epoch: int
    last_segment: int
    valid: CommitNote | None = None

    @property
    def empty(self) -> bool:
        """There are certainly no rows."""
        return self.valid is None

    @property
    def last(self) -> BatchStamp:
        """The last micro-batch that counts."""
        return NO_STAMP if self.valid is None else BatchStamp(self.valid.writer_epoch, self.valid.batch_id)

    @property
    def at_ms(self) -> int:
        """Its time, 0 if there is none."""
        return 0 if self.valid is None else self.valid.at_ms

    def rows(self, session: SparkSession) -> DataFrame:
        """The rows that count, perhaps with claims; lazy."""
        if self.valid is None:
            return self.frame(session).limit(0)
        # Micro-batches only grow within a segment; one after the last that counts is a stale append of a fenced writer.
        is_of_segment = F.col("segment") == self.valid.segment
        is_of_writer = F.col("writer_epoch") == self.valid.writer_epoch
        return self.frame(session).where(is_of_segment & is_of_writer & (F.col("batch_id") <= self.valid.batch_id))


def tail_of(spark: AnySpark, location: Location, group_id: str, commits: CommitListing, version: int) -> LogTail:
    """The tail of the log as of ``version``; see ``commits.tail_found``."""

    def frame(session: SparkSession) -> DataFrame:
        return log_table(location).load(session, version).where(F.col("group_id") == group_id)

    def stamps() -> Iterable[SegmentStamps]:
        session = given_session(spark)
        if session is None:
            try:
                log = TableLog.open(commits.files, keeps_files=True, version=version)
                return list(segment_stamps(log, group_id))
            except UnknownTableError as reason:
                session = session_of(spark, f"{log_table(location)} is read by Spark ({reason})")
        return _stamps_in(frame(session))

    found = tail_found(commits, version, group_id, stamps)
    return LogTail(frame=frame, epoch=found.epoch, last_segment=found.segment, valid=found.valid)


def tail_since(
    location: Location,
    group_id: str,
    before: LogTail,
    commits: Iterable[NotedCommit],
    version: int,
) -> LogTail:
    """The tail as of ``version``, going forward: from that of an older version by all ``commits`` since, oldest first.

    For an engine that has claimed the group: going back, its own claim, which has written nothing yet, would hide that
    the rows before it suffice. Of two runs that claim one epoch only the first ever appends.
    """
    valid, epoch, segment = None, before.epoch, before.last_segment
    for _, note in commits:
        if note is None or note.group_id != group_id:
            continue
        epoch, segment = max(epoch, note.writer_epoch), max(segment, note.segment)
        if note.kind == "records" and note.writer_epoch == epoch:
            valid = note
    if valid is None:
        return replace(before, epoch=epoch, last_segment=segment)

    def frame(session: SparkSession) -> DataFrame:
        return log_table(location).load(session, version).where(F.col("group_id") == group_id)

    return LogTail(frame=frame, epoch=epoch, last_segment=segment, valid=valid)


def _stamps_in(frame: DataFrame) -> list[SegmentStamps]:
    segments = frame.groupBy("segment", "writer_epoch").agg(
        F.max((F.col("kind") == SNAPSHOT).cast("int")).alias("whole"), F.max("batch_id"), F.max("at_ms")
    )
    return [SegmentStamps(row[0], row[1], bool(row[2]), row[3], row[4] or 0) for row in segments.collect()]
