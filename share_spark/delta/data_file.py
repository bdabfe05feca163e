"""A Parquet file of a Delta table, and its entry in the table's log. No Spark: workers write such files."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

_COLUMNS_WITH_STATISTICS = 32
"""Delta's default: the first columns of a table."""

_LONGEST_TEXT = 32
"""The length of a text in the statistics, as Delta has it."""

_FEW_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that is in the table's directory, and belongs to the table once a commit names it. ``path``: relative to
    the directory. ``values``: those of the partition columns, as text, None for null. ``stats``: Delta's statistics."""

    path: str
    size: int
    stats: Mapping[str, Any]
    values: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows in the file."""
        return int(self.stats["numRecords"])

    def to_action(self, now_ms: int) -> dict[str, Any]:
        """Return Delta's ``add`` action."""
        return {
            "add": {
                "path": quote(self.path, safe="/="),
                "partitionValues": dict(self.values),
                "size": self.size,
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": json.dumps(self.stats),
            }
        }

    def to_json(self) -> str:
        """Return the file as text, to be sent from a worker to the driver."""
        return json.dumps([self.path, self.size, self.stats, self.values])

    @classmethod
    def from_json(cls, text: str) -> DataFile:
        """Undo ``to_json``."""
        path, size, stats, values = json.loads(text)
        return cls(path=path, size=size, stats=stats, values=values)


def new_path(directory: str = "") -> str:
    """Return a unique name for a file, like those that Spark makes; in a ``directory`` of the table."""
    return f"{directory}/part-00000-{uuid.uuid4()}-c000.snappy.parquet".lstrip("/")


def made_in_memory(
    rows: pa.Table, values: Mapping[str, str | None], indexed: Sequence[str], directory: str = ""
) -> tuple[DataFile, bytes]:
    """Return the file of these rows, and its content, which is not written yet. ``indexed``: columns whose least and
    greatest value are in the log."""
    content, metadata = parquet_of(rows)
    stats = statistics(metadata, indexed)
    return DataFile(path=new_path(directory), size=len(content), stats=stats, values=values), content


def parquet_writer(target: Any, schema: pa.Schema, **more: Any) -> pq.ParquetWriter:
    """Return a writer of what Spark reads: microseconds, and lists in the standard form. ``more``: further options."""
    return pq.ParquetWriter(
        target, schema, compression="snappy", coerce_timestamps="us", allow_truncated_timestamps=True, **more
    )


def parquet_of(rows: pa.Table) -> tuple[bytes, pq.FileMetaData]:
    """Return the content of a file with these rows, and its metadata. Few rows are written without dictionaries and
    without Arrow's form of the schema, which are half of the file then."""
    content, metadata = io.BytesIO(), list[pq.FileMetaData]()
    plain = {"use_dictionary": False, "store_schema": False} if rows.num_rows <= _FEW_ROWS else {}
    with parquet_writer(content, rows.schema, metadata_collector=metadata, **plain) as writer:
        writer.write_table(rows)
    return content.getvalue(), metadata[0]


def statistics(metadata: pq.FileMetaData, columns: Sequence[str]) -> dict[str, Any]:
    """Return Delta's statistics of a file: the rows, and for the first of these columns the least and the greatest
    value and the nulls, where they are known, short, and times in the years 1 to 9999. Nested columns and
    floating-point numbers (NaN) have none. A missing bound is always right: no reader skips the file by it."""
    found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    if not metadata.num_rows:
        return {"numRecords": 0}
    at = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    for column in columns[:_COLUMNS_WITH_STATISTICS]:
        parts = list(_of_row_groups(metadata, at[column])) if column in at else []
        if not parts or any(part is None or not part.has_null_count for part in parts):
            continue
        found["nullCount"][column] = sum(part.null_count for part in parts)
        least, most = _bounds([part for part in parts if part.has_min_max])
        if least is not None and most is not None and _covers(parts):
            found["minValues"][column], found["maxValues"][column] = least, most
    return found


def _of_row_groups(metadata: pq.FileMetaData, column: int) -> Iterator[Any]:
    return (metadata.row_group(number).column(column).statistics for number in range(metadata.num_row_groups))


def _covers(parts: list[Any]) -> bool:
    """Return whether each part with a value has its bounds."""
    return all(part.has_min_max or part.num_values == 0 for part in parts)


def _bounds(parts: list[Any]) -> tuple[Any, Any]:
    """Return the bounds in the form of the log's JSON; None where they have none."""
    if not parts:
        return None, None
    try:
        return _as_json(min(part.min for part in parts)), _as_json(max(part.max for part in parts), up=True)
    except (OverflowError, ValueError):  # not a date of Python's, e.g. microseconds as milliseconds
        return None, None


def _as_json(value: Any, *, up: bool = False) -> Any:
    """Return the value for JSON. ``up``: an upper bound that is not exact is rounded up."""
    if isinstance(value, bool | float | bytes):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    if isinstance(value, datetime):
        return _milliseconds(value, up=up)
    return value.isoformat() if isinstance(value, date) else None


def _milliseconds(value: datetime, *, up: bool) -> str | None:
    if value.tzinfo is None:  # Delta's form differs without a time zone
        return None
    cut = value.astimezone(UTC).replace(microsecond=value.microsecond // 1_000 * 1_000)
    if up and cut < value:
        cut += timedelta(milliseconds=1)
    return cut.isoformat(timespec="milliseconds").replace("+00:00", "Z")
