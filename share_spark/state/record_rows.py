"""Records as Arrow rows of the state log, and back. Pure: Arrow in, Arrow out, no Spark.

Rows are built and read column by column: a share-partition can carry a hundred thousand ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from share_spark.engine.step import EndedAttempt
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch, ShareRecord, ShareSnapshot, ShareUpdate

SNAPSHOT, UPDATE, CLAIM = "ShareSnapshot", "ShareUpdate", "claim"

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
_ENDED = pa.struct(
    [
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("delivery_count", pa.int16()),
        ("outcome", pa.string()),
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
        ("ended", pa.list_(_ENDED)),
    ]
)
"""One record; the columns of ``tables.RECORD_COLUMNS`` in their order."""


def record_array(
    records: Sequence[tuple[str, ShareRecord]], ended: Sequence[Sequence[EndedAttempt]] | None = None
) -> pa.StructArray:
    """(topic name, record) pairs as RECORD_TYPE. An update has no state epoch of its own (O8): null. ``ended``: for the
    audit, per record the attempts that ended with it."""
    split = [_split(record) for _, record in records]
    doubted = [[batch for batch in record.batches if batch.doubt] for _, record in records]
    columns: list[Any] = [
        pa.array([SNAPSHOT if isinstance(record, ShareSnapshot) else UPDATE for _, record in records]),
        pa.array([topic for topic, _ in records]),
        pa.array([record.key.topic_id for _, record in records]),
        pa.array([record.key.partition for _, record in records], pa.int32()),
        pa.array([record.snapshot_epoch for _, record in records], pa.int32()),
        pa.array([getattr(record, "state_epoch", None) for _, record in records], pa.int32()),
        pa.array([record.leader_epoch for _, record in records], pa.int32()),
        pa.array([record.start_offset for _, record in records], pa.int64()),
        _lists([settled for settled, _ in split], _STATE_BATCH, InFlightBatch._fields),
        _lists([held for _, held in split], _ACQUIRED, InFlightBatch._fields),
        _lists(doubted, _DOUBTS, InFlightBatch._fields),
        _lists(ended or [()] * len(records), _ENDED, EndedAttempt._fields),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(RECORD_TYPE))


def records_in(rows: pa.Table, group_id: str) -> Iterator[tuple[str, ShareRecord]]:
    """(topic name, record) of each row, in row order; the inverse of ``record_array``."""
    scalars = [rows.column(name).to_pylist() for name in _SCALARS]
    settled = _in_flight(rows.column("state_batches"), _settled_batches)
    held = _in_flight(rows.column("acquired"), _held_batches)
    doubted = _in_flight(rows.column("doubts"), _doubts)
    for kind, topic, topic_id, partition, snapshot_epoch, state_epoch, leader_epoch, start_offset in zip(
        *scalars, strict=True
    ):
        batches = _with_doubts(sorted(next(settled) + next(held)), dict(next(doubted)))
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


def _split(record: ShareRecord) -> tuple[list[InFlightBatch], list[InFlightBatch]]:
    settled = [batch for batch in record.batches if batch.delivery_state is not DeliveryState.ACQUIRED]
    held = [batch for batch in record.batches if batch.delivery_state is DeliveryState.ACQUIRED]
    return settled, held


def _lists(rows: Sequence[Sequence[tuple[Any, ...]]], item: pa.StructType, names: Sequence[str]) -> Any:
    """A list column of structs: the fields of ``item``, out of tuples with the fields ``names``.

    The tuples of all rows are transposed at once, so that each field becomes one flat column; ``offsets`` then cuts the
    columns into lists again.
    """
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    flat = list(zip(*chain.from_iterable(rows), strict=True)) or [()] * len(names)
    columns = [_column(flat[names.index(field.name)], field.type) for field in item]
    values = pa.StructArray.from_arrays(columns, fields=list(item))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _column(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Numbers by way of NumPy: Arrow alone would convert each enum member and each int one by one."""
    if pa.types.is_string(kind):
        return pa.array(values, kind)
    return pa.array(np.fromiter(values, np.int64, len(values))).cast(kind)


def _with_doubts(batches: list[InFlightBatch], doubts: dict[int, Doubt]) -> tuple[InFlightBatch, ...]:
    """``doubts`` by first offset: a run is in doubt as a whole."""
    if not doubts:
        return tuple(batches)
    return tuple(batch._replace(doubt=doubts.get(batch.first_offset, Doubt.NONE)) for batch in batches)


def _doubts(first: list[int], _last: list[int], doubts: list[int]) -> Iterator[tuple[int, Doubt]]:
    return zip(first, map(Doubt, doubts), strict=True)


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
    """Numbers by way of NumPy, and each text once, however often it is there: a segment can hold 100,000,000 ranges."""
    if not pa.types.is_string(column.type):
        found: list[Any] = np.asarray(column).tolist()
        return found
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return [texts[index] for index in np.asarray(encoded.indices).tolist()]


# InFlightBatch._make without the call of a Python function for each range.
_batch = partial(tuple.__new__, InFlightBatch)
_STATE_OF = {int(state): state for state in DeliveryState}


def _settled_batches(first: list[int], last: list[int], state: list[int], count: list[int]) -> Iterator[InFlightBatch]:
    states = map(_STATE_OF.__getitem__, state)
    return map(_batch, zip(first, last, states, count, repeat(None), repeat(None), repeat(Doubt.NONE), strict=False))


def _held_batches(
    first: list[int], last: list[int], count: list[int], member_id: list[str], deadline_ms: list[int]
) -> Iterator[InFlightBatch]:
    held = repeat(DeliveryState.ACQUIRED)
    return map(_batch, zip(first, last, held, count, member_id, deadline_ms, repeat(Doubt.NONE), strict=False))
