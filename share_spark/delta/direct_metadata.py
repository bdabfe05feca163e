"""The metadata of a Delta table, made and changed without a Spark job: its columns and properties.

A table is made by its first commit, put only if there is none: only for columns that are known to be right in a table
of the oldest protocol. All others are left to Spark, which knows the features that they need, and refuses unsupported
ones.

A change is one commit with all of the metadata, put only as the version that follows the one it was made from. A commit
of another writer that comes between is read first, so no change of it is lost.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from share_spark.delta.commit_files import CommitFiles, commit_text
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_schema import fields_in, schema_text_of
from share_spark.spark.errors import JVM_ERRORS
from share_spark.spark.on_demand import AnySpark, session_of
from share_spark.spark.schemas import columns_in, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.delta.location import Location

_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
"""The oldest protocol with required columns and append-only tables."""

_PLAIN_TYPE = re.compile(
    r"string|binary|boolean|byte|short|integer|long|float|double|date|timestamp|decimal\(\d+,\d+\)"
)
"""The types as a schema's JSON names them."""

_PLAIN_NAME = re.compile(r"[^ ,;{}()\n\t=]+")
"""The names that Delta accepts where columns have the same names in files."""

_OURS = "share_spark."
"""The prefix of names without a meaning for Delta: others may enable features of the table."""


def create_table(
    files: CommitFiles,
    schema_text: str,
    *,
    partitioned_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> bool:
    """Make the table unless another program just makes it; return whether it did. ``schema_text``: as in its metadata.
    Raises UnknownTableError (only Spark knows what such columns need), NotImplementedError where only Spark can commit,
    and what the storage raises."""
    if (column := _unplain_column(json.loads(schema_text))) is not None:
        raise UnknownTableError(f"only Spark knows what the column {column} needs")
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_text,
        "partitionColumns": list(partitioned_by),
        "configuration": dict(properties or {}),
        "createdTime": int(time.time() * 1_000),
    }
    parameters = {
        "isManaged": "false",
        "partitionBy": json.dumps(list(partitioned_by)),
        "properties": json.dumps(dict(properties or {})),
    }
    actions: list[dict[str, Any]] = [{"protocol": _PROTOCOL}, {"metaData": metadata}]
    text = commit_text("CREATE TABLE", parameters, actions, blind=True, operationMetrics={})
    files.make_directory()
    return files.commit(0, text)


def _unplain_column(struct: Mapping[str, Any], inside: str = "") -> str | None:
    """Return the first column, nested ones too, that is not known to be right; None if all are. ``struct``: a schema's
    JSON."""
    seen: set[str] = set()
    for field in struct["fields"]:
        name = f"{inside}{field['name']}"
        is_taken = field["name"].lower() in seen
        is_bound = bool(field["metadata"]) or (bool(inside) and not field["nullable"])
        if is_taken or is_bound or not _PLAIN_NAME.fullmatch(field["name"]):
            return name
        seen.add(field["name"].lower())
        if (found := _unplain_type(field["type"], name)) is not None:
            return found
    return None


def _unplain_type(kind: Any, name: str) -> str | None:
    if isinstance(kind, str):
        return None if _PLAIN_TYPE.fullmatch(kind) else name
    if kind["type"] == "struct":
        return _unplain_column(kind, f"{name}.")
    parts = {"array": ("containsNull", "elementType"), "map": ("valueContainsNull", "keyType", "valueType")}
    may_be_null, *inner = parts.get(kind["type"], ("",))
    if not kind.get(may_be_null):
        return name
    for part in inner:
        if (found := _unplain_type(kind[part], f"{name}.{part.removesuffix('Type')}")) is not None:
            return found
    return None


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
    wanted = columns_in(columns)
    if log is not None and (not _missing(log.layout.columns, wanted) or _add_directly(log.files, wanted)):
        return
    session = session_of(spark, f"{table}: columns of this release are added")
    if _missing(table.load(session).columns, wanted):
        _add_by_spark(session, table, wanted)


def _add_directly(files: CommitFiles, wanted: pa.Schema) -> bool:
    """Add the columns in one commit of ours; return False where only Spark can."""
    try:
        change_metadata(files, lambda log: _addition(log, wanted))
    except NotImplementedError:
        return False
    return True


def _addition(log: TableLog, wanted: pa.Schema) -> MetadataChange | None:
    missing = _missing(log.layout.columns, wanted)
    if not missing:
        return None
    added = fields_in(schema_text_of(pa.schema(missing)))
    said = {"columns": json.dumps([{"column": field} for field in added])}
    schema = json.loads(log.schema_text)
    schema["fields"] += added
    return MetadataChange("ADD COLUMNS", said, {"schemaString": json.dumps(schema)})


def _add_by_spark(spark: SparkSession, table: Location, wanted: pa.Schema) -> None:
    missing = spark_schema(pa.schema(_missing(table.load(spark).columns, wanted)))
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in missing)
    try:
        spark.sql(f"ALTER TABLE {table.sql_name()} ADD COLUMNS ({columns})")
    except JVM_ERRORS:
        if _missing(table.load(spark).columns, wanted):  # else another engine was first
            raise


def _missing(names: Collection[str], wanted: pa.Schema) -> list[pa.Field[Any]]:
    return [field for field in wanted if field.name not in names]
