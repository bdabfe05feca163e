"""Offsets of a hand-over, and the records that were found."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from share_spark.companion.messages import HandOver
from share_spark.companion.reading import Handed, offset_runs, read_batches, record_schema
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges
from tests.support.companion_process import AT, record_stream

OFFSETS = st.sets(st.integers(0, 40), max_size=30)


def each(handed: Handed) -> list[int]:
    return [offset for run in handed.unread() for offset in range(run.first_offset, run.last_offset + 1)]


@given(OFFSETS)
def test_runs_are_as_long_as_they_can_be(offsets: set[int]) -> None:
    runs = list(offset_runs(AT, np.array(sorted(offsets), np.int64)))
    assert [offset for run in runs for offset in range(run.first_offset, run.last_offset + 1)] == sorted(offsets)
    assert all(later.first_offset > run.last_offset + 1 for run, later in itertools.pairwise(runs))


@given(OFFSETS, OFFSETS)
def test_what_was_not_read_is_known(acquired: set[int], missing: set[int]) -> None:
    ranges = AcquiredRanges(np.array([(offset, offset, 1) for offset in sorted(acquired)], np.int64).reshape(-1, 3))
    stream = record_stream(sorted(acquired - missing))
    handed = Handed(message=HandOver(1, [AcquiredSpan(AT, ranges)], None, stream))
    for read in read_batches(handed, record_schema(("value",)), 10):
        assert [record.value for record in read.records] == [b"%d" % record.offset for record in read.records]
        handed.note_read(read.offsets)
    assert each(handed) == sorted(acquired & missing)
    assert handed.left == len(acquired - missing)


def test_only_the_columns_that_are_asked_for_are_read() -> None:
    assert record_schema(("key",)).names == ["topic", "partition", "offset", "key", "delivery_count"]
