"""Records as Arrow rows of the state log, and back. Pure: Arrow in, Arrow out, no Spark.

Rows are built and read column by column: a share-partition can carry a hundred thousand ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain, groupby, pairwise, repeat
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_spark.engine.attempts import EndedAttempt
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch, ShareRecord, ShareSnapshot, ShareUpdate
from share_spark.partition.columns import Columns, are_many, intersection, is_columns, merged, outside
from share_spark.state.group_rows import GROUP_RECORDS

SNAPSHOT, UPDATE, CLAIM = "ShareSnapshot", "ShareUpdate", "claim"
SHARE_KINDS = (SNAPSHOT, UPDATE)
"""The kinds of rows that are records of share-partitions."""

_STATE_BATCH = pa.struct(
    [
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("delivery_state", pa.int8()),
        ("delivery_count", pa.int16()),
    ]
)
_ACQUIRED = pa.struct(
    [
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("delivery_count", pa.int16()),
        ("member_id", pa.string()),
        ("lock_deadline_ms", pa.int64()),
    ]
)
_DOUBTS = pa.struct([("first_offset", pa.int64()), ("last_offset", pa.int64()), ("doubt", pa.int8())])
_DELAYS = pa.struct([("first_offset", pa.int64()), ("last_offset", pa.int64()), ("lock_deadline_ms", pa.int64())])
_EXCUSED = pa.struct([("first_offset", pa.int64()), ("last_offset", pa.int64()), ("excused", pa.int16())])
_ENDED = pa.struct(
    [
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("delivery_count", pa.int16()),
        ("outcome", pa.string()),
    ]
)
_ERRORS = pa.struct(
    [
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("delivery_count", pa.int16()),
        ("error", pa.string()),
    ]
)
RECORD_TYPE = pa.struct(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("snapshot_epoch", pa.int32()),
        ("state_epoch", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("start_offset", pa.int64()),
        ("state_batches", pa.list_(_STATE_BATCH)),
        ("acquired", pa.list_(_ACQUIRED)),
        ("doubts", pa.list_(_DOUBTS)),
        ("delays", pa.list_(_DELAYS)),
        ("excused", pa.list_(_EXCUSED)),
        ("ended", pa.list_(_ENDED)),
        ("errors", pa.list_(_ERRORS)),
        ("group_records", GROUP_RECORDS),
    ]
)
"""One record; the columns of ``tables.RECORD_COLUMNS`` in their order."""


def record_array(
    records: Sequence[tuple[str, ShareRecord]], ended: Sequence[Sequence[EndedAttempt]] | None = None
) -> pa.StructArray:
    """Return (topic name, record) pairs as RECORD_TYPE. An update has no state epoch of its own (O8): null. ``ended``:
    for the audit, per record the attempts that ended with it."""
    split = [split_ranges(record.batches) for _, record in records]
    columns: list[Any] = [
        pa.array([SNAPSHOT if isinstance(record, ShareSnapshot) else UPDATE for _, record in records]),
        pa.array([topic for topic, _ in records]),
        pa.array([record.key.topic_id for _, record in records]),
        pa.array([record.key.partition for _, record in records], pa.int32()),
        pa.array([record.snapshot_epoch for _, record in records], pa.int32()),
        pa.array([getattr(record, "state_epoch", None) for _, record in records], pa.int32()),
        pa.array([record.leader_epoch for _, record in records], pa.int32()),
        pa.array([record.start_offset for _, record in records], pa.int64()),
        *(
            _lists([parts[at] for parts in split], item, InFlightBatch._fields)
            for at, item in enumerate((_STATE_BATCH, _ACQUIRED, _DOUBTS, _DELAYS, _EXCUSED))
        ),
        *_audit_columns(ended or (), len(records)),
        _no_lists(GROUP_RECORDS.value_type, len(records)),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(RECORD_TYPE))


def _audit_columns(ended: Sequence[Sequence[EndedAttempt]], rows: int) -> list[Any]:
    """Return ``ended`` and ``errors``. Usually they are empty."""
    if not any(ended):
        return [_no_lists(item, rows) for item in (_ENDED, _ERRORS)]
    failed = [[one for one in some if one.error is not None] for some in ended]
    return [_lists(some, item, EndedAttempt._fields) for some, item in ((ended, _ENDED), (failed, _ERRORS))]


@lru_cache(maxsize=32)
def _no_lists(item: Any, rows: int) -> Any:
    """Return a list column without values. Most columns of most commits are such, and arrays do not change."""
    offsets: Any = pa.array(np.zeros(rows + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], item))


def records_in(rows: pa.Table, group_id: str) -> Iterator[tuple[str, ShareRecord]]:
    """Yield (topic name, record) of each row, in row order; the inverse of ``record_array``."""
    scalars = [_scalars(rows.column(name)) for name in _SCALARS]
    for kind, topic, topic_id, partition, snapshot_epoch, state_epoch, leader_epoch, start_offset, batches in zip(
        *scalars, _batches_in(rows), strict=True
    ):
        key = SharePartitionKey(group_id, topic_id, partition)
        if kind == SNAPSHOT:
            record: ShareRecord = ShareSnapshot(
                key=key,
                snapshot_epoch=snapshot_epoch,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                batches=batches,
            )
        else:
            record = ShareUpdate(
                key=key,
                snapshot_epoch=snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                batches=batches,
            )
        yield topic, record


_SCALARS = (
    "kind",
    "topic",
    "topic_id",
    "partition",
    "snapshot_epoch",
    "state_epoch",
    "leader_epoch",
    "start_offset",
)


def _scalars(column: Any) -> list[Any]:
    return column.to_pylist() if column.null_count else _python_values(column.combine_chunks())


def split_ranges(batches: Sequence[InFlightBatch]) -> tuple[Sequence[InFlightBatch], ...]:
    """Return the ranges that are not Acquired, those that are, those in doubt, those that are delayed, and those with
    excused deliveries."""
    if is_columns(batches):
        held = batches.mask(lambda batch: batch.delivery_state is DeliveryState.ACQUIRED)
        marks = (attrgetter("doubt"), _is_delayed, attrgetter("excused"))
        marked = (batches.where(batches.mask(is_marked)) for is_marked in marks)
        return batches.where(~held), batches.where(held), *marked
    return (
        [batch for batch in batches if batch.delivery_state is not DeliveryState.ACQUIRED],
        [batch for batch in batches if batch.delivery_state is DeliveryState.ACQUIRED],
        [batch for batch in batches if batch.doubt],
        [batch for batch in batches if _is_delayed(batch)],
        [batch for batch in batches if batch.excused],
    )


def _is_delayed(batch: InFlightBatch) -> bool:
    return batch.lock_deadline_ms is not None and batch.member_id is None


def _lists(rows: Sequence[Sequence[tuple[Any, ...]]], item: pa.StructType, names: Sequence[str]) -> Any:
    """Return a list column of structs: the fields of ``item``, from tuples, or columns, with the fields ``names``.

    The tuples of neighbouring rows are transposed at once, so that each field becomes one flat column; ``offsets`` then
    cuts the columns into lists again.
    """
    offsets = list(accumulate(map(len, rows), initial=0))
    if not offsets[-1]:
        return _no_lists(item, len(rows))
    parts = list(_parts(rows, len(names)))
    columns = [_column(parts, names.index(field.name), field) for field in item]
    values = pa.StructArray.from_arrays(columns, fields=list(item))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _parts(rows: Sequence[Sequence[tuple[Any, ...]]], width: int) -> Iterator[Any]:
    for form, some in groupby(rows, type):
        if form is Columns:
            yield from some
        else:
            yield list(zip(*chain.from_iterable(some), strict=True)) or [()] * width


def _column(parts: Sequence[Any], at: int, field: Any) -> Any:
    """Return the field at ``at`` of all ``parts``."""
    values = _texts if pa.types.is_string(field.type) else _numbers
    arrays = [values(part, at, field.type) for part in parts]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _numbers(part: Any, at: int, kind: pa.DataType) -> Any:
    """Convert by NumPy: Arrow alone would convert each enum member and each int one by one."""
    if not is_columns(part):
        numbers = np.fromiter(part[at], np.int64, len(part[at]))
    elif at < 2:
        numbers = (part.first, part.last)[at]
    else:
        numbers = part.by_kind([sample[at] for sample in part.samples], np.int64)
    return pa.array(numbers).cast(kind)


def _texts(part: Any, at: int, kind: pa.DataType) -> Any:
    if not is_columns(part):
        return pa.array(part[at], kind)
    texts: Any = pa.array([sample[at] for sample in part.samples], kind)
    return texts.take(pa.array(part.kind))


RANGE_COLUMNS = ("state_batches", "acquired")
MARK_COLUMNS = ("doubts", "delays", "excused")
"""Columns of marks on some of these ranges, each on a whole range."""

STATE_COLUMNS = (*_SCALARS, *RANGE_COLUMNS, *MARK_COLUMNS)
"""The columns that ``records_in`` needs; the others are for readers of the log."""


def _batches_in(rows: pa.Table) -> Iterator[Sequence[InFlightBatch]]:
    """Yield the ranges of each row: tuples are built for all rows together, columns row by row."""
    chunks: list[Any] = [chunk for name in RANGE_COLUMNS for chunk in rows.column(name).chunks]
    if not are_many(sum(len(chunk.values) for chunk in chunks)):
        yield from _tuples_in(rows)
        return
    lengths = [pc.fill_null(pc.list_value_length(rows.column(name)), 0) for name in RANGE_COLUMNS]
    is_large = [are_many(count) for count in np.asarray(pc.add(*lengths)).tolist()]
    if not any(is_large):
        yield from _tuples_in(rows)
        return
    ranges = rows.select([*RANGE_COLUMNS, *MARK_COLUMNS])
    small = _tuples_in(ranges.filter(pa.array([not large for large in is_large], pa.bool_())))
    for row, large in enumerate(is_large):
        yield _columns_in(ranges.slice(row, 1)) if large else next(small)


def _tuples_in(rows: pa.Table) -> Iterator[tuple[InFlightBatch, ...]]:
    settled = _in_flight(rows.column("state_batches"), _settled_batches)
    held = _in_flight(rows.column("acquired"), _held_batches)
    for ranges, owned, *marks in zip(settled, held, *(_marks(rows.column(name)) for name in MARK_COLUMNS), strict=True):
        yield _marked(sorted(ranges + owned), *marks)


def _columns_in(row: pa.Table) -> Columns[InFlightBatch]:
    """Return the ranges of one row."""
    settled, held, doubted, delayed, excused = (_fields(row.column(name)) for name in (*RANGE_COLUMNS, *MARK_COLUMNS))
    batches = merged(
        _encoded(settled, lambda state, count: (_STATE_OF[state], count, None, None)),
        _encoded(held, lambda count, member_id, deadline_ms: (DeliveryState.ACQUIRED, count, member_id, deadline_ms)),
    )
    batches = batches.recoded(InFlightBatch, [(*kind, Doubt.NONE, 0) for kind in batches.kinds])
    batches = _changed(batches, doubted, lambda kind, doubt: (*kind[:4], Doubt(doubt), 0))
    batches = _changed(batches, delayed, lambda kind, until_ms: (*kind[:3], until_ms, *kind[4:]))
    return _changed(batches, excused, lambda kind, deliveries: (*kind[:5], deliveries))


def _changed(
    batches: Columns[InFlightBatch], fields: Sequence[Any], kind_of: Callable[[tuple[Any, ...], Any], tuple[Any, ...]]
) -> Columns[InFlightBatch]:
    """Return ``batches``, with another kind for ranges that have a mark in ``fields``: ``kind_of`` makes it from their
    kind and the mark."""
    if not len(fields[0]):
        return batches
    marks: Columns[Any] = _encoded(fields, lambda mark: (mark,))
    found = intersection(InFlightBatch, batches, marks)
    found = found.recoded(InFlightBatch, [kind_of(kind[:-1], kind[-1]) for kind in found.kinds])
    return merged(found, outside(batches, marks))


def _fields(column: Any) -> list[Any]:
    fields: list[Any] = column.combine_chunks().flatten().flatten()
    return fields


def _encoded(fields: Sequence[Any], kind_of: Callable[..., tuple[Any, ...]]) -> Columns[InFlightBatch]:
    """Return columns from Arrow arrays: first offset, last offset, and others whose values ``kind_of`` makes a kind of.

    Each array becomes numbers of its distinct values; all of them together become one number, as digits:

        state     2  0  0  2        digit  0  1  1  0
        count     1  1  3  1        digit  0  0  1  0        number  0  2  3  0        kind  0  1  2  0
    """
    first, last, *rest = fields
    number = np.zeros(len(first), np.int64)
    for field in rest:
        encoded = field.dictionary_encode()
        number = number * len(encoded.dictionary) + np.asarray(encoded.indices)
    whole = pa.array(number).dictionary_encode()
    kind = np.asarray(whole.indices)
    _, examples = np.unique(kind, return_index=True)
    kinds = zip(*(field.take(examples).to_pylist() for field in rest), strict=True)
    return Columns(
        InFlightBatch, np.asarray(first), np.asarray(last), kind, tuple(kind_of(*values) for values in kinds)
    )


def _marked(
    batches: list[InFlightBatch], doubts: Mapping[int, int], delays: Mapping[int, int], excused: Mapping[int, int]
) -> tuple[InFlightBatch, ...]:
    """Return ``batches`` with these marks, by first offset."""
    if doubts:
        batches = [batch._replace(doubt=Doubt(doubts.get(batch.first_offset, Doubt.NONE))) for batch in batches]
    if delays:
        batches = [
            batch._replace(lock_deadline_ms=delays[batch.first_offset]) if batch.first_offset in delays else batch
            for batch in batches
        ]
    if excused:
        batches = [batch._replace(excused=excused.get(batch.first_offset, 0)) for batch in batches]
    return tuple(batches)


_UNMARKED: Mapping[int, int] = {}


def _marks(column: Any) -> Iterator[Mapping[int, int]]:
    """Yield the marks of each row by first offset."""
    for chunk in column.chunks:
        if not len(chunk.flatten()):
            yield from repeat(_UNMARKED, len(chunk))
            continue
        yield from map(
            dict, _in_flight(pa.chunked_array([chunk]), lambda first, _, marks: zip(first, marks, strict=True))
        )


def _in_flight(column: Any, build: Any) -> Iterator[list[Any]]:
    for chunk in column.chunks:
        values = chunk.flatten()
        batches = list(build(*map(_python_values, values.flatten())))
        ends = [0, *_running_total(chunk)]
        for start, end in pairwise(ends):
            yield batches[start:end]


def _running_total(chunk: Any) -> list[int]:
    total = 0
    totals = []
    for length in chunk.value_lengths().to_pylist():
        total += length or 0
        totals.append(total)
    return totals


def _python_values(column: Any) -> list[Any]:
    """Return numbers by NumPy, and each distinct text as one object: a segment can hold 100,000,000 ranges."""
    if not pa.types.is_string(column.type):
        found: list[Any] = np.asarray(column).tolist()
        return found
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return [texts[index] for index in np.asarray(encoded.indices).tolist()]


# InFlightBatch._make without a call of a Python function for each range.
_batch = partial(tuple.__new__, InFlightBatch)
_STATE_OF = {int(state): state for state in DeliveryState}
_UNDOUBTED = repeat(Doubt.NONE), repeat(0)


def _settled_batches(first: list[int], last: list[int], state: list[int], count: list[int]) -> Iterator[InFlightBatch]:
    states = map(_STATE_OF.__getitem__, state)
    return map(_batch, zip(first, last, states, count, repeat(None), repeat(None), *_UNDOUBTED, strict=False))


def _held_batches(
    first: list[int], last: list[int], count: list[int], member_id: list[str], deadline_ms: list[int]
) -> Iterator[InFlightBatch]:
    held = repeat(DeliveryState.ACQUIRED)
    return map(_batch, zip(first, last, held, count, member_id, deadline_ms, *_UNDOUBTED, strict=False))
