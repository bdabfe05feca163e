"""Rows of a Spark frame as files of a Delta table that are in no commit yet, without Spark's writer.

Where the workers reach the table's directory they write the files. Where they do not, as on an object store, a worker
makes the files in its memory, and the driver puts them by the file system by which it commits (``StorageFiles``). Its
credentials and settings are Hadoop's, in the JVMs; Python workers have none of them. They would have to travel with
each task, could expire there, and would need a translation for a second client. And the driver cannot know what another
machine reaches, so a task would find out in the middle of a run.

So these rows pass through the driver (25 MB/s of files, measured), if they are few. If they are many, or of many
partitions, each of which is a request to the store, Spark's writer takes the same rows: it has as many connections as
there are cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_spark.delivery.output_files import OutputFiles
from share_spark.delta.data_file import DataFile, made_in_memory
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_layout import FilePlace, Part, TableLayout
from share_spark.spark.python_worker import begin_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_BYTES = 32 << 20
"""The most bytes of rows that pass through the driver, in Arrow's form; as files they are a third of that, or less."""

MOST_FILES = 50
"""The most files. Each is a request to the store: so many take less than 1 s, Spark's writer several times that."""

_PUT_AT_ONCE = 8


def files_of(rows: DataFrame, appends: DirectAppends) -> list[DataFile] | None:
    """Write ``rows`` as files in the table's directory; None if they are too many to be written this way. Raises the
    errors of Spark and of the storage."""
    place = appends.place_for_workers
    return written_files(rows, place) if place is not None else _put_files(rows, appends)


def written_files(rows: DataFrame, place: FilePlace) -> list[DataFile]:
    """Write ``rows`` as files in ``place``, which all workers can reach."""
    found = rows.mapInArrow(WriteFiles(place), "file string").toArrow().column(0).to_pylist()
    return [DataFile.from_json(str(text)) for text in found]


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """A function for ``mapInArrow`` that writes a task's rows to files, and returns a ``DataFile.to_json`` for each."""

    place: FilePlace

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        files = OutputFiles(self.place)
        try:
            for batch in batches:
                files.write(pa.Table.from_batches([batch]))
            written = [file.to_json() for file in files.close()]
        finally:
            files.discard()
        yield pa.RecordBatch.from_pydict({"file": pa.array(written, pa.string())})


def _put_files(rows: DataFrame, appends: DirectAppends) -> list[DataFile] | None:
    """Put the files that one task makes, so that each partition has one file."""
    made = MakeFiles(appends.layout, MOST_BYTES, MOST_FILES)
    found = rows.coalesce(1).mapInArrow(made, "file string, content binary").toArrow().to_pylist()
    if any(row["file"] is None for row in found):
        return None
    files = [(DataFile.from_json(row["file"]), row["content"]) for row in found]
    if len(files) == 1:
        appends.put(*files[0])
    else:
        with ThreadPoolExecutor(_PUT_AT_ONCE, "share-spark-put") as pool:
            list(pool.map(lambda one: appends.put(*one), files))
    return [file for file, _ in files]


@dataclass(frozen=True, slots=True)
class MakeFiles:
    """A function for ``mapInArrow`` that returns, for each file of the rows, ``DataFile.to_json`` and its content in a
    row; if the rows are more than ``most_bytes``, or of more than ``most_files`` files, one row of nulls."""

    layout: TableLayout
    most_bytes: int
    most_files: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        parts = self._parts(batches)
        made = [_made(part) for part in parts] if parts is not None else [(None, None)]
        columns: dict[str, Any] = {
            "file": pa.array([file for file, _ in made], pa.string()),
            "content": pa.array([content for _, content in made], pa.binary()),
        }
        yield pa.RecordBatch.from_pydict(columns)

    def _parts(self, batches: Iterable[pa.RecordBatch]) -> list[Part] | None:
        read, size = [], 0
        for batch in batches:
            read.append(batch)
            size += batch.nbytes
            if size > self.most_bytes:
                return None
        parts = list(self.layout.parts(pa.Table.from_batches(read))) if size else []
        return parts if len(parts) <= self.most_files else None


def _made(part: Part) -> tuple[str, bytes]:
    file, content = made_in_memory(part.rows, part.values, part.rows.column_names, part.directory)
    return file.to_json(), content
