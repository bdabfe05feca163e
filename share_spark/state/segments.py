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
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from share_spark.delta.location import Location
from share_spark.model.ids import NO_STAMP, BatchStamp
from share_spark.state.commits import CommitListing, CommitNote, GroupTail, NotedCommit, group_tail
from share_spark.state.record_rows import SNAPSHOT
from share_spark.state.tables import log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_BACK = 300
"""Commits looked at before the rows are asked, some 2 ms each: many groups may share a log, and this one was idle."""


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


def tail_of(spark: SparkSession, location: Location, group_id: str, commits: CommitListing, version: int) -> LogTail:
    """The tail of the log as of ``version``.

    The newest commits say it, as a rule. Where the group was idle for many commits of others, the rows' stamps do,
    unless the highest epoch has claimed the group and written nothing: then only the order of commits says which
    append came before the claim. Where log clean-up has taken those commits, the stamps have to do.
    """

    def frame(session: SparkSession) -> DataFrame:
        return log_table(location).load(session, version).where(F.col("group_id") == group_id)

    found = group_tail(islice(commits.back_from(version), _LOOK_BACK), group_id)
    if not found.is_complete:
        stamps = _tail_by_stamps(frame(spark), group_id)
        found = stamps if stamps.is_complete else group_tail(commits.back_from(version), group_id)
        found = found if found.is_complete else stamps
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


def _tail_by_stamps(frame: DataFrame, group_id: str) -> GroupTail:
    """What the rows alone say. ``valid``: the end of the newest segment that has its snapshot.

    It is complete if no engine can have fenced the writer of that segment, so that all that it has appended counts.
    Claims are rows too, and each lies above all segments that were closed before it (``claim``), so pruning takes none
    that is higher than the epochs it leaves. Of two runs that claim one epoch only the first ever appends.
    """
    segments = frame.groupBy("segment", "writer_epoch").agg(
        F.max((F.col("kind") == SNAPSHOT).cast("int")).alias("whole"), F.max("batch_id"), F.max("at_ms")
    )
    found = segments.collect()
    whole = max(((row.writer_epoch, row.segment, *row[3:]) for row in found if row.whole), default=None)
    valid = None
    if whole is not None:
        writer_epoch, segment, batch_id, at_ms = whole
        valid = CommitNote(group_id, "records", writer_epoch, "", segment, batch_id, at_ms)
    epoch = max((row.writer_epoch for row in found), default=0)
    is_complete = epoch == (valid.writer_epoch if valid else 0)
    return GroupTail(valid, epoch, max((row.segment for row in found), default=-1), is_complete)
