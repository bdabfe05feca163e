"""Dead letters as the engine passes them to a target."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from share_spark.engine.ports import RECORD_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = f"{RECORD_COLUMNS}, delivery_count int, reason string, error string"


def letters(spark: SparkSession) -> DataFrame:
    """One with everything, and one with nothing but its place."""
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    full = ("orders", 3, 42, time, b"key", b"value", [("own", b"1")])
    bare = ("orders", 0, 7, time, None, None, None)
    rows = [
        (*full, 5, "delivery limit reached", "ValueError: no such city"),
        (*bare, 1, "rejected", None),
    ]
    return spark.createDataFrame(rows, COLUMNS)
