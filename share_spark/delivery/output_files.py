"""Rows of a task as Parquet files in the directory of a Delta table, written by the worker itself: one for each
combination of values of its partition columns.

A file belongs to the table once a commit names it, and only files of tasks whose answers were taken are named. A task
that died, or that Spark ran twice, leaves files that no commit names; VACUUM removes them.

A task with very many partitions makes as many files, as Spark's writer does, and in less time; so there is no number of
partitions above which that writer is used. The memory of a worker is bounded: rows wait in it until there are enough
for a row group, and files beyond a number are finished, even if more of their rows come.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.delta.data_file import DataFile, new_path, parquet_writer, statistics
from share_spark.delta.table_layout import FilePlace, Part
from share_spark.model.errors import SinkError
from share_spark.spark.public_files import make_durable_directory, sync_directory

_ROW_GROUP_BYTES = 16 << 20
"""The bytes of waiting rows, in Arrow's form, after which a worker writes them."""

_MOST_OPEN = 100


@dataclass(slots=True)
class OutputFiles:
    """The files of one run of a task; made with their first rows."""

    place: FilePlace
    _waiting: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0
    _open: dict[tuple[str | None, ...], _OpenFile] = field(default_factory=dict)
    _finished: list[DataFile] = field(default_factory=list)

    def write(self, rows: pa.Table) -> None:
        """Append rows, always of the same columns. Raises SinkError."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _ROW_GROUP_BYTES:
            self._write_waiting()

    def close(self) -> list[DataFile]:
        """Write all files to the disk, and return them; none if there was no row. Raises SinkError."""
        self._write_waiting()
        self._finish()
        found, self._finished = self._finished, []
        return found

    def discard(self) -> None:
        """Remove the files that ``close`` has not returned: the task has failed."""
        for path in [*(file.path for file in self._open.values()), *(file.path for file in self._finished)]:
            (Path(self.place.directory) / path).unlink(missing_ok=True)
        self._open, self._finished = {}, []

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        rows, self._waiting, self._bytes = pa.concat_tables(self._waiting), [], 0
        with self._as_sink_error():
            for part in self.place.layout.parts(rows):
                self._file(part).writer.write_table(part.rows)

    def _file(self, part: Part) -> _OpenFile:
        key = tuple(part.values.values())
        if key not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._finish()
            self._open[key] = _OpenFile.of(part, Path(self.place.directory))
        return self._open[key]

    def _finish(self) -> None:
        with self._as_sink_error():
            while self._open:
                key = next(iter(self._open))
                self._finished.append(self._open[key].finished(Path(self.place.directory)))
                del self._open[key]

    @contextmanager
    def _as_sink_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            raise SinkError(
                f"output rows cannot be written to {self.place.directory}: {fault.strerror or fault}"
            ) from fault


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """``path``: relative to the table's directory. ``first``: the first part of the file, without its rows."""

    path: str
    first: Part
    writer: pq.ParquetWriter

    @classmethod
    def of(cls, part: Part, table: Path) -> _OpenFile:
        path = new_path(part.directory)
        if part.directory:
            make_durable_directory(table / part.directory)
        first = part._replace(rows=part.rows.slice(0, 0))
        return cls(path, first, parquet_writer(str(table / path), part.rows.schema))

    def finished(self, table: Path) -> DataFile:
        self.writer.close()
        at = table / self.path
        with at.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        sync_directory(at.parent)
        found = statistics(pq.read_metadata(at), self.first.rows.column_names)
        return DataFile(path=self.path, size=size, stats=found, values=self.first.values)
