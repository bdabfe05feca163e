"""A Delta table made without Spark: its first commit, put only if there is none.

Only for columns that are known to be right in a table of the oldest protocol. All others are left to Spark, which knows
the features that they need, and refuses unsupported ones.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from share_spark.delta.commit_files import CommitFiles, commit_text
from share_spark.delta.table_log import UnknownTableError

_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
"""The oldest protocol with required columns and append-only tables."""

_PLAIN_TYPE = re.compile(
    r"string|binary|boolean|byte|short|integer|long|float|double|date|timestamp|decimal\(\d+,\d+\)"
)
"""The types as a schema's JSON names them."""

_PLAIN_NAME = re.compile(r"[^ ,;{}()\n\t=]+")
"""The names that Delta accepts where columns have the same names in files."""


def create_table(
    files: CommitFiles,
    columns: StructType,
    *,
    partitioned_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> bool:
    """Make the table unless another program just makes it; return whether it did. Raises UnknownTableError (only Spark
    knows what such columns need), NotImplementedError where only Spark can commit, and what the storage raises."""
    if (column := _unplain_column(columns.jsonValue())) is not None:
        raise UnknownTableError(f"only Spark knows what the column {column} needs")
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns.json(),
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
