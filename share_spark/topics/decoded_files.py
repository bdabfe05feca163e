"""Files of a topic log as a process reads them: those of which more records are to come are kept, decoded.

Who takes a hundred records at a time, as a companion does when a hundred calls have ended, takes them out of one file
of ten thousand again and again. To open it and to decode its rows costs a hundred times as much as these records.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.engine.ranges import Offsets

MOST_BYTES = 64 << 20
"""The most bytes of a batch."""

MOST_DECODED_ROWS = 10_000
"""The most rows decoded at a time."""

_FIRST_ROWS = 100
"""The rows decoded to measure rows. The size of a row group does not show theirs: Parquet stores equal values once."""

_SMALL_BYTES = 1 << 20
"""The most bytes of a small file."""

_MOST_KEPT_BYTES = 16 << 20
_MOST_KEPT_FILES = 64


class DecodedFile:
    """An open Parquet file, and what was decoded of its ``columns``; for one reader at a time."""

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self._file = _opened(path)
        self._groups: dict[int, _RowGroup] = {}

    @cached_property
    def offsets(self) -> Offsets:
        """The offsets of all rows, in the order of the file."""
        found: Offsets = self._file.read(["offset"]).column("offset").to_numpy()
        return found

    @cached_property
    def is_ascending(self) -> bool:
        """Whether the offsets ascend."""
        return bool((np.diff(self.offsets) > 0).all())

    @cached_property
    def is_small(self) -> bool:
        """Whether all of it may be decoded at once, even if each row is as large as all that is stored."""
        metadata = self._file.metadata
        stored = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        return metadata.num_rows <= MOST_DECODED_ROWS and metadata.num_rows * stored <= MOST_BYTES

    @cached_property
    def rows(self) -> pa.Table:
        """All rows; to be asked only of a small file."""
        return self._file.read(list(self.columns), use_threads=False)

    def stretch(self, first: int, last: int) -> slice:
        """Return the rows outside of which no offset is between these two."""
        if not self.is_ascending:
            return slice(0, len(self.offsets))
        return slice(*np.searchsorted(self.offsets, [first, last + 1]).tolist())

    def groups(self) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Yield (number of rows, these rows in batches that are not too large) of each row group."""
        for number in range(self._file.num_row_groups):
            yield self._file.metadata.row_group(number).num_rows, self._batches(number)

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        if number not in self._groups:
            self._groups[number] = _RowGroup(_decoded(self._file, number, self.columns))
        return iter(self._groups[number])

    @property
    def kept_bytes(self) -> int:
        """The bytes of what was decoded, without the metadata; more than can be kept if it is not there any more."""
        columns = (self.__dict__[name].nbytes for name in ("rows", "offsets") if name in self.__dict__)
        return int(sum(columns)) + sum(group.kept_bytes for group in self._groups.values())


class _RowGroup:
    """The batches of a row group: those that were decoded, and then the others, as they are decoded."""

    def __init__(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._decoded: list[pa.RecordBatch] = []
        self._rest = rest
        self.kept_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._decoded
        for batch in self._rest:
            self.kept_bytes += batch.nbytes
            if self.kept_bytes <= _MOST_KEPT_BYTES:
                self._decoded.append(batch)
            else:
                self._decoded.clear()
            yield batch


class DecodedFiles:
    """The files that a process keeps, the one used last at the end. A reader takes a file out, and gives it back."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, DecodedFile] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, path: str, columns: Sequence[str]) -> DecodedFile:
        """Return the file. Raises OSError, pa.ArrowException."""
        with self._lock:
            found = self._files.pop(path, None)
        return found if found is not None and found.columns == tuple(columns) else DecodedFile(path, columns)

    def give_back(self, file: DecodedFile) -> None:
        """Keep a file of which more will be read, as long as there is room."""
        if file.kept_bytes > _MOST_KEPT_BYTES:
            return
        with self._lock:
            self._files[file.path] = file
            sizes = [(path, one.kept_bytes) for path, one in self._files.items()]
            total = sum(size for _, size in sizes)
            while total > _MOST_KEPT_BYTES or len(self._files) > _MOST_KEPT_FILES:
                path, size = sizes.pop(0)
                del self._files[path]
                total -= size


def _opened(path: str) -> pq.ParquetFile:
    """Open a file. A small one is read in one piece: reads by pyarrow's own threads, a few for each file, would take
    longer than decoding it."""
    source = pa.OSFile(path, "rb")
    if source.size() > _SMALL_BYTES:
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    with source:
        content = pa.BufferReader(source.read_buffer())
    return pq.ParquetFile(content, coerce_int96_timestamp_unit="us", pre_buffer=False)


def _decoded(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the row group, with the ``columns`` that the file has."""
    columns = [name for name in file.schema_arrow.names if name in columns]
    first = next(file.iter_batches(_FIRST_ROWS, [group], columns, use_threads=False))
    bytes_per_row = first.nbytes // first.num_rows + 1
    size = min(max(MOST_BYTES // bytes_per_row, 1), MOST_DECODED_ROWS)
    yield from file.iter_batches(size, [group], columns, use_threads=False)
