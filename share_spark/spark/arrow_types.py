"""Spark's schemas as Arrow's and back, alike in each release of PySpark: a timestamp is a moment, in UTC. And Spark's
setting for the size of the batches in which rows travel."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_ARROW_LIMIT = str(2**31 - 1)
"""With this value Spark does not look at the bytes of a batch at all."""

_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Spark 4.2 asks for it; before it was always this one."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Raises what PySpark raises for a type that Arrow does not have."""
    return to_arrow_schema(schema, **_ZONE)


def spark_schema(schema: pa.Schema) -> StructType:
    """Raises what PySpark raises for a type that Spark does not have."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)
