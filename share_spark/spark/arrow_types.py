"""Spark's schemas as Arrow's and back, alike in each release of PySpark: a timestamp is a moment, in UTC. Also Spark's
settings for the size of Arrow batches."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_ARROW_LIMIT = str(2**31 - 1)
"""The value with which Spark ignores the bytes of a batch."""

_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""The time zone argument of Spark 4.2; earlier releases always use this one."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema in Arrow's types. Raises what PySpark raises for a type that Arrow does not have."""
    return to_arrow_schema(schema, **_ZONE)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema in Spark's types. Raises what PySpark raises for a type that Spark does not have."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)
