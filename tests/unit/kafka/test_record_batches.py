"""The headers of record batches, as a broker sends them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_spark.kafka.record_batches import BatchHeader, batch_headers


def batch(base_offset: int, last_offset: int, body: bytes = b"", attributes: int = 0, producer_id: int = -1) -> bytes:
    after_crc = struct.pack(">hiqqqhii", attributes, last_offset - base_offset, 0, 0, producer_id, -1, -1, 1) + body
    return struct.pack(">qiibI", base_offset, 9 + len(after_crc), 5, 2, 77) + after_crc


def test_headers_say_offsets_place_and_kind() -> None:
    content = batch(100, 147, b"x" * 39) + batch(148, 148, b"mark", 0x30, 4000) + batch(149, 160, b"", 0x14, 4000)
    assert list(batch_headers(content)) == [
        BatchHeader(0, 100, 100, 147, is_transactional=False, is_control=False, producer_id=-1),
        BatchHeader(100, 165, 148, 148, is_transactional=True, is_control=True, producer_id=4000),
        BatchHeader(165, 226, 149, 160, is_transactional=True, is_control=False, producer_id=4000),
    ]


def test_a_batch_that_is_cut_is_left_out_wherever_it_is_cut() -> None:
    whole = batch(0, 9, b"x" * 50)
    content = memoryview(whole + batch(10, 19, b"x" * 50))
    for end in range(len(whole), len(content)):
        assert [header.last_offset for header in batch_headers(content[:end])] == [9]
    assert [header.last_offset for header in batch_headers(content)] == [9, 19]


@pytest.mark.parametrize("size", [-(1 << 31), -1, 0, 48])
def test_a_size_below_that_of_a_header_is_refused(size: int) -> None:
    content = bytearray(batch(0, 9) * 2)
    content[61 + 8 : 61 + 12] = struct.pack(">i", size)
    with pytest.raises(ValueError, match="no record batch of version 2 at byte 61"):
        list(batch_headers(content))


def test_another_version_is_refused() -> None:
    content = bytearray(batch(0, 9))
    content[16] = 1
    with pytest.raises(ValueError, match="at byte 0"):
        list(batch_headers(content))


@given(st.binary(max_size=300))
def test_any_bytes_end(content: bytes) -> None:
    try:
        for header in batch_headers(content):
            assert 0 <= header.begin < header.end <= len(content)
    except ValueError:
        pass
