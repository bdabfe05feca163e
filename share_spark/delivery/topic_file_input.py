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
from share_spark.engine.ranges import DELIVERY_COUNT, FIRST, LAST, AcquiredRanges, ascending, offsets_in
from share_spark.engine.record_files import RecordFile, TopicLogInFiles
from share_spark.engine.spans import covering_spans
from share_spark.model.ids import TopicPartition

_MOST_BYTES = 64 << 20
"""Of a batch."""

_MOST_DECODED_ROWS = 10_000
"""At a time."""

_FIRST_ROWS = 100
"""Decoded to see how large the rows of a row group are. Its size does not tell: Parquet stores equal values once."""


class Piece(NamedTuple):
    """What a task takes of one topic-partition. ``ranges``: ascending."""

    partition: TopicPartition
    ranges: AcquiredRanges
    files: tuple[RecordFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFileInput:
    """``pieces``: of each task. ``most_rows``: of a batch."""

    pieces: tuple[tuple[Piece, ...], ...]
    most_rows: int

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises OSError, pa.ArrowException."""
        pieces = self.pieces[task] if task < len(self.pieces) else ()
        for piece in pieces:
            yield from _combined(_records(piece, schema), self.most_rows)


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
    pieces = (_pieces(some, by_partition) for some in in_equal_parts(acquired, tasks))
    return TopicFileInput(pieces=tuple(map(tuple, pieces)), most_rows=most_rows)


def in_equal_parts(acquired: Iterable[AcquiredSpan], parts: int) -> list[list[AcquiredSpan]]:
    """The ranges ascending, each part with as many offsets as the others, but for one."""
    by_place = sorted(acquired, key=attrgetter("partition"))
    ordered = [AcquiredSpan(one.partition, AcquiredRanges(ascending(one.ranges))) for one in by_place]
    sizes = [offsets_in(one.ranges) for one in ordered]
    bounds = [sum(sizes) * part // parts for part in range(parts + 1)]
    begins = np.cumsum([0, *sizes])[:-1].tolist()
    return [
        [
            AcquiredSpan(one.partition, _between(one.ranges, low - begin, high - begin))
            for one, begin, size in zip(ordered, begins, sizes, strict=True)
            if low < begin + size and begin < high
        ]
        for low, high in itertools.pairwise(bounds)
    ]


def _between(ranges: AcquiredRanges, low: int, high: int) -> AcquiredRanges:
    """Of the offsets in ``ranges``, counted from 0: those from ``low`` to before ``high``.

    ranges      [10 ... 14]  [20]  [30 ... 34]         low 3, high 8
    counted       0 ...  4     5     6 ... 10
    returned       [13  14]  [20]  [30  31]
    """
    sizes = ranges[:, LAST] - ranges[:, FIRST] + 1
    begins = np.cumsum(sizes) - sizes
    first = ranges[:, FIRST] + np.clip(low - begins, 0, sizes)
    last = ranges[:, FIRST] + np.clip(high - begins, 0, sizes) - 1
    cut = np.column_stack([first, last, ranges[:, DELIVERY_COUNT]])
    return AcquiredRanges(cut[first <= last])


def _pieces(some: Iterable[AcquiredSpan], files: dict[TopicPartition, list[RecordFile]]) -> Iterator[Piece]:
    for one in some:
        first, last = one.ranges[0, FIRST], one.ranges[-1, LAST]
        inside = [
            file for file in files.get(one.partition, ()) if file.first_offset <= last and first <= file.last_offset
        ]
        if inside:
            yield Piece(one.partition, one.ranges, tuple(sorted(inside, key=attrgetter("first_offset"))))


# ------------------------------------------------------------------------------------------------------- in a worker


class _Rows(NamedTuple):
    """Rows of a file that are wanted, ascending by their number in the file."""

    file: pq.ParquetFile
    numbers: npt.NDArray[np.intp]
    offsets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]


def _records(piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """In the order of their offsets."""
    for files in _overlapping(piece.files):
        found = [_wanted_rows(file, piece.ranges) for file in files]
        batches = (_with_place(batch, piece, schema) for rows in found for batch in _decoded(rows, schema))
        offsets = np.concatenate([rows.offsets for rows in found])
        if (np.diff(offsets) > 0).all():
            yield from batches
        elif table := list(batches):
            yield from pa.Table.from_batches(table).sort_by("offset").to_batches()


def _overlapping(files: Iterable[RecordFile]) -> Iterator[list[RecordFile]]:
    """Ascending files, those together whose offsets overlap: an OPTIMIZE may have mixed them."""
    some: list[RecordFile] = []
    for file in files:
        if some and max(one.last_offset for one in some) < file.first_offset:
            yield some
            some = []
        some.append(file)
    yield some


def _wanted_rows(file: RecordFile, ranges: AcquiredRanges) -> _Rows:
    parquet = pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us")
    offsets = parquet.read(["offset"]).column("offset").to_numpy()
    at = np.maximum(np.searchsorted(ranges[:, FIRST], offsets, side="right") - 1, 0)
    is_wanted = (ranges[at, FIRST] <= offsets) & (offsets <= ranges[at, LAST])
    is_wanted &= (file.first_offset <= offsets) & (offsets <= file.last_offset)
    numbers = np.flatnonzero(is_wanted)
    return _Rows(parquet, numbers, offsets[numbers], ranges[at[numbers], DELIVERY_COUNT].astype(np.int32))


def _decoded(rows: _Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The wanted rows with the columns of the file that are in ``schema``, and their delivery counts."""
    columns = [name for name in rows.file.schema_arrow.names if name in schema.names]
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
) -> Iterator[pa.RecordBatch]:
    """The rows with these numbers, counted from 0 over all batches."""
    begin = done = 0
    for batch in batches:
        high = int(np.searchsorted(numbers, begin + batch.num_rows))
        at = numbers[done:high] - begin
        if len(at):
            is_stretch = at[-1] - at[0] == len(at) - 1
            taken = batch.slice(int(at[0]), len(at)) if is_stretch else batch.take(at)
            yield taken.append_column("delivery_count", pa.array(counts[done:high]))
        begin, done = begin + batch.num_rows, high
        if done == len(numbers):
            return


