"""Record batches, read again by a decoder of the tests' own, and by kio's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records import readers

from share_spark.topics.batch_encoder import encode_batches
from share_spark.topics.varints import signed_varint, unsigned_varint
from tests.support.record_batches import Record, decoded

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGEST_MS = (1 << 63) - 1


def arrow(records: Sequence[Record], unit: str = "ms") -> pa.RecordBatch:
    """The records as a topic log reads them."""
    offsets, times, keys, values, headers = zip(*records, strict=True) if records else [()] * 5
    each = 1000 if unit == "us" else 1
    stamps = pa.array([None if time == -1 else time * each for time in times], pa.int64())
    maps = [[{"key": key, "value": value} for key, value in some] for some in headers]
    columns = {
        "topic": pa.array(["t"] * len(offsets)),
        "partition": pa.array([0] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": stamps.cast(pa.timestamp(unit, "UTC")),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array(maps, HEADERS),
    }
    return pa.RecordBatch.from_pydict(columns)


def plain(offset: int, value: bytes | None = b"v", timestamp_ms: int = 0) -> Record:
    return Record(offset, timestamp_ms, None, value, [])


contents = st.none() | st.binary(max_size=20) | st.sampled_from([b"k" * 200, b"v" * 20_000])
headers = st.lists(st.tuples(st.text(max_size=5), contents), max_size=3)
offsets = st.lists(st.integers(0, 1 << 40) | st.integers(0, 300), unique=True, max_size=30).map(sorted)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    times = st.integers(-1, 3000) | st.integers(1 - (1 << 62), 1 << 62)
    with_headers = draw(st.booleans())
    return [
        Record(offset, draw(times), draw(contents), draw(contents), draw(headers) if with_headers else [])
        for offset in draw(offsets)
    ]


@given(records(), st.integers(1, 8), st.sampled_from([1, 200, 5000, 1 << 20]))
def test_all_records_come_back(records: list[Record], most_records: int, most_bytes: int) -> None:
    encoded = list(encode_batches(arrow(records), most_records=most_records, most_bytes=most_bytes))
    batches = [decoded(batch.content) for batch in encoded]
    assert [record for batch in batches for record in batch.records] == records
    for (base_offset, last_offset, content, _), batch in zip(encoded, batches, strict=True):
        assert (base_offset, last_offset) == (batch.base_offset, batch.last_offset)
        assert (batch.records[0].offset, batch.records[-1].offset) == (base_offset, last_offset)
        assert batch.max_timestamp_ms == max(record.timestamp_ms for record in batch.records)
        assert (batch.leader_epoch, batch.attributes, batch.producer) == (-1, 0, (-1, -1, -1))
        assert len(batch.records) <= most_records
        assert len(content) <= most_bytes or len(batch.records) == 1


def test_no_records_are_no_batches() -> None:
    assert list(encode_batches(arrow([]))) == []


def test_batches_are_as_full_as_allowed() -> None:
    batches = list(encode_batches(arrow([plain(offset) for offset in range(1000)])))
    assert [len(decoded(batch.content).records) for batch in batches] == [500] * 2
    batches = list(encode_batches(arrow([plain(offset, b"v" * 1000) for offset in range(400)])))
    assert all(128_000 < len(batch.content) <= 128 << 10 for batch in batches[:-1])


def test_a_slice_of_rows_is_encoded_as_such() -> None:
    rows = [Record(offset, offset, b"k%d" % offset, None, [("h", b"%d" % offset)]) for offset in range(10)]
    (batch,) = encode_batches(arrow(rows).slice(3, 4))
    assert decoded(batch.content).records == rows[3:7]


def test_offsets_that_do_not_fit_in_one_batch_take_two() -> None:
    far = (1 << 31) - 1
    assert [batch[:2] for batch in encode_batches(arrow([plain(0), plain(far), plain(far + 1)]))] == [
        (0, far),
        (far + 1, far + 1),
    ]


@pytest.mark.parametrize("unit", ["us", "ms"])
def test_timestamps_before_1970_missing_and_extreme(unit: str) -> None:
    top = LARGEST_MS // 1000
    rows = [plain(0, timestamp_ms=-2), plain(1, timestamp_ms=-1), plain(2, timestamp_ms=top), plain(3, None, -top)]
    (batch,) = encode_batches(arrow(rows, unit))
    assert decoded(batch.content).records == rows


def test_parts_of_milliseconds_are_rounded_down() -> None:
    rows = arrow([plain(0), plain(1)], "us")
    stamps = pa.array([1999, -1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    (batch,) = encode_batches(rows.set_column(3, "timestamp", stamps))
    assert [record.timestamp_ms for record in decoded(batch.content).records] == [1, -1]


def test_headers_that_are_null_are_none() -> None:
    rows = arrow([plain(0), plain(1)])
    for headers in ([None, None], [None, [{"key": "h", "value": None}]]):
        (batch,) = encode_batches(rows.set_column(6, "headers", pa.array(headers, HEADERS)))
        found = [record.headers for record in decoded(batch.content).records]
        assert found == [[], [("h", None)] if headers[1] else []]


def test_a_header_without_a_name_has_an_empty_one() -> None:
    rows = arrow([plain(0)]).set_column(6, "headers", pa.array([[{"key": None, "value": b"x"}]], HEADERS))
    (batch,) = encode_batches(rows)
    assert [record.headers for record in decoded(batch.content).records] == [[("", b"x")]]


def test_kio_reads_the_same() -> None:
    rows = [Record(offset, 1_700_000_000_000, b"k", b"v" * offset, [("h", b"x")]) for offset in (3, 4, 70)]
    (batch,) = encode_batches(arrow(rows))
    read, size = readers.read_batch(batch.content, 0)
    assert size == len(batch.content)
    assert [(record.offset, record.key, record.value) for record in read.records] == [
        row[:1] + row[2:4] for row in rows
    ]
    assert [header.value for record in read.records for header in record.headers] == [b"x"] * 3


@given(st.integers(0, 1 << 70))
def test_unsigned_varints(number: int) -> None:
    groups = unsigned_varint(number)
    assert sum((byte & 127) << 7 * place for place, byte in enumerate(groups)) == number
    assert all(byte >= 128 for byte in groups[:-1])
    assert groups[-1] < 128


@given(st.integers(-(1 << 63), 1 << 63))
def test_signed_varints_are_in_zigzag(number: int) -> None:
    assert signed_varint(number) == unsigned_varint(2 * number if number >= 0 else -2 * number - 1)


def test_numbers_that_follow_each_other_have_lengths_that_never_fall() -> None:
    assert all(
        len(unsigned_varint(low)) <= len(unsigned_varint(high)) for low, high in pairwise(range(0, 1 << 16, 127))
    )
