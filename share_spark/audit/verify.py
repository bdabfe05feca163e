"""``share-spark verify``: replay a state log from its rows alone and check that it is self-consistent.

Every segment that is kept is replayed, not only the newest: ours (``partition.evolve``) against the share coordinator's
(``coordinator.evolve``) over the KIP's form of the same rows, share-partition by share-partition, on the executors
(``stream_check``). Then the segments of each share-partition are compared with each other. Only reads; an engine may
run meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from share_spark.audit.stream_check import LogRecord, first_fault
from share_spark.audit.verify_report import Verdict, VerifyReport
from share_spark.coordinator import STATE_PARTITIONS, state_partition_of
from share_spark.delta.location import Location
from share_spark.model.errors import ConfigError, no_such_group
from share_spark.model.records import ShareSnapshot
from share_spark.spark.python_worker import begin_task
from share_spark.state.buckets import KEY_HASH_SQL
from share_spark.state.commits import CommitListing
from share_spark.state.log_entries import LogEntry, entries_by_key
from share_spark.state.record_rows import SNAPSHOT, UPDATE
from share_spark.state.segments import tail_of
from share_spark.state.tables import check_location, log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


def verify(
    spark: SparkSession, location: str | Location, group_id: str | None = None, bucket: int | None = None
) -> VerifyReport:
    """Check the log at ``location``, all of it or one group's, or only the share-partitions of one state partition.

    ``bucket``: 0 to 49, as Kafka would place the keys (R71). Raises ConfigError for a bucket that does not exist,
    StateError if there is no state of ours or no such group; changes nothing.
    """
    if bucket is not None and not 0 <= bucket < STATE_PARTITIONS:
        raise ConfigError(f"unknown bucket {bucket}: they are 0 to {STATE_PARTITIONS - 1}")
    place = Location.parse(location) if isinstance(location, str) else location
    check_location(spark, place)
    commits = CommitListing.of(spark, log_table(place).directory(spark))
    version = commits.latest_version()
    groups = _groups(spark, place, version)
    if group_id is not None and group_id not in groups:
        raise no_such_group(group_id, str(place))
    verdicts: list[Verdict] = []
    for group in groups if group_id is None else [group_id]:
        _log.info("group %s: replaying its log", group)
        found = _verdicts(_rows_that_count(spark, place, group, commits, version), group, bucket)
        verdicts += found
        faults = sum(verdict.fault is not None for verdict in found)
        _log.info("group %s: %s share-partitions replayed, %s with a fault", group, len(found), faults)
    return VerifyReport(verdicts=tuple(verdicts))


def _groups(spark: SparkSession, location: Location, version: int) -> list[str]:
    rows = log_table(location).load(spark, version).select("group_id").distinct().collect()
    return sorted(row.group_id for row in rows)


def _rows_that_count(
    spark: SparkSession, location: Location, group_id: str, commits: CommitListing, version: int
) -> DataFrame:
    """All records of a group except a stale append of the newest segment's engine, made after it was fenced."""
    last = tail_of(spark, location, group_id, commits, version).last
    rows = log_table(location).load(spark, version).where(F.col("group_id") == group_id)
    late = (F.col("writer_epoch") == last.writer_epoch) & (F.col("batch_id") > last.batch_id)
    return rows.where(F.col("kind").isin(SNAPSHOT, UPDATE) & ~F.coalesce(late, F.lit(False)))


_STREAM_COLUMNS = (
    "topic string, topic_id string, partition int, segment int, writer_epoch bigint, rows bigint, fault string, "
    "first_batch bigint, last_batch bigint, first_state_epoch int, last_state_epoch int, "
    "first_leader_epoch int, last_leader_epoch int"
)
"""One share-partition in one segment; the epochs that it begins and ends with."""

_TASKS_PER_SEGMENT = 16


def _verdicts(rows: DataFrame, group_id: str, bucket: int | None) -> list[Verdict]:
    # A segment can be the whole log: its share-partitions are spread over several tasks.
    share = F.expr(f"CAST({KEY_HASH_SQL} % {_TASKS_PER_SEGMENT} AS INT)")
    segments = rows.groupBy("segment", "writer_epoch", share)
    streams = segments.applyInArrow(_stream_function(group_id, bucket), _STREAM_COLUMNS)
    placed = streams.join(F.broadcast(_places(rows)), ["writer_epoch", "segment"])
    judged = placed.withColumn("fault", F.coalesce("fault", _fault_between_segments()))
    faulty = F.when(F.col("fault").isNotNull(), F.struct("writer_epoch", "segment"))
    found = judged.groupBy("topic_id", "partition").agg(
        F.max("topic").alias("topic"),
        F.count("segment").alias("segments"),
        F.sum("rows").alias("rows"),
        F.min_by("fault", faulty).alias("fault"),
        F.min_by("segment", faulty).alias("segment"),
    )
    verdicts = (_verdict(group_id, row.asDict()) for row in found.collect())
    return sorted(verdicts, key=lambda verdict: (verdict.topic, verdict.partition, verdict.topic_id))