def _with_place(batch: pa.RecordBatch, piece: Piece, schema: pa.Schema) -> pa.RecordBatch:
    topic, partition = piece.partition
    placed = batch.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows))
    for name, change in _CHANGES.items():
        if (at := placed.schema.get_field_index(name)) >= 0:
            placed = placed.set_column(at, name, change(placed.column(at)))
    return in_schema(placed, topic, schema)


def _in_utc(times: Any) -> Any:
    """Parquet's own kind of time that Spark writes has no time zone."""
    return times.cast(pa.timestamp("us", "UTC"))


def _no_nulls(lists: Any) -> Any:
    """No headers are an empty list, as where Spark reads."""
    if not lists.null_count:
        return lists
    return pa.ListArray.from_arrays(lists.offsets, lists.values)


_CHANGES: dict[str, Any] = {"timestamp": _in_utc, "headers": _no_nulls}


def _combined(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Small batches together, up to ``most_rows`` and _MOST_BYTES; larger ones in parts."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in (part for whole in batches for part in _slices(whole, most_rows)):
        if some and (rows + batch.num_rows > most_rows or size + batch.nbytes > _MOST_BYTES):
            yield _one(some)
            some, rows, size = [], 0, 0
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if some:
        yield _one(some)


def _slices(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    return (batch.slice(begin, size) for begin in range(0, batch.num_rows, size))


def _one(some: list[pa.RecordBatch]) -> pa.RecordBatch:
    return some[0] if len(some) == 1 else pa.Table.from_batches(some).combine_chunks().to_batches()[0]
