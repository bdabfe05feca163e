"""Changes of a Delta table's metadata without a Spark job: one commit with all of it, put only as the version that
follows the one it was made from. A commit of another writer that comes between is read first, so no change of it is
lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import StructField, StructType

from share_spark.delta.commit_files import CommitFiles, commit_text
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.spark.ddl import columns_in
from share_spark.spark.errors import JVM_ERRORS
from share_spark.spark.on_demand import AnySpark, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_OURS = "share_spark."
"""The prefix of names without a meaning for Delta: others may enable features of the table."""


def change_properties(files: CommitFiles, changes: Mapping[str, str | None]) -> int:
    """Set properties of ours, or remove those that are None; may be repeated. Returns the version of the commit.

    Raises UnknownTableError, NotImplementedError (only Spark can), and then nothing has happened; what the storage
    raises, and then it may have happened.
    """
    if foreign := [name for name in changes if not name.startswith(_OURS)]:
        raise UnknownTableError(f"{foreign[0]} is a property that Delta knows")

    def changed(log: TableLog) -> MetadataChange:
        configuration = {name: value for name, value in log.properties.items() if name not in changes}
        configuration |= {name: value for name, value in changes.items() if value is not None}
        said = {"properties": json.dumps(dict(changes))}
        return MetadataChange("SET TBLPROPERTIES", said, {"configuration": configuration})

    return change_metadata(files, changed)


class MetadataChange(NamedTuple):
    """A change of metadata. ``operation``, ``parameters``: as in Delta's history. ``values``: the new fields."""

    operation: str
    parameters: Mapping[str, str]
    values: Mapping[str, Any]


def change_metadata(files: CommitFiles, changed: Callable[[TableLog], MetadataChange | None]) -> int:
    """Apply ``changed`` to the newest version; nothing if it returns None. Returns the version that has the change.
    Raises as ``change_properties``."""
    log = TableLog.open(files)
    while (change := changed(log)) is not None:
        log.check_can_append()
        if log.put(_text(log, change)):
            return log.version
        log.refresh()
    return log.version


def _text(log: TableLog, change: MetadataChange) -> str:
    metadata = {name: value for name, value in log.metadata.items() if value is not None}
    return commit_text(
        change.operation,
        change.parameters,
        [{"metaData": metadata | dict(change.values)}],
        blind=False,
        readVersion=log.version,
        operationMetrics={},
    )


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
