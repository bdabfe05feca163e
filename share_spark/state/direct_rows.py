"""The rows of the state log that count, read without a Spark job: a restart with a small state is ready in
milliseconds, and a look at a group needs no JVM."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_spark.delta.table_log import ActiveFile, TableLog, UnknownTableError
from share_spark.state.commits import CommitNote, SegmentStamps
from share_spark.state.log_rows import LOG_SCHEMA
from share_spark.state.record_rows import CLAIM, SNAPSHOT

FOLDED_SCHEMA = pa.schema([column for column in LOG_SCHEMA if column.name not in ("ended", "errors")])
"""What the state is made of; the other columns are for the audit."""

MOST_BYTES = 16 << 20
"""Of the files of a segment. Spark reads larger ones in parallel."""

MOST_RANGES = 2_000_000
"""In them: about a second in Python where they are in large rows. A million rows of one range take six seconds, and
Spark on two cores eight."""


def rows_that_count(log: TableLog, valid: CommitNote) -> pa.Table:
    """The records (FOLDED_SCHEMA) up to ``valid``, the last commit of the group that counts, in the order of the
    micro-batches; no claims. ``log`` keeps files. Raises UnknownTableError: only Spark can, or should, read them."""
    wanted = {"group_id": valid.group_id, "segment": str(valid.segment)}
    files = {path: file for path, file in _files(log).items() if dict(file.values) == wanted}
    if sum(file.size for file in files.values()) > MOST_BYTES:
        raise UnknownTableError("the segment is large")
    if not all(file.is_whole for file in files.values()):
        raise UnknownTableError("rows of its files are deleted")
    rows = pa.concat_tables([FOLDED_SCHEMA.empty_table(), *tables_of(log, files, FOLDED_SCHEMA)])
    counts = (pc.field("writer_epoch") == valid.writer_epoch) & (pc.field("batch_id") <= valid.batch_id)
    return rows.filter(counts & (pc.field("kind") != CLAIM)).sort_by("batch_id")


def stamp_rows(log: TableLog, group_id: str) -> pa.Table:
    """``kind``, ``segment``, ``writer_epoch``, ``batch_id`` and ``at_ms`` of all rows of a group. Raises
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
    """What the rows of a group say. Raises UnknownTableError."""
    rows = stamp_rows(log, group_id)
    marked = rows.append_column("is_whole", pc.equal(rows.column("kind"), pa.scalar(SNAPSHOT)))
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
    """When the last row in these files was written, by its writer's clock; None if there is none. Raises
    UnknownTableError."""
    wanted, columns = list(paths), pa.schema([LOG_SCHEMA.field("written_at")])
    if not all(log.active[path].is_whole for path in wanted):
        raise UnknownTableError("rows of its files are deleted")
    return last_written_in(pa.concat_tables([columns.empty_table(), *tables_of(log, wanted, columns)]))


def last_written_in(rows: pa.Table) -> int | None:
    """As ``last_written_ms``, of rows with that column."""
    last: int | None = pc.max(rows.column("written_at").cast(pa.int64())).as_py()
    return None if last is None else last // 1_000


def _files(log: TableLog) -> Mapping[str, ActiveFile]:
    if not log.keeps_files:
        raise UnknownTableError("the table has many files")
    return log.active


def tables_of(log: TableLog, paths: Iterable[str], columns: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files, file by file; a column that a file does not have is null. Raises UnknownTableError: they have
    more ranges than should be read here."""
    ranges = 0
    for path in paths:
        file = log.data_file(path)
        ranges += most_values(file.metadata, columns.names)
        if ranges > MOST_RANGES:
            raise UnknownTableError("the segment has many ranges")
        yield in_columns(file.read(columns.names), columns)


def in_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the rows with these columns; one that they do not have is null."""
    for column in columns:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
    return rows.select(columns.names).cast(columns)


def most_values(metadata: pq.FileMetaData, names: Collection[str]) -> int:
    """Of the one of these columns that has most, which is one of a list of ranges."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    return sum(max(_values(group, names), default=0) for group in groups)


def _values(group: pq.RowGroupMetaData, names: Collection[str]) -> Iterator[int]:
    columns = (group.column(number) for number in range(group.num_columns))
    return (column.num_values for column in columns if column.path_in_schema.split(".")[0] in names)
