"""Rows of the state log, as Arrow: the records of a micro-batch, or one claim."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from share_spark.state.group_rows import GROUP_SNAPSHOT, GROUP_UPDATE, group_values
from share_spark.state.record_rows import CLAIM, RECORD_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from share_spark.coordinator.group import GroupRecord
    from share_spark.state.commits import CommitNote

_STAMPS: list[Any] = [
    ("writer_epoch", pa.int64()),
    ("run_id", pa.string()),
    ("query_id", pa.string()),
    ("batch_id", pa.int64()),
    ("at_ms", pa.int64()),
    ("written_at", pa.timestamp("us", "UTC")),
]
LOG_SCHEMA = pa.schema([*RECORD_TYPE, *(pa.field(name, kind) for name, kind in _STAMPS)])
"""``tables.LOG_COLUMNS`` without the partition columns of the table."""

_RARE = ("excused", "errors", "group_records")

USUAL_SCHEMA = pa.schema([column for column in LOG_SCHEMA if column.name not in _RARE])
"""LOG_SCHEMA without the columns that only files with such ranges have: a column costs time in each append. To readers
they are null in the others."""


def claim_table(note: CommitNote) -> pa.Table:
    """Return the row of a claim (USUAL_SCHEMA). It has no micro-batch."""
    row = {"kind": CLAIM, "writer_epoch": note.writer_epoch, "run_id": note.run_id, "at_ms": note.at_ms}
    return pa.Table.from_pylist([row | {"written_at": datetime.now(UTC)}], schema=USUAL_SCHEMA)


def group_row(records: Sequence[GroupRecord], *, is_snapshot: bool) -> pa.StructArray:
    """Return the one row (RECORD_TYPE) of a commit with records of the group. ``is_snapshot``: they are all that
    count."""
    found: Any = pa.array([group_row_values(records, is_snapshot=is_snapshot)], RECORD_TYPE)
    return cast("pa.StructArray", found)


def group_row_values(records: Sequence[GroupRecord], *, is_snapshot: bool) -> dict[str, Any]:
    """Return the same row as values, without columns that are null."""
    return {"kind": GROUP_SNAPSHOT if is_snapshot else GROUP_UPDATE, "group_records": group_values(records)}


def stamp_values(query_id: str | None) -> dict[str, Any]:
    """Return the stamps that a note of its commit does not have, as values."""
    return {"query_id": query_id, "written_at": time.time_ns() // 1_000}


def record_table(records: pa.StructArray, note: CommitNote, query_id: str | None) -> pa.Table:
    """Return ``records`` (RECORD_TYPE) with their stamps (LOG_SCHEMA without rare columns that are empty)."""
    stamps = [note.writer_epoch, note.run_id, query_id, note.batch_id, note.at_ms, datetime.now(UTC)]
    columns = [
        pa.repeat(pa.scalar(value, kind), len(records)) for value, (_, kind) in zip(stamps, _STAMPS, strict=True)
    ]
    rows = pa.Table.from_arrays([*records.flatten(), *columns], schema=LOG_SCHEMA)
    return rows.drop([name for name in _RARE if not len(_values(records.field(name)))])


def _values(lists: Any) -> Any:
    return lists.values
