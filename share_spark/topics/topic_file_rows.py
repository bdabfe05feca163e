"""Acquired records in the files of a topic log, as a worker reads them.

To open and decode a file of a few records takes pyarrow some 0.08 ms, and one step of NumPy or Python per file soon
takes as long. So the rows of many small files are made one batch before they are looked at:

    files        orders-0 [10 .. 14]  [15 .. 17]   orders-1 [5 .. 9]       decoded one by one
    rows                   10 .. 14    15 .. 17              5 .. 9        one batch
    acquired                   [13 ..  15]                      [8 .. 9]   one look-up
    taken                       13 14  15                        8    9    one copy
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.engine.acquired_positions import AcquiredPositions
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import FIRST, LAST, AcquiredRanges, Offsets, ascending, laid, look_up
from share_spark.engine.record_reader import in_schema
from share_spark.model.ids import TopicPartition
from share_spark.topics.decoded_files import MOST_BYTES, MOST_DECODED_ROWS, DecodedFile, DecodedFiles

_FILES = DecodedFiles()

_STORED = ("offset", "timestamp", "key", "value", "headers")
"""The columns of the files."""


class RecordFile(NamedTuple):
    """A Parquet file with the columns of RECORD_COLUMNS but topic and partition, and the rows of one partition: those
    from ``first_offset`` to ``last_offset`` are records. ``path``: on a file system."""

    path: str
    partition: TopicPartition
    first_offset: int
    last_offset: int


def that_hold(files: Sequence[RecordFile], ranges: AcquiredRanges) -> tuple[RecordFile, ...]:
    """Return those of ``files`` that may hold records of these ranges, which are disjoint."""
    if len(ranges) == 1:  # the frequent case where there are thousands of share-partitions
        first, last, _ = ranges[0].tolist()
        return tuple(file for file in files if file.first_offset <= last and first <= file.last_offset)
    in_order = ascending(ranges)
    # The first range that does not end before the file begins.
    at = np.searchsorted(in_order[:, LAST], [file.first_offset for file in files])
    begins = np.append(in_order[:, FIRST], np.iinfo(np.int64).max)[at].tolist()
    return tuple(file for file, begin in zip(files, begins, strict=True) if begin <= file.last_offset)


@dataclass(frozen=True, slots=True)
class TopicFileReader:
    """A RecordReader. ``files``: all that hold the acquired records, ascending."""

    files: Mapping[TopicPartition, Sequence[RecordFile]]

    def part(self, acquired: Sequence[AcquiredSpan]) -> Pieces:
        """See ``RecordReader``."""
        found = [FilePiece(one.ranges, that_hold(self.files.get(one.partition, ()), one.ranges)) for one in acquired]
        return Pieces.of([piece for piece in found if piece.files])


class FilePiece(NamedTuple):
    """The share of a task in one topic-partition. ``ranges``: ascending. ``files``: at least one, ascending."""

    ranges: AcquiredRanges
    files: tuple[RecordFile, ...]


class Pieces(NamedTuple):
    """A RecordPart: the share of a task, in columns, as ten thousand arrays take long to pickle. ``ranges``: of all
    pieces, one after the other. ``sizes``, ``files``: the number of ranges of each piece, and its files."""

    ranges: AcquiredRanges
    sizes: tuple[int, ...]
    files: tuple[tuple[RecordFile, ...], ...]

    @classmethod
    def of(cls, pieces: Sequence[FilePiece]) -> Pieces:
        """Return the columns of all pieces."""
        ranges = AcquiredRanges(laid(piece.ranges for piece in pieces))
        return cls(ranges, tuple(len(piece.ranges) for piece in pieces), tuple(piece.files for piece in pieces))

    def each(self) -> Iterator[FilePiece]:
        """Yield the pieces one after the other."""
        ends = np.cumsum(self.sizes).tolist()
        for size, end, files in zip(self.sizes, ends, self.files, strict=True):
            yield FilePiece(AcquiredRanges(self.ranges[end - size : end]), files)

    def batches(self, schema: pa.Schema, most_rows: int, _is_stopping: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """See ``RecordPart``. Raises OSError, pa.ArrowException."""
        if not self.files:
            return
        wanted, columns = _Wanted.of(self), [name for name in _STORED if name == "offset" or name in schema.names]
        stored = (rows for number, piece in enumerate(self.each()) for rows in _rows_of(number, piece, columns))
        parts = (_acquired(some, wanted) for some in _together(stored, MOST_DECODED_ROWS))
        slices = (one for part in parts for one in _slices(part, most_rows))
        for some in _together(slices, most_rows):
            yield _in_schema(some, schema)


# ------------------------------------------------------------------------------------------------- rows, as they are


class _Stored(NamedTuple):
    """Rows with columns of the files of the piece with this number, some of them acquired. Only rows from
    ``first_offset`` to ``last_offset`` may be taken."""

    topic: str
    rows: pa.Table
    piece: int
    first_offset: int
    last_offset: int


def _rows_of(number: int, piece: FilePiece, columns: list[str]) -> Iterator[_Stored]:
    """Yield rows in the order of their offsets, except inside a small file."""
    topic = piece.files[0].partition.topic
    for files in _overlapping(piece.files):
        opened = [_FILES.take(file.path, columns) for file in files]
        first, last = min(file.first_offset for file in files), max(file.last_offset for file in files)
        at_once = len(files) == 1 and opened[0].is_small
        found = _small_rows(opened[0], files[0], piece.ranges) if at_once else _picked_rows(opened, files, piece.ranges)
        try:
            for rows in found:
                yield _Stored(topic, rows, number, first, last)
        except GeneratorExit:  # who reads no further now comes again for the rest
            _give_back(opened)
            raise
        if piece.ranges[-1, LAST] < last:
            _give_back(opened)


def _give_back(opened: Iterable[DecodedFile]) -> None:
    for file in opened:
        _FILES.give_back(file)


def _small_rows(decoded: DecodedFile, file: RecordFile, ranges: AcquiredRanges) -> Iterator[pa.Table]:
    first, last = ranges[0, FIRST], ranges[-1, LAST]
    if first <= file.first_offset and file.last_offset <= last:
        yield decoded.rows
    else:
        at = decoded.stretch(first, last)
        yield decoded.rows.slice(at.start, at.stop - at.start)


def _overlapping(files: Iterable[RecordFile]) -> Iterator[list[RecordFile]]:
    """Yield ascending files, together if their offsets overlap: an OPTIMIZE may have mixed them."""
    some: list[RecordFile] = []
    for file in files:
        if some and max(one.last_offset for one in some) < file.first_offset:
            yield some
            some = []
        some.append(file)
    if some:
        yield some


# ---------------------------------------------------------------------------------- rows of files that are not small


class _Picked(NamedTuple):
    """Wanted rows of a file, ascending by their number in the file."""

    file: DecodedFile
    numbers: npt.NDArray[np.intp]
    offsets: Offsets


def _picked_rows(
    opened: Sequence[DecodedFile], files: Sequence[RecordFile], ranges: AcquiredRanges
) -> Iterator[pa.Table]:
    """Yield the acquired rows of files, in the order of their offsets; of files with mixed offsets all at once."""
    found = [_picked(decoded, file, ranges) for decoded, file in zip(opened, files, strict=True)]
    tables = (pa.Table.from_batches([batch]) for one in found for batch in _decoded(one))
    offsets = np.concatenate([one.offsets for one in found])
    if (np.diff(offsets) > 0).all():
        yield from tables
    else:
        yield from map(_as_table, pa.concat_tables(tables).sort_by("offset").to_batches())


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _picked(decoded: DecodedFile, file: RecordFile, ranges: AcquiredRanges) -> _Picked:
    at = decoded.stretch(ranges[0, FIRST], ranges[-1, LAST])
    offsets = decoded.offsets[at]
    _, is_wanted = look_up(ranges[:, FIRST], ranges[:, LAST], offsets)
    is_wanted &= (file.first_offset <= offsets) & (offsets <= file.last_offset)
    numbers = np.flatnonzero(is_wanted)
    return _Picked(decoded, numbers + at.start, offsets[numbers])


def _decoded(picked: _Picked) -> Iterator[pa.RecordBatch]:
    """Yield these rows."""
    begin = 0
    for size, batches in picked.file.groups():
        low, high = np.searchsorted(picked.numbers, [begin, begin + size])
        if low < high:
            yield from _numbered(batches, picked.numbers[low:high] - begin)
        begin += size


def _numbered(batches: Iterable[pa.RecordBatch], numbers: npt.NDArray[np.intp]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with these numbers, counted from 0 over all batches."""
    begin = done = 0
    for batch in batches:
        high = int(np.searchsorted(numbers, begin + batch.num_rows))
        at = numbers[done:high] - begin
        if len(at):
            yield _taken(batch, at)
        begin, done = begin + batch.num_rows, high
        if done == len(numbers):
            return


