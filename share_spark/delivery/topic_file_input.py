"""Acquired records that workers take from the Parquet files of a topic log themselves.

Spark would plan a scan, shuffle the records over the tasks, sort them and send them to Python: for a micro-batch of
some ten thousand records that takes several times as long as to decode them. Here the acquired ranges are laid end to
end and cut into one equal piece for each task, and a task opens the files that have records of its piece:

    acquired    orders-0 [0 ............ 9]   orders-1 [4] [7 ... 9]      14 offsets, 2 tasks
    task 0               [0 ...... 6]
    task 1                          [7 . 9]            [4] [7 ... 9]
    files       orders-0 |0 .. 4|5 ... 11|    orders-1 |0 ....... 20|

Offsets without a record are missing in the files, and so in what a task gets.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.delivery.task_inputs import in_schema
from share_spark.engine.ports import AcquiredSpan, TopicLog
from share_spark.engine.ranges import DELIVERY_COUNT, FIRST, LAST, AcquiredRanges, look_up
from share_spark.engine.record_files import RecordFile, TopicLogInFiles
from share_spark.engine.spans import covering_spans
from share_spark.model.ids import TopicPartition

_MOST_BYTES = 64 << 20
"""Of a batch."""

_MOST_DECODED_ROWS = 10_000
"""At a time."""

_FIRST_ROWS = 100
"""Decoded to see how large the rows of a row group are. Its size does not tell: Parquet stores equal values once."""

_SMALL_BYTES = 1 << 20
"""Of a file."""

_STORED = ("offset", "timestamp", "key", "value", "headers")
"""Columns of the files."""


class Piece(NamedTuple):
    """What a task takes of one topic-partition. ``ranges``: ascending. ``files``: at least one."""

    ranges: AcquiredRanges
    files: tuple[RecordFile, ...]


class Pieces(NamedTuple):
    """What a task takes, in columns, as ten thousand arrays take long to pickle. ``ranges``: of all topic-partitions,
    one after the other. ``ends``, ``files``: of each one, where its ranges end, and its files."""

    ranges: AcquiredRanges
    ends: tuple[int, ...]
    files: tuple[tuple[RecordFile, ...], ...]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Pieces:
        """Of all of them."""
        ranges = np.concatenate([np.empty((0, 3), np.int64), *(piece.ranges for piece in pieces)])
        ends = itertools.accumulate(len(piece.ranges) for piece in pieces)
        return cls(AcquiredRanges(ranges), tuple(ends), tuple(piece.files for piece in pieces))

    def each(self) -> Iterator[Piece]:
        """One after the other."""
        for (begin, end), files in zip(itertools.pairwise((0, *self.ends)), self.files, strict=True):
            yield Piece(AcquiredRanges(self.ranges[begin:end]), files)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFileInput:
    """``pieces``: of each task, pickled: a task opens its own only. ``most_rows``: of a batch."""

    pieces: tuple[bytes, ...]
    most_rows: int

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises OSError, pa.ArrowException."""
        if task < len(self.pieces):
            pieces: Pieces = pickle.loads(self.pieces[task])
            parts = (part for piece in pieces.each() for part in _records(piece, schema))
            yield from _combined(parts, schema, self.most_rows)


# ------------------------------------------------------------------------------------------------------ on the driver


