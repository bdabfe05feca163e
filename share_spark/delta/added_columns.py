"""Columns that a newer release adds to a table of an older one, whose readers and writers go on: the columns are null
in files that do not have them. Without a Spark job where possible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_properties import MetadataChange, change_metadata
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog
from share_spark.spark.ddl import columns_in
from share_spark.spark.errors import JVM_ERRORS
from share_spark.spark.on_demand import AnySpark, session_of

if TYPE_CHECKING:
    pass


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_missing_columns(spark: AnySpark, table: Location, log: TableLog | None, columns: str) -> None:
    """Add those of ``columns`` (DDL text) that the table does not have, at its end. ``log``: the table's, None where
    only Spark can read it. Raises what Spark or the storage raises."""
    wanted = columns_in(columns).fields
    if log is not None and (not _missing(log.schema, wanted) or _add_directly(log.files, wanted)):
        return
    session = session_of(spark, f"{table}: columns of this release are added")
    if _missing(table.load(session).schema, wanted):
        _add_by_spark(session, table, wanted)


def _add_directly(files: CommitFiles, wanted: Sequence[StructField]) -> bool:
    """Add the columns in one commit of ours; return False where only Spark can."""
    try:
        change_metadata(files, lambda log: _addition(log, wanted))
    except NotImplementedError:
        return False
    return True


def _addition(log: TableLog, wanted: Sequence[StructField]) -> MetadataChange | None:
    missing = _missing(log.schema, wanted)
    if not missing:
        return None
    said = {"columns": json.dumps([{"column": field.jsonValue()} for field in missing])}
    schema = StructType([*log.schema.fields, *missing])
    return MetadataChange("ADD COLUMNS", said, {"schemaString": schema.json()})


def _add_by_spark(spark: SparkSession, table: Location, wanted: Sequence[StructField]) -> None:
    missing = _missing(table.load(spark).schema, wanted)
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in missing)
    try:
        spark.sql(f"ALTER TABLE {table.sql_name()} ADD COLUMNS ({columns})")
    except JVM_ERRORS:
        if _missing(table.load(spark).schema, wanted):  # else another engine was first
            raise


def _missing(schema: StructType, wanted: Sequence[StructField]) -> list[StructField]:
    return [field for field in wanted if field.name not in schema.names]
