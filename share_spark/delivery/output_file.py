"""Rows of a task as a Parquet file in the directory of a Delta table, written by the worker itself.

The file belongs to the table once a commit names it, and only those are named whose task's answers were taken:
what a task leaves that died, or that Spark ran twice, is a file that nothing names, and VACUUM removes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.delta.data_file import DataFile, new_path, parquet_writer, statistics
from share_spark.model.errors import SinkError
from share_spark.spark.python_worker import drop_zip_importers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class OutputFile:
    """The file of one run of a task; made with the first row. ``directory``: of the table, on this machine."""

    directory: str
    _path: Path | None = None
    _writer: pq.ParquetWriter | None = None
    _schema: pa.Schema | None = None

    def write(self, rows: pa.Table) -> None:
        """Append rows, always of the same columns. Raises SinkError."""
        if not rows.num_rows:
            return
        with self._as_sink_error():
            if self._writer is None:
                self._path, self._schema = Path(self.directory) / new_path(), rows.schema
                self._writer = parquet_writer(str(self._path), rows.schema)
            self._writer.write_table(rows)

    def close(self) -> DataFile | None:
        """It is on the disk when this returns; None if there was no row. Raises SinkError."""
        if self._writer is None or self._path is None or self._schema is None:
            return None
        with self._as_sink_error():
            self._writer.close()
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            found = statistics(pq.read_metadata(self._path), self._schema.names)
        return DataFile(path=self._path.name, size=size, stats=found)

    def discard(self) -> None:
        """The task has failed."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _as_sink_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            raise SinkError(f"output rows cannot be written to {self.directory}: {fault.strerror or fault}") from fault


@dataclass(frozen=True, slots=True)
class WriteFile:
    """For ``mapInArrow``: the rows of a task to a file; one row with ``DataFile.to_json`` comes back, none if there are
    no rows."""

    directory: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        drop_zip_importers()
        file = OutputFile(self.directory)
        try:
            for batch in batches:
                file.write(pa.Table.from_batches([batch]))
            written = file.close()
        except BaseException:
            file.discard()
            raise
        yield pa.RecordBatch.from_pydict({"file": pa.array([written.to_json()] if written else [], pa.string())})


def written_files(rows: DataFrame, directory: str) -> list[DataFile]:
    """``rows`` as files in ``directory``, which all workers can reach."""
    found = rows.mapInArrow(WriteFile(directory), "file string").toArrow().column(0).to_pylist()
    return [DataFile.from_json(str(text)) for text in found]
