"""Encodes records as Kafka's record batches of version 2, the form in which its clients fetch them.

    batch   header (61 bytes), then its records
    record  length, attributes (0), timestamp - that of the first, offset - that of the first, key, value, headers

All lengths and differences of a record are signed varints; a length of -1 is null. Offsets may have gaps, as in a log
that was compacted. See "Record Batch" in Kafka's documentation of its message format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from share_spark.engine.batch_reader import RecordBatch
from share_spark.topics.varints import signed_varint

MOST_RECORDS = 100
MOST_BYTES = 16 << 10
"""The limits of a batch by default: about those that Kafka's producers make."""

_MAGIC = 2
_NONE = -1
"""The header's word for: not known (timestamp, leader epoch), and without (producer)."""

_HEAD = struct.Struct(">qiibI")
"""Base offset, length of all that follows, leader epoch, magic, checksum of the body."""
_COUNTED_HEAD = _HEAD.size - struct.calcsize(">qi")
_BODY = struct.Struct(">hiqqqhii")
"""Attributes, last offset - base offset, first and largest timestamp, id, epoch and sequence of a producer, count."""

_HEADER_SIZE = _HEAD.size + _BODY.size

_MOST_OFFSETS = (1 << 31) - 1
_LARGEST_HEAD = 21
"""The bytes of a record before its key, at most: lengths of 5 bytes, a timestamp of 10, and the attributes."""

_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


_Row = tuple[int, int, bytes]
"""A record: its offset, its timestamp in milliseconds, and its key, value and headers as they are encoded."""


def encode_batches(
    records: pa.RecordBatch, *, most_records: int = MOST_RECORDS, most_bytes: int = MOST_BYTES
) -> Iterator[RecordBatch]:
    """Encode records of one partition, with ascending offsets, in batches of at most ``most_records``.

    ``records``: the columns of ``engine.ports.RECORD_COLUMNS``; those of the partition are not read. A batch takes at
    most ``most_bytes``, unless it is of a single record.
    """
    return map(_encoded, _cut(_rows(records), most_records, most_bytes))


def _cut(rows: Iterable[_Row], most_records: int, most_bytes: int) -> Iterator[list[_Row]]:
    """Yield the rows of each batch."""
    batch: list[_Row] = []
    size = _HEADER_SIZE
    for row in rows:
        offset, _, content = row
        size += _LARGEST_HEAD + len(content)
        is_full = len(batch) == most_records or size > most_bytes
        if batch and (is_full or offset - batch[0][0] > _MOST_OFFSETS):
            yield batch
            batch = []
            size = _HEADER_SIZE + _LARGEST_HEAD + len(content)
        batch.append(row)
    if batch:
        yield batch


def _encoded(batch: Sequence[_Row]) -> RecordBatch:
    base_offset, base_ms, _ = batch[0]
    records: list[bytes] = []
    for offset, timestamp_ms, content in batch:
        record = b"\x00" + _signed(timestamp_ms - base_ms) + _signed(offset - base_offset) + content
        records += (_signed(len(record)), record)
    last_offset, *_ = batch[-1]
    body = _BODY.pack(
        *(0, last_offset - base_offset, base_ms, max(timestamp_ms for _, timestamp_ms, _ in batch)),
        *(_NONE, _NONE, _NONE, len(batch)),
    ) + b"".join(records)
    head = _HEAD.pack(base_offset, _COUNTED_HEAD + len(body), _NONE, _MAGIC, crc32c(body))
    return RecordBatch(base_offset, last_offset, head + body)


# -------------------------------------------------------------------------------------------------- rows


def _rows(records: pa.RecordBatch) -> Iterator[_Row]:
    columns: list[list[Any]] = [records.column(name).to_pylist() for name in ("offset", "key", "value")]
    offsets, keys, values = columns
    contents = map(_content, keys, values, _headers(records.column("headers")))
    return zip(offsets, _timestamps_ms(records.column("timestamp")), contents, strict=True)


def _timestamps_ms(column: pa.Array[Any]) -> list[int]:
    # Rounded down, so that times before 1970 are as well.
    units = column.fill_null(_NONE * _UNITS_PER_MS[column.type.unit]).cast(pa.int64()).to_numpy()
    times: list[int] = (units // _UNITS_PER_MS[column.type.unit]).tolist()
    return times


def _content(key: bytes | None, value: bytes | None, headers: bytes) -> bytes:
    return _sized(key) + _sized(value) + headers


def _sized(content: bytes | None) -> bytes:
    return _NULL if content is None else _signed(len(content)) + content


def _headers(column: pa.Array[Any]) -> Iterable[bytes]:
    """Return the headers of each record, encoded. Most topics have none, which is found out without making objects."""
    if not pc.any(pc.greater(pc.list_value_length(column), pa.scalar(0))).as_py():
        return repeat(_NO_HEADERS)
    return (_NO_HEADERS if not headers else _header_list(headers) for headers in column.to_pylist())


def _header_list(headers: Sequence[Mapping[str, Any]]) -> bytes:
    # Clients of Kafka refuse a record with a header whose name is null, which tables can have.
    parts = (_sized((header["key"] or "").encode()) + _sized(header["value"]) for header in headers)
    return _signed(len(headers)) + b"".join(parts)


def _signed(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < len(_SMALL) else signed_varint(number)


_SMALL = [signed_varint(number) for number in range(1 << 12)]
_NULL = signed_varint(-1)
_NO_HEADERS = signed_varint(0)
