"""Dead-letter tables made without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from share_spark.delivery.kept_rows import RECORD_SCHEMA
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.table_log import TableLog
from share_spark.delta.table_rows import Change, TableRows
from share_spark.output.letter_columns import COLUMNS, PROPERTIES, WRITTEN_NAMES
from share_spark.spark.public_files import LocalFiles

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_KINDS = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
}
TYPES = StructType(
    [
        StructField(name, _KINDS.get(kind, ArrayType(_HEADER)))
        for name, kind in (column.split(" ", 1) for column in COLUMNS.split(", "))
    ]
)

WRITTEN = pa.schema(
    [
        ("group_id", pa.string()),
        *RECORD_SCHEMA,
        ("delivery_count", pa.int32()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("archived_at", pa.timestamp("us", "UTC")),
    ]
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def row(offset: int, **changes: Any) -> dict[str, Any]:
    """A letter of group billing, from orders:0, archived at ``offset`` minutes past noon."""
    plain = {
        "group_id": "billing",
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "timestamp": NOON,
        "key": b"key",
        "value": b"%d" % offset,
        "headers": None,
        "delivery_count": 5,
        "reason": "delivery limit reached",
        "error": f"ValueError: no city {offset}",
        "archived_at": NOON.replace(minute=offset),
    }
    return {**plain, **changes}


def make_letters(place: Path, *files: Sequence[dict[str, Any]], properties: dict[str, str] | None = None) -> str:
    """A table with a file for each of ``files``. Returns where it is."""
    log_files = CommitFiles(LocalFiles(), str(place))
    assert create_table(log_files, TYPES.json(), properties=PROPERTIES if properties is None else properties)
    add_letters(place, *files)
    return str(place)


def add_letters(place: Path, *files: Sequence[dict[str, Any]]) -> None:
    """As an engine appends them: without the columns that repair letters."""
    log = TableLog.open(CommitFiles(LocalFiles(), str(place)))
    appends = DirectAppends(directory=str(place), log=log)
    for rows in files:
        assert WRITTEN.names == WRITTEN_NAMES
        appends.commit([appends.write(pa.Table.from_pylist(list(rows), schema=WRITTEN), {})])


def set_columns(place: str, offset: int, **values: Any) -> None:
    """As a user does with UPDATE, of the letters of an offset."""
    files = CommitFiles(LocalFiles(), place)
    table = TableRows(place, TableLog.open(files, keeps_files=True))

    def judge(rows: pa.Table) -> Change:
        changed = [{**one, **values} if one["offset"] == offset else one for one in rows.to_pylist()]
        count = sum(one["offset"] == offset for one in changed)
        return Change(pa.Table.from_pylist(changed, schema=rows.schema), count)

    assert table.change("UPDATE", judge)
