"""Encodes records as Kafka's record batches of version 2, the form in which its clients fetch them.

    batch   header (61 bytes), then its records
    record  length, attributes (0), timestamp - that of the first, offset - that of the first, key, value, headers

All lengths and differences of a record are signed varints; a length of -1 is null. Offsets may have gaps, as in a log
that was compacted. See "Record Batch" in Kafka's documentation of its message format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from share_spark.engine.batch_reader import BATCH_RECORDS, RecordBatch
from share_spark.topics.varints import signed_varint

MOST_BYTES = 128 << 10
"""The size of a batch by default; a broker's limit is a megabyte."""

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

_Numbers = npt.NDArray[np.int64]


def encode_batches(
    records: pa.RecordBatch, *, most_records: int = BATCH_RECORDS, most_bytes: int = MOST_BYTES
) -> Iterator[RecordBatch]:
    """Encode records of one partition, with ascending offsets, in batches of at most ``most_records``.

    ``records``: the columns of ``engine.ports.RECORD_COLUMNS``; those of the partition are not read. A batch takes at
    most ``most_bytes``, unless it is of a single record. All records are encoded at once, column by column: a loop over
    records takes ten times as long.
    """
    if not records.num_rows:
        return
    key, value, headers = records.column("key"), records.column("value"), _headers(records.column("headers"))
    offsets, times = records.column("offset").to_numpy(), _timestamps_ms(records.column("timestamp"))
    keys, values = _lengths(key), _lengths(value)
    contents = _sized(keys) + _sized(values) + _lengths(headers)
    cuts = _cuts(contents + _LARGEST_HEAD, offsets, most_records, most_bytes)
    begins = np.array(cuts[:-1])
    since = offsets - np.repeat(offsets[begins], np.diff(cuts)), times - np.repeat(times[begins], np.diff(cuts))
    attributes = np.zeros_like(offsets)
    lengths = 1 + _sizes(_zigzag(since[0])) + _sizes(_zigzag(since[1])) + contents
    heads = _varints(lengths, attributes, since[1], since[0], keys)
    largest = np.maximum.reduceat(times, begins)
    ends, encoded = _joined(heads, key, _varints(values), value, headers)
    for number, (begin, end) in enumerate(pairwise(cuts)):
        content = encoded[ends[begin] : ends[end]]
        base_offset, last_offset = int(offsets[begin]), int(offsets[end - 1])
        body = _BODY.pack(
            *(0, last_offset - base_offset, int(times[begin]), int(largest[number])),
            *(_NONE, _NONE, _NONE, end - begin),
        )
        size, checksum = _COUNTED_HEAD + len(body) + len(content), crc32c(content, crc32c(body))
        head = _HEAD.pack(base_offset, size, _NONE, _MAGIC, checksum)
        yield RecordBatch(base_offset, last_offset, b"".join((head, body, content)))


def _cuts(sizes: _Numbers, offsets: _Numbers, most_records: int, most_bytes: int) -> list[int]:
    """Return where each batch begins, and at last the number of all records."""
    total = np.concatenate(([0], np.cumsum(sizes)))
    cuts = [0]
    while (begin := cuts[-1]) < len(sizes):
        full = int(np.searchsorted(total, total[begin] + most_bytes - _HEADER_SIZE, "right")) - 1
        too_far = int(np.searchsorted(offsets, int(offsets[begin]) + _MOST_OFFSETS, "right"))
        cuts.append(max(begin + 1, min(begin + most_records, full, too_far)))
    return cuts


def _joined(*columns: Any) -> tuple[list[int], memoryview]:
    """Return the columns of all records, record by record: where each begins, at last the end of all, and the bytes."""
    records: Any = pc.binary_join_element_wise(*columns, b"", null_handling="replace", null_replacement="")
    _, offsets, content = records.buffers()
    return np.frombuffer(offsets, np.int32, len(records) + 1).tolist(), memoryview(content)


# -------------------------------------------------------------------------------------------------- columns


def _timestamps_ms(column: pa.Array[Any]) -> _Numbers:
    # Rounded down, so that times before 1970 are as well.
    units = column.fill_null(_NONE * _UNITS_PER_MS[column.type.unit]).cast(pa.int64()).to_numpy()
    return units // _UNITS_PER_MS[column.type.unit]


def _lengths(column: Any) -> _Numbers:
    """Return the length of each, -1 for null."""
    found: _Numbers = pc.binary_length(column).fill_null(_NONE).to_numpy().astype(np.int64)
    return found


def _headers(column: pa.Array[Any]) -> Any:
    """Return the headers of each record, encoded. Most topics have none, which is found out without making objects."""
    if not pc.any(pc.greater(pc.list_value_length(column), pa.scalar(0))).as_py():
        return pa.repeat(pa.scalar(_NO_HEADERS), len(column))
    lists = (_NO_HEADERS if not headers else _header_list(headers) for headers in column.to_pylist())
    return pa.array(lists, pa.binary())


def _header_list(headers: Sequence[Mapping[str, Any]]) -> bytes:
    # Clients of Kafka refuse a record with a header whose name is null, which tables can have.
    parts = (_text((header["key"] or "").encode()) + _text(header["value"]) for header in headers)
    return signed_varint(len(headers)) + b"".join(parts)


def _text(content: bytes | None) -> bytes:
    return _NULL if content is None else signed_varint(len(content)) + content


_NULL = signed_varint(-1)
_NO_HEADERS = signed_varint(0)


# -------------------------------------------------------------------------------------------------- varints


def _varints(*columns: _Numbers) -> Any:
    """Return the signed varints of each record, one after the other, as an Arrow array."""
    numbers = [_zigzag(column) for column in columns]
    sizes = [_sizes(column) for column in numbers]
    ends = np.concatenate(([0], np.cumsum(sum(sizes))))
    content = np.empty(int(ends[-1]), np.uint8)
    at = ends[:-1]
    for column, size in zip(numbers, sizes, strict=True):
        for place in range(int(size.max())):
            here = size > place
            more = (size > place + 1).astype(np.uint8) << 7
            byte = (column >> np.uint64(7 * place)).astype(np.uint8) & 0x7F | more
            content[at[here] + place] = byte[here]
        at = at + size
    parts: list[Any] = [ends.astype(np.int32), content]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, *map(pa.py_buffer, parts)])


def _zigzag(numbers: _Numbers) -> npt.NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _sizes(numbers: npt.NDArray[np.uint64]) -> _Numbers:
    """Return the bytes that each takes: a group of 7 bits is a byte."""
    found = np.ones(len(numbers), np.int64)
    rest = numbers >> np.uint64(7)
    while rest.any():
        found += rest != 0
        rest = rest >> np.uint64(7)
    return found


def _sized(lengths: _Numbers) -> _Numbers:
    """Return the bytes that contents of these lengths take with their length."""
    return _sizes(_zigzag(lengths)) + np.maximum(lengths, 0)
