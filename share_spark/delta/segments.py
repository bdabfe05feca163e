"""Which rows of the state log count: the newest valid segment of a group.

A segment belongs to one claim and begins with a snapshot of every live share-partition, all in one commit; so the
rows of the newest valid segment, of that epoch, are the whole state, and no reader ever needs an older one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from share_spark.delta.commits import CommitListing, group_tail
from share_spark.delta.location import Location
from share_spark.delta.record_rows import SNAPSHOT
from share_spark.delta.tables import log_table
from share_spark.engine.ports import NO_STAMP, Stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_BACK = 300
"""Commits looked at, some 2 ms each; in a log that many groups share, one that was idle for longer asks the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The end of a group's log as of one version.

    ``read`` gives ``rows``, the rows that count (LOG_COLUMNS), perhaps with claims; a claim does without them, and a
    table as of a version takes Delta a tenth of a second. ``epoch``: the highest claimed, 0 if none.
    ``last_segment``: the highest in use, -1 if none. ``last``: the last micro-batch that counts. ``empty``: there are
    certainly no rows.
    """

    read: Callable[[], DataFrame]
    epoch: int
    last_segment: int
    last: Stamp = NO_STAMP
    empty: bool = False

    @property
    def rows(self) -> DataFrame:
        """The rows that count; lazy."""
        return self.read()


def tail_of(spark: SparkSession, location: Location, group_id: str, commits: CommitListing, version: int) -> Tail:
    """The tail of the log as of ``version``; from commit notes if they are there, else from the rows' stamps."""

    def frame() -> DataFrame:
        return log_table(location).load(spark, version).where(F.col("group_id") == group_id)

    found = group_tail(islice(commits.back_from(version), _LOOK_BACK), group_id)
    note = found.valid
    if not found.told:
        return _tail_by_stamps(frame())
    if note is None:
        return Tail(read=lambda: frame().limit(0), epoch=found.epoch, last_segment=found.segment, empty=True)
    # Micro-batches only grow within a segment; a later one than the last that counts is a zombie's.
    whole = (F.col("segment") == note.segment) & (F.col("writer_epoch") == note.writer_epoch)
    counts = whole & (F.col("batch_id") <= note.batch_id)
    last = Stamp(note.writer_epoch, note.batch_id)
    return Tail(read=lambda: frame().where(counts), epoch=found.epoch, last_segment=found.segment, last=last)


def _tail_by_stamps(frame: DataFrame) -> Tail:
    claimed = frame.groupBy("segment", "writer_epoch").agg(
        F.max((F.col("kind") == SNAPSHOT).cast("int")).alias("whole"), F.max("batch_id").alias("batch_id")
    )
    found = [(row.writer_epoch, row.segment, bool(row.whole), row.batch_id) for row in claimed.collect()]
    whole = max(((epoch, segment, batch) for epoch, segment, has, batch in found if has), default=(0, -1, -1))
    rows = frame.where((F.col("writer_epoch") == whole[0]) & (F.col("segment") == whole[1]))
    return Tail(
        read=lambda: rows,
        epoch=max((epoch for epoch, _, _, _ in found), default=0),
        last_segment=max((segment for _, segment, _, _ in found), default=-1),
        last=Stamp(whole[0], whole[2]),
    )
