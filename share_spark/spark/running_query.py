"""The streaming query that a micro-batch belongs to, as Spark notes it on the thread that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from share_spark.spark.capabilities import QUERY_ID, is_allowed, warn_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTY = "sql.streaming.queryId"
"""Of Spark itself; no part of its API."""


def running_query_id(spark: SparkSession) -> str | None:
    """Spark's id of the query whose micro-batch this thread runs; None if it does not say."""
    if not is_allowed(QUERY_ID):
        warn_once(QUERY_ID)
        return None
    found: str | None = spark.sparkContext.getLocalProperty(_PROPERTY)
    return found
