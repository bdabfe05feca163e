"""The table that takes output rows: created if it is missing, else checked, so that a sink that cannot fit is reported
before anything starts, in one line that names table and column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from share_spark.delta.public_claim import is_filled_by_delta
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from share_spark.delta.location import Location
    from share_spark.delta.table_log import TableLog

_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"


def prepare_table(spark: SparkSession, table: Location, output: StructType) -> None:
    """Create the table with the declared columns if nothing is there. Raises ConfigError if it cannot take them."""
    if table.is_free(spark):
        table.create_with(spark, output)
    elif not table.exists(spark):
        raise ConfigError(f"sink {table} is not a Delta table")
    log = table.log(spark)
    _check_properties(table, table.properties(spark) if log is None else log.properties)
    schema = table.load(spark).schema if log is None else _spark_type(log.schema_text)
    reason = misfit(output, schema) or _unpartitioned(_partition_columns(spark, table, log), output)
    if reason is not None:
        raise ConfigError(f"sink {table}: {reason}")


def _spark_type(schema_text: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(schema_text))


def misfit(output: StructType, table: StructType) -> str | None:
    """Return why rows of the schema ``output`` do not fit into the columns of ``table``; None if they do.

    Columns that only the table has are left null. Names are compared as Delta does, ignoring their case; inside of
    structs they have to be the same, as readers other than Spark know a field there by its exact name.
    """
    for column in table.fields:
        if (
            column.name.lower() not in _by_name(output)
            and not column.nullable
            and not is_filled_by_delta(column.metadata)
        ):
            return f"column {column.name} must not be null, and the output schema does not have it"
    return _struct_misfit(output, table, "")


def _check_properties(table: Location, properties: Mapping[str, str]) -> None:
    if any(name.startswith("share_spark.") for name in properties):
        raise ConfigError(f"sink {table} is a table of share_spark itself")
    if _TRANSACTION_RETENTION in properties:
        raise ConfigError(
            f"sink {table} has {_TRANSACTION_RETENTION} set: Delta would forget which rows are written, and "
            "exactly-once with it; unset the property"
        )


def _partition_columns(spark: SparkSession, table: Location, log: TableLog | None) -> Sequence[str]:
    if log is not None:
        return log.partition_columns
    row = table.delta_table(spark).detail().select("partitionColumns").head()
    return row.partitionColumns if row else ()


def _unpartitioned(columns: Sequence[str], output: StructType) -> str | None:
    """Return an error if a partition column is missing: Delta takes no rows without them."""
    missing = [name for name in columns if name.lower() not in _by_name(output)]
    return f"it is partitioned by {', '.join(missing)}, which the output schema does not have" if missing else None


def _by_name(struct: StructType) -> dict[str, tuple[str, DataType, bool]]:
    return {field.name.lower(): (field.name, field.dataType, field.nullable) for field in struct.fields}


def _struct_misfit(output: StructType, table: StructType, inside: str) -> str | None:
    columns = _by_name(table)
    for name, kind, nullable in _by_name(output).values():
        if name.lower() not in columns:
            return f"it has no column {inside}{name}, which the output schema declares"
        spelled, found, may_be_null = columns[name.lower()]
        if inside and spelled != name:
            return f"the table spells {inside}{name} as {inside}{spelled}; names inside of structs have to be the same"
        if nullable and not may_be_null:
            return f"column {inside}{name} must not be null, but the output schema allows it"
        if (reason := _type_misfit(kind, found, inside + name)) is not None:
            return reason
    return None


def _type_misfit(output: DataType, table: DataType, name: str) -> str | None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(output, StructType) and isinstance(table, StructType):
        return _struct_misfit(output, table, f"{name}.")
    if isinstance(output, ArrayType) and isinstance(table, ArrayType):
        return _type_misfit(output.elementType, table.elementType, f"{name}.element")
    if isinstance(output, MapType) and isinstance(table, MapType):
        key = _type_misfit(output.keyType, table.keyType, f"{name}.key")
        return key or _type_misfit(output.valueType, table.valueType, f"{name}.value")
    if output != table:
        return f"column {name} is {table.simpleString()}, but the output schema declares {output.simpleString()}"
    return None