def topic_file_input(
    log: TopicLog, acquired: Sequence[AcquiredSpan], *, tasks: int, most_rows: int
) -> TopicFileInput | None:
    """None where Spark has to read the records. Raises TopicError."""
    if not acquired or not isinstance(log, TopicLogInFiles):
        return None
    files = log.files(covering_spans(acquired))
    if files is None:
        return None
    by_partition: dict[TopicPartition, list[RecordFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    pieces = (Pieces.of(list(_pieces(some, by_partition))) for some in in_equal_parts(acquired, tasks))
    return TopicFileInput(pieces=tuple(pickle.dumps(one, protocol=5) for one in pieces), most_rows=most_rows)


def in_equal_parts(acquired: Iterable[AcquiredSpan], parts: int) -> list[list[AcquiredSpan]]:
    """The ranges ascending, each part with as many offsets as the others, but for one."""
    by_place = sorted(acquired, key=attrgetter("partition"))
    of = np.repeat(np.arange(len(by_place)), [len(one.ranges) for one in by_place])
    laid = np.concatenate([one.ranges for one in by_place])
    laid = laid[np.lexsort((laid[:, FIRST], of))]
    total = int((laid[:, LAST] - laid[:, FIRST] + 1).sum())
    bounds = [total * part // parts for part in range(parts + 1)]
    cut = (_between(laid, low, high) for low, high in itertools.pairwise(bounds))
    return [_spans(by_place, ranges[is_left], of[is_left]) for ranges, is_left in cut]


def _between(ranges: npt.NDArray[np.int64], low: int, high: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Of the offsets in ``ranges``, counted from 0: those from ``low`` to before ``high``; and in which ranges there
    are some.

    ranges      [10 ... 14]  [20]  [30 ... 34]         low 3, high 8
    counted       0 ...  4     5     6 ... 10
    returned       [13  14]  [20]  [30  31]
    """
    sizes = ranges[:, LAST] - ranges[:, FIRST] + 1
    begins = np.cumsum(sizes) - sizes
    first = ranges[:, FIRST] + np.clip(low - begins, 0, sizes)
    last = ranges[:, FIRST] + np.clip(high - begins, 0, sizes) - 1
    return np.column_stack([first, last, ranges[:, DELIVERY_COUNT]]), first <= last


def _spans(
    places: Sequence[AcquiredSpan], ranges: npt.NDArray[np.int64], of: npt.NDArray[np.intp]
) -> list[AcquiredSpan]:
    """``ranges`` by the place that each is of."""
    if not len(of):
        return []
    begins = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist()]
    ends = [*begins[1:], len(of)]
    return [
        AcquiredSpan(places[at].partition, AcquiredRanges(ranges[begin:end]))
        for at, begin, end in zip(of[begins].tolist(), begins, ends, strict=True)
    ]


def _pieces(some: Iterable[AcquiredSpan], files: dict[TopicPartition, list[RecordFile]]) -> Iterator[Piece]:
    for one in some:
        first, last = int(one.ranges[0, FIRST]), int(one.ranges[-1, LAST])
        inside = [
            file for file in files.get(one.partition, ()) if file.first_offset <= last and first <= file.last_offset
        ]
        if inside:
            yield Piece(one.ranges, tuple(sorted(inside, key=attrgetter("first_offset"))))


# ------------------------------------------------------------------------------------------------------- in a worker


class _Rows(NamedTuple):
    """Rows of a file that are wanted, ascending by their number in the file."""

    file: pq.ParquetFile
    numbers: npt.NDArray[np.intp]
    offsets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]


class _Part(NamedTuple):
    """Records of one topic-partition in the order of their offsets, with the columns of their file, and their delivery
    counts."""

    partition: TopicPartition
    rows: pa.RecordBatch
    counts: npt.NDArray[np.int32]


def _records(piece: Piece, schema: pa.Schema) -> Iterator[_Part]:
    """In the order of their offsets."""
    partition = piece.files[0].partition
    columns = [name for name in _STORED if name == "offset" or name in schema.names]
    for files in _overlapping(piece.files):
        opened = [_opened(file.path) for file in files]
        if len(files) == 1 and _is_small(opened[0].metadata):
            yield from _of_small_file(opened[0], files[0], piece.ranges, columns)
            continue
        found = [_wanted_rows(parquet, file, piece.ranges) for parquet, file in zip(opened, files, strict=True)]
        parts = (_Part(partition, *taken) for rows in found for taken in _decoded(rows, columns))
        offsets = np.concatenate([rows.offsets for rows in found])
        if (np.diff(offsets) > 0).all():
            yield from parts
        elif batches := [_placed([part], schema) for part in parts]:
            for batch in pa.Table.from_batches(batches).sort_by("offset").to_batches():
                yield _Part(partition, batch, batch.column("delivery_count").to_numpy())


def _overlapping(files: Iterable[RecordFile]) -> Iterator[list[RecordFile]]:
    """Ascending files, those together whose offsets overlap: an OPTIMIZE may have mixed them."""
    some: list[RecordFile] = []
    for file in files:
        if some and max(one.last_offset for one in some) < file.first_offset:
            yield some
            some = []
        some.append(file)
    yield some


def _opened(path: str) -> pq.ParquetFile:
    """A small file is read in one piece: reads by pyarrow's own threads, a few for each file, would take longer than to
    decode it."""
    source = pa.OSFile(path, "rb")
    if source.size() > _SMALL_BYTES:
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    with source:
        content = pa.BufferReader(source.read_buffer())
    return pq.ParquetFile(content, coerce_int96_timestamp_unit="us", pre_buffer=False)


def _is_small(metadata: pq.FileMetaData) -> bool:
    """May all of it be decoded at once, even if each row should be as large as all that is stored?"""
    stored = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return metadata.num_rows <= _MOST_DECODED_ROWS and metadata.num_rows * stored <= _MOST_BYTES


def _of_small_file(
    parquet: pq.ParquetFile, file: RecordFile, ranges: AcquiredRanges, columns: list[str]
) -> Iterator[_Part]:
    """Decoded once. To open a file takes ten times as long as its ten records, so little else is done for each."""
    table = parquet.read(columns, use_threads=False).combine_chunks()
    for batch in table.to_batches():
        offsets = batch.column("offset").to_numpy()
        at, counts = _wanted(offsets, file, ranges)
        if not (np.diff(offsets[at]) > 0).all():
            order = np.argsort(offsets[at], kind="stable")
            at, counts = at[order], counts[order]
        if len(at):
            yield _Part(file.partition, _taken(batch, at), counts)


def _wanted_rows(parquet: pq.ParquetFile, file: RecordFile, ranges: AcquiredRanges) -> _Rows:
    offsets = parquet.read(["offset"]).column("offset").to_numpy()
    numbers, counts = _wanted(offsets, file, ranges)
    return _Rows(parquet, numbers, offsets[numbers], counts)


def _wanted(
    offsets: npt.NDArray[np.int64], file: RecordFile, ranges: AcquiredRanges
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """(numbers of the rows, their delivery counts)."""
    at, is_wanted = look_up(ranges[:, FIRST], ranges[:, LAST], offsets)
    is_wanted &= (file.first_offset <= offsets) & (offsets <= file.last_offset)
    numbers = np.flatnonzero(is_wanted)
    return numbers, ranges[at[numbers], DELIVERY_COUNT].astype(np.int32)


def _decoded(rows: _Rows, columns: list[str]) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
    """The wanted rows with the ``columns`` that the file has, and their delivery counts."""
    columns = [name for name in rows.file.schema_arrow.names if name in columns]
    begin = 0
    for group in range(rows.file.num_row_groups):
        size = rows.file.metadata.row_group(group).num_rows
        low, high = np.searchsorted(rows.numbers, [begin, begin + size])
        if low < high:
            batches = _batches(rows.file, group, columns)
            yield from _picked(batches, rows.numbers[low:high] - begin, rows.counts[low:high])
        begin += size


def _batches(file: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows of the row group, as many at a time as are not too large."""
    first = next(file.iter_batches(_FIRST_ROWS, [group], columns, use_threads=False))
    bytes_per_row = first.nbytes // first.num_rows + 1
    size = min(max(_MOST_BYTES // bytes_per_row, 1), _MOST_DECODED_ROWS)
    return file.iter_batches(size, [group], columns, use_threads=False)


def _picked(
    batches: Iterable[pa.RecordBatch], numbers: npt.NDArray[np.intp], counts: npt.NDArray[np.int32]
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
    """The rows with these numbers, counted from 0 over all batches."""
    begin = done = 0
    for batch in batches:
        high = int(np.searchsorted(numbers, begin + batch.num_rows))
        at = numbers[done:high] - begin
        if len(at):
            yield _taken(batch, at), counts[done:high]
        begin, done = begin + batch.num_rows, high
        if done == len(numbers):
            return


def _taken(batch: pa.RecordBatch, at: npt.NDArray[np.intp]) -> pa.RecordBatch:
    """The rows with these numbers, at least one."""
    is_stretch = at[-1] - at[0] == len(at) - 1 and bool((np.diff(at) > 0).all())
    return batch.slice(int(at[0]), len(at)) if is_stretch else batch.take(at)


def _combined(parts: Iterable[_Part], schema: pa.Schema, most_rows: int) -> Iterator[pa.RecordBatch]:
    """Small parts together, up to ``most_rows`` and _MOST_BYTES, in ``schema``; larger ones in pieces."""
    some: list[_Part] = []
    rows = size = 0
    for part in (piece for whole in parts for piece in _slices(whole, most_rows)):
        more_rows, more_bytes = part.rows.num_rows, part.rows.nbytes
        is_full = rows + more_rows > most_rows or size + more_bytes > _MOST_BYTES
        if some and (is_full or not _is_alike(some[-1], part)):
            yield _placed(some, schema)
            some, rows, size = [], 0, 0
        some.append(part)
        rows, size = rows + more_rows, size + more_bytes
    if some:
        yield _placed(some, schema)


def _slices(part: _Part, size: int) -> Iterator[_Part]:
    if part.rows.num_rows <= size:
        yield part
        return
    for begin in range(0, part.rows.num_rows, size):
        yield _Part(part.partition, part.rows.slice(begin, size), part.counts[begin : begin + size])


def _is_alike(one: _Part, other: _Part) -> bool:
    """Of one topic, and in files of one schema?"""
    return one.partition.topic == other.partition.topic and one.rows.schema.equals(other.rows.schema)


def _placed(parts: Sequence[_Part], schema: pa.Schema) -> pa.RecordBatch:
    """Parts that are alike as one batch in ``schema``."""
    table = pa.Table.from_batches([part.rows for part in parts]).combine_chunks()
    (batch,) = table.to_batches()
    partitions = np.array([part.partition.partition for part in parts], np.int32)
    known: dict[str, Any] = {
        "partition": np.repeat(partitions, [len(part.counts) for part in parts]),
        "delivery_count": np.concatenate([part.counts for part in parts]),
    }
    for name, numbers in known.items():
        if name not in batch.schema.names:
            batch = batch.append_column(name, pa.array(numbers))
    for name, change in _CHANGES.items():
        if (at := batch.schema.get_field_index(name)) >= 0:
            batch = batch.set_column(at, name, change(batch.column(at)))
    return in_schema(batch, parts[0].partition.topic, schema)


def _in_utc(times: Any) -> Any:
    """Parquet's own kind of time that Spark writes has no time zone."""
    return times.cast(pa.timestamp("us", "UTC"))


def _no_nulls(lists: Any) -> Any:
    """No headers are an empty list, as where Spark reads."""
    if not lists.null_count:
        return lists
    return pa.ListArray.from_arrays(lists.offsets, lists.values)


_CHANGES: dict[str, Any] = {"timestamp": _in_utc, "headers": _no_nulls}
