"""Which stretches of the log are read for a set of acquired ranges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import OffsetSpan
from share_spark.engine.spans import MAX_READS, READ_COST_OFFSETS, covering_spans
from share_spark.model.ids import TopicPartition

AT = TopicPartition("orders", 3)


def acquired(*ranges: tuple[int, int]) -> AcquiredSpan:
    return AcquiredSpan(AT, np.array([(*one, 1) for one in ranges], dtype=np.int64).reshape(-1, 3))


def spans(*ranges: tuple[int, int]) -> list[OffsetSpan]:
    return [OffsetSpan("orders", 3, *one) for one in ranges]


def test_neighbouring_ranges_are_one_read() -> None:
    assert covering_spans([acquired((0, 4), (100, 104))]) == spans((0, 104))


def test_a_gap_that_is_worth_a_read_cuts() -> None:
    far = READ_COST_OFFSETS + 5
    assert covering_spans([acquired((0, 4), (far, far))]) == spans((0, 4), (far, far))
    assert covering_spans([acquired((0, 4), (far - 1, far))]) == spans((0, far))


def test_ranges_may_come_in_any_order() -> None:
    far = 10 * READ_COST_OFFSETS
    assert covering_spans([acquired((far, far + 1), (0, 4))]) == spans((0, 4), (far, far + 1))


def test_beyond_the_bound_the_widest_gaps_are_cut() -> None:
    step = READ_COST_OFFSETS
    starts = np.cumsum([0] + [step + 10 * gap for gap in range(2 * MAX_READS)])
    found = covering_spans([acquired(*((int(at), int(at)) for at in starts))])
    assert len(found) == MAX_READS
    assert [span.first_offset for span in found[1:]] == starts[-(MAX_READS - 1) :].tolist()


def test_nothing_acquired_reads_nothing() -> None:
    assert covering_spans([acquired()]) == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 30_000)), min_size=1, max_size=20))
def test_everything_acquired_is_covered_and_nothing_is_read_twice(parts: list[tuple[int, int]]) -> None:
    ranges, at = [], 0
    for gap, size in parts:
        ranges.append((at + gap, at + gap + size - 1))
        at = ranges[-1][1] + 1
    found = covering_spans([acquired(*ranges)])
    assert len(found) <= MAX_READS
    assert all(one.last_offset < other.first_offset for one, other in pairwise(found))
    assert all(any(span.first_offset <= a and b <= span.last_offset for span in found) for a, b in ranges)
    firsts, lasts = {a for a, _ in ranges}, {b for _, b in ranges}
    assert all(span.first_offset in firsts and span.last_offset in lasts for span in found)
