"""The live frame of a group, from the rows of its log or empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from share_spark.spark.checkpointed_frame import has_own_session, in_session
from share_spark.spark.cloned_session import cloned_session
from share_spark.state.buckets import FRAME_COLUMNS, HEADER, KEY_HASH_SQL
from share_spark.state.fold import Fold
from share_spark.state.record_rows import CLAIM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "128",
    # One log row can be megabytes. The first releases of Spark 4.0 may not know this one: hence few rows, too.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
}
"""Log rows that go to a Python worker at a time."""

_RECORD = FRAME_COLUMNS.split("record ", 1)[1]


def loading_session(spark: SparkSession) -> SparkSession:
    """A session in which rows come to Python few at a time; ``spark`` itself where a frame cannot leave it again."""
    return cloned_session(spark, _BATCHES) if has_own_session() else spark


def empty_frame(spark: SparkSession, buckets: Sequence[int]) -> DataFrame:
    """The frame of a group without share-partitions."""
    return _headers(spark, buckets).selectExpr(
        "bucket",
        f"{HEADER}Y AS row",
        "'' AS key",
        "CAST(NULL AS BINARY) AS payload",
        f"CAST(NULL AS {_RECORD}) AS record",
    )


def folded_frame(
    spark: SparkSession, loading: SparkSession, rows: DataFrame, buckets: Sequence[int], group_id: str
) -> DataFrame:
    """The frame of the states in ``rows`` (of the session ``loading``), checkpointed, as a frame of ``spark``: what is
    computed from it is computed under the user's settings."""
    records = rows.where(F.col("kind") != CLAIM).withColumn("bucket", _bucket_column(buckets))
    everything = _headers(loading, buckets).unionByName(records, allowMissingColumns=True)
    sorted_rows = everything.repartition(len(buckets), "bucket").sortWithinPartitions("bucket", "batch_id")
    folded = sorted_rows.mapInArrow(Fold(group_id), FRAME_COLUMNS).localCheckpoint(eager=False)
    return in_session(folded, spark)


def payloads_in(frame: DataFrame, row: int) -> list[bytes]:
    """The payloads of rows of one kind."""
    payloads: list[Any] = frame.where(f"row = {row}").selectExpr("payload").toArrow().column(0).to_pylist()
    return payloads


def _headers(spark: SparkSession, buckets: Sequence[int]) -> DataFrame:
    """``bucket``, each in a row of its own: one that is empty is still a bucket."""
    count = len(buckets)
    numbers = F.array(*[F.lit(bucket) for bucket in buckets])
    return spark.range(0, count, 1, count).select(F.get(numbers, F.col("id").cast("int")).alias("bucket"))


def _bucket_column(buckets: Sequence[int]) -> Column:
    numbers = ", ".join(map(str, buckets))
    return F.expr(f"element_at(array({numbers}), CAST({KEY_HASH_SQL} % {len(buckets)} AS INT) + 1)")
