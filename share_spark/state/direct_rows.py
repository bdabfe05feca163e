"""The valid rows of the state log, read without a Spark job: a restart with a small state is ready in milliseconds, and
a look at a group needs no JVM."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_spark.delta.table_log import ActiveFile, TableLog, UnknownTableError
from share_spark.state.commits import CommitNote, SegmentStamps
from share_spark.state.group_rows import GROUP_SNAPSHOT
from share_spark.state.log_rows import LOG_SCHEMA
from share_spark.state.record_rows import CLAIM, SNAPSHOT

FOLDED_SCHEMA = pa.schema([column for column in LOG_SCHEMA if column.name not in ("ended", "errors")])
"""The columns of the state; the others are for the audit."""

WHOLE_KINDS = (SNAPSHOT, GROUP_SNAPSHOT)
"""The kinds of which the first commit of a segment has rows."""

MOST_RANGES = 2_000_000
"""The most ranges read for one answer to a person: about a second in Python if they are in large rows."""


def rows_by_batch(log: TableLog, valid: CommitNote, most_ranges: int | None = None) -> Iterator[pa.Table]:
    """Read the records (FOLDED_SCHEMA) up to ``valid``, the last valid commit of the group, some at a time, in the
    order of the micro-batches; no claims.

    ``log`` keeps files. Raises UnknownTableError: only Spark can read them, or they have more than ``most_ranges``.
    """
    wanted = {"group_id": valid.group_id, "segment": str(valid.segment)}
    files = {path: file for path, file in _files(log).items() if dict(file.values) == wanted}
    _refuse_deleted(files.values())
    parts = [part for path in files for part in _parts(log.data_file(path))]
    if most_ranges is not None and sum(part.values for part in parts) > most_ranges:
        raise UnknownTableError("the segment has many ranges")
    counts = (pc.field("writer_epoch") == valid.writer_epoch) & (pc.field("batch_id") <= valid.batch_id)
    tables = (pa.concat_tables(part.read() for part in together) for together in _in_order(parts))
    return (rows.filter(counts & (pc.field("kind") != CLAIM)).sort_by("batch_id") for rows in tables)


class _Part(NamedTuple):
    """A row group: its lowest and its highest micro-batch (those of claims are null), and its number of values."""

    first: int
    last: int
    values: int
    file: pq.ParquetFile
    number: int

    def read(self) -> pa.Table:
        names = [name for name in FOLDED_SCHEMA.names if name in self.file.schema_arrow.names]
        return in_columns(self.file.read_row_group(self.number, names), FOLDED_SCHEMA)


def _parts(file: pq.ParquetFile) -> Iterator[_Part]:
    at = [file.metadata.schema.column(number).path for number in range(file.metadata.num_columns)].index("batch_id")
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        bounds: Any = group.column(at).statistics
        if bounds is not None and bounds.null_count == group.num_rows:  # claims alone
            continue
        known = bounds is not None and bounds.has_min_max
        first, last = (bounds.min, bounds.max) if known else (-1, sys.maxsize)
        yield _Part(first, last, max(_values(group, FOLDED_SCHEMA.names), default=0), file, number)


def _in_order(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Group parts so that the micro-batches of each group are not below those of the group before.

    micro-batches of the parts   [1][2][3 - 7][8 ---- 12]      [16 - 20]
                                                 [10 ---- 15]
    read together                [1][2][3 - 7][8 -------- 15]  [16 - 20]
    """
    together: list[_Part] = []
    last = -1
    for part in sorted(parts, key=lambda part: part[:2]):
        if together and part.first >= last:
            yield together
            together = []
        together.append(part)
        last = max(last, part.last)
    if together:
        yield together


def stamp_rows(log: TableLog, group_id: str) -> pa.Table:
    """Return ``kind``, ``segment``, ``writer_epoch``, ``batch_id`` and ``at_ms`` of all rows of a group. Raises
    UnknownTableError."""
    columns = pa.schema([LOG_SCHEMA.field(name) for name in ("kind", "writer_epoch", "batch_id", "at_ms")])
    parts = [columns.append(pa.field("segment", pa.int32())).empty_table()]
    for path, file in _files(log).items():
        if file.values["group_id"] == group_id:
            (found,) = tables_of(log, [path], columns)
            segment = pa.array([int(file.values["segment"])] * found.num_rows, pa.int32())
            parts.append(found.append_column("segment", segment))
    return pa.concat_tables(parts)


def segment_stamps(log: TableLog, group_id: str) -> Iterator[SegmentStamps]:
    """Yield the stamps of the rows of a group. Raises UnknownTableError."""
    rows = stamp_rows(log, group_id)
    begins: Any = pc.is_in(rows.column("kind"), value_set=pa.array(WHOLE_KINDS))
    marked = rows.append_column("is_whole", begins)
    found = marked.group_by(["segment", "writer_epoch"]).aggregate(
        [("is_whole", "max"), ("batch_id", "max"), ("at_ms", "max")]
    )
    for row in found.to_pylist():
        yield SegmentStamps(
            segment=row["segment"],
            writer_epoch=row["writer_epoch"],
            is_whole=row["is_whole_max"],
            batch_id=row["batch_id_max"],
            at_ms=row["at_ms_max"] or 0,
        )


def last_written_ms(log: TableLog, paths: Iterable[str]) -> int | None:
    """Return when the last row in these files was written, by its writer's clock; None if there is none. Raises
    UnknownTableError."""
    wanted, columns = list(paths), pa.schema([LOG_SCHEMA.field("written_at")])
    known = log.row_files
    _refuse_deleted(known[path] for path in wanted)
    return last_written_in(pa.concat_tables([columns.empty_table(), *tables_of(log, wanted, columns)]))


def last_written_in(rows: pa.Table) -> int | None:
    """Do as ``last_written_ms``, for rows with that column."""
    last: int | None = pc.max(rows.column("written_at").cast(pa.int64())).as_py()
    return None if last is None else last // 1_000


def _refuse_deleted(files: Iterable[ActiveFile]) -> None:
    if not all(file.is_whole for file in files):
        raise UnknownTableError("rows of its files are deleted")


def _files(log: TableLog) -> Mapping[str, ActiveFile]:
    if not log.keeps_files:
        raise UnknownTableError("the table has many files")
    return log.row_files


def tables_of(log: TableLog, paths: Iterable[str], columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files, file by file; a column that a file does not have is null. Raises UnknownTableError: they
    have more ranges than should be read here."""
    ranges = 0
    for path in paths:
        file = log.data_file(path)
        ranges += most_values(file.metadata, columns.names)
        if ranges > MOST_RANGES:
            raise UnknownTableError("the segment has many ranges")
        yield in_columns(file.read(columns.names), columns)


def in_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the rows with these columns; missing ones are null."""
    for column in columns:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
    return rows.select(columns.names).cast(columns)


def most_values(metadata: pq.FileMetaData, names: Collection[str]) -> int:
    """Return the number of values in the longest of these columns, which is one of a list of ranges."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    return sum(max(_values(group, names), default=0) for group in groups)


def _values(group: pq.RowGroupMetaData, names: Collection[str]) -> Iterator[int]:
    columns = (group.column(number) for number in range(group.num_columns))
    return (column.num_values for column in columns if column.path_in_schema.split(".")[0] in names)
