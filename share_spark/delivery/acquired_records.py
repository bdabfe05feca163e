"""The records of acquired ranges as a frame: read in covering spans, filtered in the JVM to exactly what was acquired.

Few ranges become one expression; many (scattered redeliveries) a broadcast join on pages of offsets. Either way only
acquired records reach Python, each with the value of its range.

The page join. A range condition alone would be a nested-loop join: each record against each range. So offsets are
grouped into pages of 64, and a range has one row for each page that it touches. Then the join is a hash look-up of the
record's page, and only the few ranges on that page are compared with its offset. Two ranges of one partition:

    offsets      0              64              128             192             256
    pages        |    page 0    |    page 1     |    page 2     |    page 3     |
    range A            [40 ........... 90]
    range B                                [110 .............. 200]

    rows of the broadcast table    (page, first_offset, last_offset)
      A    (0, 40, 90)     (1, 40, 90)
      B    (1, 110, 200)   (2, 110, 200)   (3, 110, 200)

    record at offset 100: page 1, candidates A and B, in neither of them: not acquired
    record at offset 130: page 2, candidate B: acquired, with B's delivery count

Each record joins at most once, because acquired ranges are disjoint. The page's number and the partition's low 16 bits
make one 64-bit key (``page_key``): Spark looks up a single number in half the time of a composite key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from share_spark.delivery.marked_rows import marks_of
from share_spark.delta.location import sql_literal
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import RECORD_COLUMNS, NumberedSpan, TopicLog
from share_spark.engine.ranges import (
    WAIT_MS,
    AcquiredRanges,
    EarlierRanges,
    each_between,
    offsets_in,
)
from share_spark.engine.spans import covering_spans
from share_spark.spark import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MAX_EXPRESSION_RANGES = 64
"""The most ranges in a CASE expression: its cost grows with their number, that of the join does not."""

_PAGE_BITS = 6
_PARTITION_BITS = 16
SMALL = 20_000
"""The number of records up to which one task per core is enough."""


def acquired_records(
    spark: SparkSession, log: TopicLog, acquired: Sequence[AcquiredSpan | NumberedSpan], *, tasks: int, third: str
) -> DataFrame:
    """Return RECORD_COLUMNS and an int column named ``third``: the delivery count, or the number, of the ranges."""
    spans = covering_spans(acquired)
    frame = log.read(spark, spans, tasks)
    if sum(offsets_in(one.ranges) for one in acquired) <= SMALL:
        frame = frame.coalesce(tasks)
    # One range in each span and one value in all: every record that is read was acquired, so there is no filter.
    ranges = sum(len(one.ranges) for one in acquired)
    if len(spans) == ranges == len(acquired) and len({int(one.ranges[0, 2]) for one in acquired}) == 1:
        return frame.selectExpr("*", f"CAST({acquired[0].ranges[0, 2]} AS INT) AS {third}")
    if ranges <= _MAX_EXPRESSION_RANGES:
        return frame.selectExpr("*", f"{_case(acquired)} AS {third}").where(f"{third} IS NOT NULL")
    return _joined(spark, frame, acquired, third)


def with_earlier(acquired: Sequence[AcquiredSpan]) -> list[AcquiredSpan]:
    """Add the records that hold back their keys, with a mark for each (``marked_rows``)."""
    return [one._replace(ranges=_with_earlier(one.ranges, one.earlier)) for one in acquired]


def _with_earlier(acquired: AcquiredRanges, earlier: EarlierRanges) -> AcquiredRanges:
    marked = np.column_stack([earlier[:, :WAIT_MS], marks_of(earlier[:, WAIT_MS])])
    return AcquiredRanges(np.concatenate([acquired, marked]))


def by_key(records: DataFrame, tasks: int) -> DataFrame:
    """Return the records of one key in one task, and those of each task in the order of their offsets. This is a
    shuffle: a reader does not know the keys before it reads."""
    place = F.when(F.col("key").isNull(), F.col("offset")).otherwise(F.xxhash64("key"))
    return records.repartition(tasks, place).sortWithinPartitions("offset")


def task_markers(spark: SparkSession, tasks: int) -> DataFrame:
    """Return one row of nulls in each of ``tasks`` tasks; columns as ``acquired_records`` with a delivery count."""
    columns = (column.split(" ") for column in f"{RECORD_COLUMNS}, delivery_count int".split(", "))
    nulls = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns]
    return spark.range(0, tasks, 1, tasks).selectExpr(*nulls)


def _case(acquired: Sequence[AcquiredSpan | NumberedSpan]) -> str:
    arms = (
        f"WHEN topic = {sql_literal(one.partition.topic)} AND partition = {one.partition.partition} "
        f"AND offset BETWEEN {first} AND {last} THEN {value}"
        for one in acquired
        for first, last, value in one.ranges.tolist()
    )
    return f"CAST(CASE {' '.join(arms)} END AS INT)"


def _joined(
    spark: SparkSession, frame: DataFrame, acquired: Sequence[AcquiredSpan | NumberedSpan], third: str
) -> DataFrame:
    pages = spark.createDataFrame(_pages(acquired, third))
    matches = F.col("page_key") == page_key(F.col("offset"), F.col("partition"))
    if not _page_implies_partition(acquired):
        matches &= (F.col("of_partition") == F.col("partition")) & (F.col("of_topic") == F.col("topic"))
    matches &= F.col("offset").between(F.col("first_offset"), F.col("last_offset"))
    return frame.join(F.broadcast(pages), matches).select(*[frame[name] for name in frame.columns], third)


def _page_implies_partition(acquired: Sequence[AcquiredSpan | NumberedSpan]) -> bool:
    """Return whether each page key belongs to one partition. Then it is the whole key of the join, a number, which
    Spark looks up in half the time."""
    topics = {one.partition.topic for one in acquired}
    return len(topics) == 1 and all(one.partition.partition >> _PARTITION_BITS == 0 for one in acquired)


def page_key(offset: Column, partition: Column) -> Column:
    """Return one number for a page of 64 offsets of a partition. Partitions beyond 65,536 share keys, which only costs
    time."""
    partition_bits = partition.cast("long").bitwiseAND(F.lit((1 << _PARTITION_BITS) - 1))
    page = F.shiftright(offset, _PAGE_BITS)
    return F.shiftleft(page, _PARTITION_BITS).bitwiseOR(partition_bits)


def _pages(acquired: Sequence[AcquiredSpan | NumberedSpan], third: str) -> pa.Table:
    tables = [_pages_of(one, third) for one in acquired]
    return pa.concat_tables(tables)


def _pages_of(one: AcquiredSpan | NumberedSpan, third: str) -> pa.Table:
    """Return one row per range and page that it touches."""
    first, last, value = one.ranges.T
    page, of = each_between(first >> _PAGE_BITS, last >> _PAGE_BITS)
    partition = one.partition.partition
    key = (page << _PARTITION_BITS) | (partition & ((1 << _PARTITION_BITS) - 1))
    columns = {
        "page_key": key,
        "of_topic": pa.array([one.partition.topic] * len(key), pa.string()),
        "of_partition": np.full(len(key), partition, np.int32),
        "first_offset": first[of],
        "last_offset": last[of],
        third: value[of].astype(np.int32),
    }
    return pa.table(columns)
