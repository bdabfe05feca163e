"""Schemas in other forms, without a session.

- Spark's schemas in Arrow's types, and back, alike in each release of PySpark: a timestamp is a moment, in UTC. Also
  Spark's settings for the size of Arrow batches.
- DDL text: the part of its grammar that this project's own tables use. PySpark is not needed for that.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_spark.spark.installed import is_installed, needing_spark
from share_spark.spark.jvm_errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_ARROW_LIMIT = str(2**31 - 1)
"""The value with which Spark ignores the bytes of a batch."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema in Arrow's types. Raises what PySpark raises for a type that Arrow does not have."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_zone())


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema in Spark's types. Raises what PySpark raises for a type that Spark does not have."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def declared_schema(schema: str | StructType | pa.Schema) -> pa.Schema:
    """Return a list of columns that a user has declared, in Arrow's types and those that Spark has. Raises ValueError
    with the end of a sentence: it is none."""
    try:
        found = _declared(schema)
    except PySparkException as fault:
        raise ValueError(f"is wrong: {str(fault).strip().splitlines()[0]}") from None
    if found is None or not len(found):
        raise ValueError("is not a list of columns")
    return found


def _declared(schema: str | StructType | pa.Schema) -> pa.Schema | None:
    """Return it, None if it is of another type. PySpark reads what ``columns_in`` does not, and checks Arrow's types:
    without it those of Delta count, which are the same but for intervals."""
    if isinstance(schema, str) and (known := _known_columns(schema)) is not None:
        return known
    if isinstance(schema, pa.Schema) and not is_installed():
        from deltalake import Schema

        columns: Any = Schema.from_arrow(schema).to_arrow()
        return pa.schema(columns)
    with needing_spark(f"the schema {schema!r}"):
        from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    in_spark = spark_schema(parsed) if isinstance(parsed, pa.Schema) else parsed
    return arrow_schema(in_spark) if isinstance(in_spark, StructType) else None


def _known_columns(text: str) -> pa.Schema | None:
    try:
        return columns_in(text)
    except ValueError:
        return None


@functools.cache
def _zone() -> dict[str, Any]:
    """Return the time zone argument of Spark 4.2; earlier releases always use this one."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


_SIMPLE: Mapping[str, pa.DataType] = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "tinyint": pa.int8(),
}
_FIELD = re.compile(r"\s*(\w+)(?:\s+|\s*:\s*)(.+?)\s*")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.IGNORECASE)
_NESTED = re.compile(r"(array|struct)<(.+)>", re.IGNORECASE)


def columns_in(text: str) -> pa.Schema:
    """Return the columns of ``name type, …``, all of which may be null. Raises ValueError: only Spark can read it."""
    return pa.schema(list(_fields(text)))


def _fields(text: str) -> Iterator[pa.Field[Any]]:
    for part in _parts(text):
        found = _FIELD.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is no column with a type")
        yield pa.field(found[1], _type(found[2]))


def _type(text: str) -> pa.DataType:
    nested = _NESTED.fullmatch(text)
    if nested is not None:
        is_array = nested[1].lower() == "array"
        return pa.list_(pa.field("element", _type(nested[2]))) if is_array else pa.struct(list(_fields(nested[2])))
    if (decimal := _DECIMAL.fullmatch(text)) is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if text.lower() not in _SIMPLE:
        raise ValueError(f"{text!r} is not known as a type")
    return _SIMPLE[text.lower()]


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas that are in no type."""
    depth = begin = 0
    for at, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]
