"""Spark's schemas in other forms, without a session.

- Arrow's schemas, and back, alike in each release of PySpark: a timestamp is a moment, in UTC. Also Spark's settings
  for the size of Arrow batches.
- DDL text: the part of its grammar that this project's own tables use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

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


_SIMPLE: Mapping[str, DataType] = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "smallint": ShortType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "tinyint": ByteType(),
}
_FIELD = re.compile(r"\s*(\w+)(?:\s+|\s*:\s*)(.+?)\s*")
_NESTED = re.compile(r"(array|struct)<(.+)>", re.IGNORECASE)


def columns_in(text: str) -> StructType:
    """Return the columns of ``name type, …``, all of which may be null. Raises ValueError: only Spark can read it."""
    fields = []
    for part in _parts(text):
        found = _FIELD.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is no column with a type")
        fields.append(StructField(found[1], _type(found[2])))
    return StructType(fields)


def _type(text: str) -> DataType:
    nested = _NESTED.fullmatch(text)
    if nested is not None:
        return ArrayType(_type(nested[2])) if nested[1].lower() == "array" else columns_in(nested[2])
    if text.lower() not in _SIMPLE:
        raise ValueError(f"{text!r} is not known as a type")
    return _SIMPLE[text.lower()]


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas that are in no type."""
    depth = begin = 0
    for at, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]