def _taken(batch: pa.RecordBatch, at: npt.NDArray[np.intp]) -> pa.RecordBatch:
    """Return the rows with these numbers."""
    if not len(at):
        return batch.slice(0, 0)
    is_stretch = at[-1] - at[0] == len(at) - 1 and bool((np.diff(at) > 0).all())
    return batch.slice(int(at[0]), len(at)) if is_stretch else batch.take(at)


# ----------------------------------------------------------------------------------------- of these, the acquired ones


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The acquired ranges of a task. ``positions``: a piece is a section. ``partitions``: that of each piece."""

    positions: AcquiredPositions
    partitions: npt.NDArray[np.int32]

    @classmethod
    def of(cls, pieces: Pieces) -> _Wanted:
        """Return the ranges of all pieces."""
        ends = np.cumsum(pieces.sizes)
        first, last = pieces.ranges[ends - pieces.sizes, FIRST], pieces.ranges[ends - 1, LAST]
        piece = np.repeat(np.arange(len(ends)), pieces.sizes)
        partitions = np.array([files[0].partition.partition for files in pieces.files], np.int32)
        return cls(positions=AcquiredPositions.of(first, last, pieces.ranges, piece), partitions=partitions)


class _Part(NamedTuple):
    """Acquired records of one topic, with columns of the files; the partition of each, and its delivery count."""

    topic: str
    rows: pa.RecordBatch
    partitions: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]


_Rows = TypeVar("_Rows", _Stored, _Part)


def _together(found: Iterable[_Rows], most_rows: int) -> Iterator[list[_Rows]]:
    """Yield neighbours of one topic and one schema together, up to ``most_rows`` and MOST_BYTES; what has so many rows
    at once, since the next ones may not be wanted."""
    some: list[_Rows] = []
    rows = size = 0
    for one in found:
        more_rows, more_bytes = one.rows.num_rows, one.rows.nbytes
        is_full = rows + more_rows > most_rows or size + more_bytes > MOST_BYTES
        if some and (is_full or some[-1].topic != one.topic or not some[-1].rows.schema.equals(one.rows.schema)):
            yield some
            some, rows, size = [], 0, 0
        some.append(one)
        rows, size = rows + more_rows, size + more_bytes
        if rows >= most_rows:
            yield some
            some, rows, size = [], 0, 0
    if some:
        yield some


def _acquired(some: Sequence[_Stored], wanted: _Wanted) -> _Part:
    """Return the acquired rows in the order of their pieces, and of their offsets."""
    batch = _one_batch(pa.concat_tables([one.rows for one in some]))
    offsets = batch.column("offset").to_numpy()
    sizes = [one.rows.num_rows for one in some]
    piece = np.repeat([one.piece for one in some], sizes)
    first = np.repeat([one.first_offset for one in some], sizes)
    last = np.repeat([one.last_offset for one in some], sizes)
    counts = wanted.positions.delivery_counts(offsets, piece)
    at = np.flatnonzero((counts != 0) & (first <= offsets) & (offsets <= last))
    positions = wanted.positions.positions(offsets[at], piece[at])
    if not (np.diff(positions) > 0).all():
        at = at[np.argsort(positions, kind="stable")]
    return _Part(some[0].topic, _taken(batch, at), wanted.partitions[piece[at]], counts[at])


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _slices(part: _Part, size: int) -> Iterator[_Part]:
    for begin in range(0, part.rows.num_rows, size):
        end = begin + size
        yield _Part(part.topic, part.rows.slice(begin, size), part.partitions[begin:end], part.counts[begin:end])


def _in_schema(parts: Sequence[_Part], schema: pa.Schema) -> pa.RecordBatch:
    """Join parts to one batch in ``schema``."""
    batch = _one_batch(pa.Table.from_batches([part.rows for part in parts]))
    batch = batch.append_column("partition", pa.array(np.concatenate([part.partitions for part in parts])))
    batch = batch.append_column("delivery_count", pa.array(np.concatenate([part.counts for part in parts])))
    for name, change in _CHANGES.items():
        if (at := batch.schema.get_field_index(name)) >= 0:
            batch = batch.set_column(at, name, change(batch.column(at)))
    return in_schema(batch, parts[0].topic, schema)


def _in_utc(times: Any) -> Any:
    """Return the times in UTC: the kind of time that Spark writes to Parquet has no time zone."""
    return times.cast(pa.timestamp("us", "UTC"))


def _no_nulls(lists: Any) -> Any:
    """Return empty lists in place of nulls, for records without headers, as where Spark reads."""
    if not lists.null_count:
        return lists
    return pa.ListArray.from_arrays(lists.offsets, lists.values)


_CHANGES: dict[str, Any] = {"timestamp": _in_utc, "headers": _no_nulls}
