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

    ``read`` gives ``rows``, the rows that count (LOG_COLUMNS), perhaps with claims; a claim does without them, and a
    table as of a version takes Delta a tenth of a second. ``epoch``: the highest claimed, 0 if none.
    ``last_segment``: the highest in use, -1 if none. ``last``: the last micro-batch that counts, ``at_ms`` its time, 0
    if none. ``empty``: there are certainly no rows.
    """

    read: Callable[[], DataFrame]
    epoch: int
    last_segment: int
    last: BatchStamp = NO_STAMP
    at_ms: int = 0
    empty: bool = False

    @property
    def rows(self) -> DataFrame:
        """The rows that count; lazy."""
        return self.read()


def tail_of(spark: SparkSession, location: Location, group_id: str, commits: CommitListing, version: int) -> LogTail:
    """The tail of the log as of ``version``.

    The newest commits say it, as a rule. Where the group was idle for many commits of others, the rows' stamps do,
    unless the highest epoch has claimed the group and written nothing: then only the order of commits says which
    append came before the claim. Where log clean-up has taken those commits, the stamps have to do.
    """

    def frame() -> DataFrame:
        return log_table(location).load(spark, version).where(F.col("group_id") == group_id)

    found = group_tail(islice(commits.back_from(version), _LOOK_BACK), group_id)
    if not found.is_complete:
        stamps = _tail_by_stamps(frame(), group_id)
        found = stamps if stamps.is_complete else group_tail(commits.back_from(version), group_id)
        found = found if found.is_complete else stamps
    return _log_tail(found, frame)


def tail_since(
    spark: SparkSession,
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

    def frame() -> DataFrame:
        return log_table(location).load(spark, version).where(F.col("group_id") == group_id)

    return _log_tail(GroupTail(valid, epoch, segment, True), frame)


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


def _log_tail(found: GroupTail, frame: Callable[[], DataFrame]) -> LogTail:
    note = found.valid
    if note is None:
        return LogTail(read=lambda: frame().limit(0), epoch=found.epoch, last_segment=found.segment, empty=True)
    # Micro-batches only grow within a segment; one after the last that counts is a stale append of a fenced writer.
    whole = (F.col("segment") == note.segment) & (F.col("writer_epoch") == note.writer_epoch)
    counts = whole & (F.col("batch_id") <= note.batch_id)
    return LogTail(
        read=lambda: frame().where(counts),
        epoch=found.epoch,
        last_segment=found.segment,
        last=BatchStamp(note.writer_epoch, note.batch_id),
        at_ms=note.at_ms,
    )