def _verdict(group_id: str, row: dict[str, Any]) -> Verdict:
    segment = row.pop("segment")
    fault = None if row["fault"] is None else f"segment {segment}, {row['fault']}"
    return Verdict(**row | {"group_id": group_id, "fault": fault})


def _places(rows: DataFrame) -> DataFrame:
    """The group's segments (``writer_epoch``, ``segment``) and their ``place`` among them."""
    found = sorted(tuple(row) for row in rows.select("writer_epoch", "segment").distinct().collect())
    numbered = [(*segment, place) for place, segment in enumerate(found)]
    return rows.sparkSession.createDataFrame(numbered, "writer_epoch bigint, segment int, place int")


def _fault_between_segments() -> Any:
    """Epochs never fall, and micro-batches of one engine only grow (R86). A share-partition that a segment misses was
    deleted by it, and starts from the beginning in a later one (R91)."""
    history = Window.partitionBy("topic_id", "partition").orderBy("place")
    continued = F.lag("place").over(history) == F.col("place") - 1
    same_engine = F.col("writer_epoch") == F.lag("writer_epoch").over(history)
    last_batch, first_batch = F.lag("last_batch").over(history), F.col("first_batch")
    text = "micro-batch %d: comes after micro-batch %d of the segment before"
    fault = F.coalesce(
        _falls("state_epoch", history),
        _falls("leader_epoch", history),
        F.when(same_engine & (first_batch <= last_batch), F.format_string(text, first_batch, last_batch)),
    )
    return F.when(continued, fault)


def _falls(epoch: str, history: Any) -> Any:
    before, now = F.lag(f"last_{epoch}").over(history), F.col(f"first_{epoch}")
    text = f"micro-batch %d: {epoch.replace('_', ' ')} falls from %d to %d"
    return F.when(now < before, F.format_string(text, "first_batch", before, now))


def _stream_function(group_id: str, bucket: int | None) -> Callable[[pa.Table], pa.Table]:
    """For ``applyInArrow``: one row per share-partition of a segment."""

    def check(rows: pa.Table) -> pa.Table:
        begin_task()
        rows = rows.sort_by("batch_id")
        place = {name: rows.column(name)[0].as_py() for name in ("segment", "writer_epoch")}
        found = [
            place | _stream_row(entries)
            for key, entries in entries_by_key(rows, group_id).items()
            if bucket is None or state_partition_of(key) == bucket
        ]
        return pa.Table.from_pylist(found, schema=_STREAM_SCHEMA)

    return check


def _stream_row(entries: Sequence[LogEntry]) -> dict[str, Any]:
    first = entries[0]
    stream = [LogRecord(entry.batch_id, entry.record) for entry in entries if entry.record is not None]
    faults = (f"micro-batch {entry.batch_id}: {entry.unreadable}" for entry in entries if entry.unreadable)
    state_epochs = [record.state_epoch for _, record in stream if isinstance(record, ShareSnapshot)]
    leader_epochs = [record.leader_epoch for _, record in stream]
    return {
        "topic": first.topic,
        "topic_id": first.key.topic_id,
        "partition": first.key.partition,
        "rows": len(entries),
        "fault": next(faults, None) or first_fault(stream),
        "first_batch": first.batch_id,
        "last_batch": entries[-1].batch_id,
        "first_state_epoch": next(iter(state_epochs), None),
        "last_state_epoch": next(reversed(state_epochs), None),
        "first_leader_epoch": next(iter(leader_epochs), None),
        "last_leader_epoch": next(reversed(leader_epochs), None),
    }


_STREAM_FIELDS: list[Any] = [
    ("topic", pa.string()),
    ("topic_id", pa.string()),
    ("partition", pa.int32()),
    ("segment", pa.int32()),
    ("writer_epoch", pa.int64()),
    ("rows", pa.int64()),
    ("fault", pa.string()),
    ("first_batch", pa.int64()),
    ("last_batch", pa.int64()),
    ("first_state_epoch", pa.int32()),
    ("last_state_epoch", pa.int32()),
    ("first_leader_epoch", pa.int32()),
    ("last_leader_epoch", pa.int32()),
]
_STREAM_SCHEMA = pa.schema(_STREAM_FIELDS)
