"""Deletion after a retention: closed segments, dead letters, records of the embedded topic log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from share_spark.delta.location import Location, sql_literal
from share_spark.delta.native_changes import RowFilter
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_maintenance import KeptTable
from share_spark.spark import functions as F
from share_spark.state.direct_rows import last_written_ms
from share_spark.topics import topic_registry
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def oldest_kept_segment(log: KeptTable, group_id: str, current: int, *, retention_ms: int, now_ms: int) -> int:
    """Return the first segment to keep: those below are closed and older than the retention. ``log``: the log table.
    ``current``: a segment that readers may need, as all above it; none of those is dropped."""
    if retention_ms == 0 or current <= 0:
        return current
    files, moment_ms = log.log(), now_ms - retention_ms
    try:
        if files is not None:
            return _oldest_kept(files, group_id, current, moment_ms)
    except UnknownTableError:
        pass
    session = log.spark_for("the age of segments is looked for")
    rows = log.place.load(session).where((F.col("group_id") == group_id) & (F.col("segment") < current))
    closed_at = rows.groupBy("segment").agg(F.unix_millis(F.max("written_at")).alias("at")).collect()
    kept: list[int] = [row.segment for row in closed_at if row.at >= moment_ms]
    return min([*kept, current])


def _oldest_kept(log: TableLog, group_id: str, current: int, moment_ms: int) -> int:
    """Return the first segment with a row that was written at ``moment_ms`` or later. Raises UnknownTableError."""
    segments: dict[int, list[str]] = {}
    for path, file in log.active.items():
        # No row is younger than its file.
        if file.values["group_id"] == group_id and file.written_at_ms >= moment_ms:
            segments.setdefault(int(file.values["segment"]), []).append(path)
    for segment in sorted(number for number in segments if number < current):
        if (last_written_ms(log, segments[segment]) or 0) >= moment_ms:
            return segment
    return current


def closed_files(log: KeptTable, group_id: str, segment: int) -> int:
    """Return the number of files that the group has in segments below this one."""
    return sum(found.files for found in log.partitions() if _is_below(found.values, group_id, segment))


def drop_segments(log: KeptTable, group_id: str, segment: int) -> bool:
    """Drop the group's segments below this one, by partition: it changes metadata only, and conflicts with no append.
    Returns False if other writers came first."""
    where = f"group_id = {sql_literal(group_id)} AND segment < {segment}"
    return log.drop_partitions(lambda values: _is_below(values, group_id, segment), where)


def _is_below(values: Mapping[str, str], group_id: str, segment: int) -> bool:
    return values["group_id"] == group_id and int(values["segment"]) < segment


def letters_before(moment_ms: int) -> RowFilter:
    """Return the condition on dead letters that were archived before ``moment_ms``."""
    return RowFilter(
        spark=f"archived_at < timestamp_millis({moment_ms})",
        delta_rs=f"archived_at < arrow_cast({moment_ms * 1_000}, 'Timestamp(Microsecond, Some(\"UTC\"))')",
    )


def log_starts_after(spark: SparkSession, table: Location, moment_ms: int) -> dict[str, dict[int, int]]:
    """Return, per topic, the partitions whose log start has to move so that no record before ``moment_ms`` is left,
    with the new log starts.

    As in Kafka: up to the first record within the retention, whether or not groups have finished those before.
    """
    log = EmbeddedTopicLog(spark, table)
    starts = {}
    for topic in sorted(topic_registry.entries(table.properties(spark))):
        ends = log.log_ends(topic)
        wanted = log.offsets_at(topic, moment_ms)
        moved = {partition: at for partition, at in wanted.items() if at > ends[partition].log_start_offset}
        if moved:
            starts[topic] = moved
    return starts
