"""The records of an Arrow batch, as handlers of one record see them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from share_spark.handlers.handler import Record
from share_spark.model.moments import FIRST_MOMENT, LAST_MOMENT

_SECONDS = FIRST_MOMENT.timestamp(), LAST_MOMENT.timestamp()
"""The limits in seconds. As float they are exact to the microsecond up to the year 2255."""


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """Return the records of a batch. A column that was not read leaves its field at the default."""
    columns = [_VALUES[name](batch, name) for name in Record._fields]
    rows = zip(*columns, strict=False)
    return map(_record, itertools.islice(rows, batch.num_rows))


_record = functools.partial(tuple.__new__, Record)
"""``Record._make`` without the call of a Python function for each record."""


def _numbers(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if name not in batch.schema.names:
        return itertools.repeat(Record._field_defaults[name])
    values: list[int] = batch.column(name).to_numpy(zero_copy_only=False).tolist()
    return values


def _names(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    """Return the topics: few different ones, mostly one."""
    encoded = batch.column(name).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return itertools.repeat(names[0])
    return [names[index] for index in encoded.indices.to_numpy(zero_copy_only=False).tolist()]


def _bytes(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if not _filled(batch, name):
        return itertools.repeat(None)
    values: list[bytes | None] = batch.column(name).to_numpy(zero_copy_only=False).tolist()
    return values


def _times(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    """Return aware datetimes in UTC, from FIRST_MOMENT to LAST_MOMENT."""
    if not _filled(batch, name):
        return itertools.repeat(None)
    column: Any = batch.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    seconds = np.clip(column.fill_null(0).to_numpy() / 1e6, *_SECONDS).tolist()
    times = map(datetime.fromtimestamp, seconds, itertools.repeat(UTC))
    if not column.null_count:
        return times
    return [time if known else None for time, known in zip(times, column.is_valid().to_pylist(), strict=True)]


def _headers(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if not _filled(batch, name):
        return itertools.repeat(())
    lists: Any = batch.column(name)
    if not len(lists.flatten()):
        return itertools.repeat(())
    return [tuple((header["key"], header["value"]) for header in each or ()) for each in lists.to_pylist()]


def _filled(batch: pa.RecordBatch, name: str) -> bool:
    """Return whether the column was read and holds anything but nulls."""
    if name not in batch.schema.names:
        return False
    column = batch.column(name)
    return column.null_count < len(column)


_VALUES: dict[str, Callable[[pa.RecordBatch, str], Iterable[Any]]] = {
    **dict.fromkeys(("partition", "offset", "delivery_count"), _numbers),
    **dict.fromkeys(("key", "value"), _bytes),
    "topic": _names,
    "timestamp": _times,
    "headers": _headers,
}
