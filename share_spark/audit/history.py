"""The audit: the history of one record, and every attempt that ended, from the rows of the state log that are kept.

How far back it goes depends on ``history.retention``: with the default of 0 older segments are dropped as soon as they
are closed, and the rows of the others do not say why a record changed. Stale appends of fenced engines are left out
(``state.stale_appends``). Runs in the reader's session and does not slow the engine down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from share_spark.audit.record_events import (
    ACQUIRED,
    FINISHED,
    GONE,
    AttemptEnd,
    Life,
    LogExtent,
    RecordEvent,
    RecordHistory,
    RecordRow,
    RecordState,
    Written,
    history_of,
    settled_state,
)
from share_spark.delta.location import Location
from share_spark.model.errors import ConfigError
from share_spark.model.ids import BatchStamp
from share_spark.spark import functions as F
from share_spark.state.commits import CommitListing
from share_spark.state.record_rows import SHARE_KINDS, SNAPSHOT
from share_spark.state.stale_appends import late_appends_at
from share_spark.state.tables import check_location, load_log, log_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENT_COLUMNS = (
    "event string, delivery_count int, member_id string, lock_deadline timestamp, note string, batch_id bigint, "
    "writer_epoch bigint, run_id string, written_at timestamp, error string"
)


def record_history(
    spark: SparkSession, location: str | Location, *, group_id: str, topic: str, partition: int, offset: int
) -> DataFrame:
    """Return the history of one record, in order: EVENT_COLUMNS; empty if the log has nothing about it.

    ``event``: ``acquired`` (by ``member_id``, until ``lock_deadline``), or how the attempt ended: ``accepted``,
    ``released``, ``lost`` (in a crash), ``rejected``, ``delivery limit reached``, or why it was archived otherwise.
    ``lock_deadline`` of a record that is not acquired: nobody acquires it before, as it is delayed. ``error``: why the
    attempt ended so: the handler's reason, its exception, or what is known of a crash; null if there is none.
    ``note`` says what is missing: ``reason not kept`` where only the state is known (``available``, ``acknowledged``,
    ``archived``, or ``finished``: one of the last two), as ``history.retention`` was 0 then; ``earlier than the log``
    for a state that the log begins with (an acquisition that it begins with is reported as of its first row); ``attempt
    not counted`` for what a clean stop gave back. ``truncated``: the log has lost the record, and what follows is about
    another one that was written at its offset. ``batch_id`` ... ``written_at`` say which micro-batch of which engine
    wrote it, and when.

    Raises ConfigError for a topic or partition that the group does not have, StateError if there is no state of ours at
    ``location``, or no such group.
    """
    place = Location.parse(location) if isinstance(location, str) else location
    found = collect_record_history(spark, place, group_id=group_id, topic=topic, partition=partition, offset=offset)
    rows = [_event_row(event) for event in found.events]
    raw = EVENT_COLUMNS.replace("timestamp", "bigint")
    return spark.createDataFrame(rows, raw).withColumns(
        {
            "lock_deadline": F.timestamp_millis("lock_deadline"),
            "written_at": F.timestamp_micros("written_at"),
        }
    )


def _event_row(event: RecordEvent) -> tuple[Any, ...]:
    """Return a row of EVENT_COLUMNS, times as numbers."""
    written = event.written
    return (
        event.event,
        event.delivery_count,
        event.member_id,
        event.lock_deadline_ms,
        event.note,
        written.batch_id,
        written.writer_epoch,
        written.run_id,
        written.written_at_us,
        event.error,
    )


def collect_record_history(
    spark: SparkSession, location: Location, *, group_id: str, topic: str, partition: int, offset: int
) -> RecordHistory:
    """Return the history of a record; see ``record_history``. Only rows about the record come to the driver."""
    if offset < 0:
        raise ConfigError(f"offset {offset} is below 0")
    check_location(spark, location)
    version = _version(spark, location)
    log = load_log(spark, log_table(location), version).where(
        (F.col("group_id") == group_id) & F.col("kind").isin(*SHARE_KINDS)
    )
    extent = _extent(log, location, group_id, topic, partition)
    late = set(late_appends_at(spark, location, version, group_id).get(group_id, ()))
    own = log.where((F.col("topic") == topic) & (F.col("partition") == partition))
    rows = [row for row in _rows_about(own, offset) if row.written.stamp not in late]
    return history_of(rows, extent, group_id=group_id, topic=topic, partition=partition, offset=offset)


def _version(spark: SparkSession, location: Location) -> int:
    """Return the latest version of the log, so that all reads belong together."""
    return CommitListing.of(spark, log_table(location).directory(spark)).latest_version()


def _extent(log: DataFrame, location: Location, group_id: str, topic: str, partition: int) -> LogExtent:
    """Return the extent of the log. Raises ConfigError."""
    is_topic = F.col("topic") == topic
    is_own = is_topic & (F.col("partition") == partition)
    (found,) = log.agg(
        F.min("segment").alias("first_segment"),
        F.max(is_topic).alias("topic"),
        F.unix_micros(F.min(F.when(is_own, F.col("written_at")))).alias("since_us"),
    ).collect()
    extent = LogExtent(found.first_segment, bool(found.topic), found.since_us)
    extent.check(str(location), group_id, topic, partition)
    return extent


def _rows_about(log: DataFrame, offset: int) -> Iterator[RecordRow]:
    """Return the rows about the record, in order. Of the rows that only say where it lies, below the start offset or in
    no window, only the first of each engine after others: every later snapshot and update repeats it."""
    from pyspark.sql import Window

    by_engine = Window.partitionBy("writer_epoch").orderBy("batch_id")
    found = log.select(
        "writer_epoch",
        "batch_id",
        "run_id",
        F.unix_micros("written_at").alias("written_at_us"),
        *("topic_id", "snapshot_epoch"),
        F.last("state_epoch", ignorenulls=True).over(by_engine).alias("state_epoch"),
        _containing("ended", offset).alias("ended"),
        _containing("errors", offset).alias("errors"),
        F.get(_containing("delays", offset), F.lit(0)).alias("delay"),
        F.get(_containing("acquired", offset), F.lit(0)).alias("acquired"),
        F.get(_containing("state_batches", offset), F.lit(0)).alias("settled"),
        _place(offset).alias("place"),
    )
    names_it = (F.size("ended") > 0) | F.col("acquired").isNotNull() | F.col("settled").isNotNull()
    about_it = found.withColumn("names_it", names_it).where("names_it OR place IS NOT NULL")
    says = F.when(F.col("names_it"), F.lit("names it")).otherwise(F.col("place"))
    changes = about_it.withColumn("changes", F.col("names_it") | ~says.eqNullSafe(F.lag(says).over(by_engine)))
    rows = changes.where("changes").collect()
    return map(_record_row, sorted(rows, key=lambda row: (row.writer_epoch, row.batch_id)))


def _place(offset: int) -> Column:
    """Return where a row without more about the record has it: ``finished``, ``gone``, or null. An update has only
    changes, so only a snapshot can show that a record is gone."""
    start = F.col("start_offset")
    in_no_window = (F.col("kind") == SNAPSHOT) & (start >= 0) & (start <= offset)
    return F.when(start > offset, F.lit(FINISHED)).when(in_no_window, F.lit(GONE))


def _containing(ranges: str, offset: int) -> Column:
    return F.filter(ranges, lambda run: (run.first_offset <= offset) & (run.last_offset >= offset))


def _record_row(row: Any) -> RecordRow:
    written = Written(row.writer_epoch, row.batch_id, row.run_id, row.written_at_us)
    errors = {one.first_offset: one.error for one in row.errors or ()}
    ended = [AttemptEnd(one.delivery_count, one.outcome, errors.get(one.first_offset)) for one in row.ended]
    return RecordRow(written, ended, _state(row), Life(row.topic_id, row.state_epoch or 0, row.snapshot_epoch))


def _state(row: Any) -> RecordState | None:
    if row.acquired is not None:
        return RecordState(ACQUIRED, row.acquired.delivery_count, row.acquired.member_id, row.acquired.lock_deadline_ms)
    if row.settled is not None:
        delayed_until_ms = None if row.delay is None else row.delay.lock_deadline_ms
        return settled_state(row.settled.delivery_state, row.settled.delivery_count, delayed_until_ms)
    return None if row.place is None else RecordState(row.place)


def record_attempts(
    spark: SparkSession, location: str | Location, group_id: str | None = None, topic: str | None = None
) -> DataFrame:
    """Return every attempt that ended while history was kept: one row per run of offsets that ended alike.

    ``group_id, topic, topic_id, partition, first_offset, last_offset`` (inclusive), ``delivery_count, outcome`` as in
    ``record_history``, as is ``error``; ``batch_id, writer_epoch, run_id, written_at`` of the micro-batch that decided
    it. Join it with records by ``offset BETWEEN first_offset AND last_offset``. Lazy, as of now.
    Raises StateError if there is no state of ours at ``location``.
    """
    place = Location.parse(location) if isinstance(location, str) else location
    check_location(spark, place)
    version = _version(spark, place)
    log = load_log(spark, log_table(place), version)
    for name, wanted in (("group_id", group_id), ("topic", topic)):
        log = log if wanted is None else log.where(F.col(name) == wanted)
    for group, stamps in late_appends_at(spark, place, version, group_id).items():
        for stamp in stamps:
            log = log.where(~_written_by(group, stamp))
    row = ["group_id", "topic_id", "partition", "writer_epoch", "batch_id"]
    attempts = log.withColumn("attempt", F.explode("ended")).select("topic", *row, "run_id", "written_at", "attempt.*")
    errors = log.select(*row, F.explode("errors").alias("failed")).select(*row, "failed.first_offset", "failed.error")
    return attempts.join(errors, [*row, "first_offset"], "left").select(
        *("group_id", "topic", "topic_id", "partition"),
        *("first_offset", "last_offset", "delivery_count", "outcome", "error"),
        *("batch_id", "writer_epoch", "run_id", "written_at"),
    )


def _written_by(group_id: str, stamp: BatchStamp) -> Column:
    """Return the condition for rows of this micro-batch. Claims are not meant: they have no batch."""
    same_batch = (F.col("writer_epoch") == stamp.writer_epoch) & (F.col("batch_id") == stamp.batch_id)
    return (F.col("group_id") == group_id) & same_batch
