"""What is deleted after its retention: closed segments, dead letters, records of the embedded topic log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from share_spark.delta.location import Location
from share_spark.state.tables import log_table
from share_spark.topics import topic_registry
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def oldest_kept_segment(
    spark: SparkSession, location: Location, group_id: str, current: int, *, retention_ms: int, now_ms: int
) -> int:
    """Segments below this one are closed and older than the retention. ``current``: a segment that readers may need,
    and all above it; none of those goes."""
    if retention_ms == 0:
        return current
    rows = log_table(location).load(spark).where((F.col("group_id") == group_id) & (F.col("segment") < current))
    closed_at = rows.groupBy("segment").agg(F.unix_millis(F.max("written_at")).alias("at")).collect()
    kept: list[int] = [row.segment for row in closed_at if row.at >= now_ms - retention_ms]
    return min([*kept, current])


def segments_below(group_id: str, segment: int) -> Column:
    """By partition only: the deletion changes metadata only, and conflicts with no append."""
    return (F.col("group_id") == group_id) & (F.col("segment") < segment)


def letters_before(moment_ms: int) -> Column:
    """Dead letters that were archived before ``moment_ms``."""
    return F.col("archived_at") < F.timestamp_millis(F.lit(moment_ms))


def log_starts_after(spark: SparkSession, table: Location, moment_ms: int) -> dict[str, dict[int, int]]:
    """Per topic the partitions whose log start has to move so that no record before ``moment_ms`` is left, and the new
    log starts.

    As Kafka does it: up to the first record within the retention, whether or not groups have finished those before.
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
