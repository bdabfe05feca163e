"""The line of a share-partition: exact where ranges are few, shares of colour where they are many."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_spark.model.records import InFlightBatch
from share_spark.partition import offsets_by_state
from share_spark.web.offset_line import OffsetLine, Slice, offset_line
from tests.support.group_details import run, scattered, state

COLUMNS = 480


def test_a_window_without_ranges_is_empty() -> None:
    assert offset_line(state(0, 7, []), COLUMNS) == OffsetLine(start_offset=7, end_offset=7)


def test_few_ranges_are_slices_of_their_own() -> None:
    runs = [run("Q", 10, 19), run("V", 20, 20, 3), run("D", 30, 39)]
    line = offset_line(state(0, 10, runs), COLUMNS)
    assert (line.start_offset, line.end_offset, line.size) == (10, 40, 30)
    assert [one.run for one in line.slices] == runs
    assert [one.by_state for one in line.slices] == [(0, 10, 0, 0), (1, 0, 0, 0), (0, 0, 10, 0)]


def test_what_is_acquired_below_the_spso_is_shown() -> None:
    line = offset_line(state(0, 100, [run("Q", 40, 49), run("Q", 100, 109)]), COLUMNS)
    assert (line.start_offset, line.end_offset) == (40, 110)


def test_one_range_beside_a_hundred_thousand() -> None:
    assert len(offset_line(state(0, 0, [run("Q", 0, 10**9)]), COLUMNS).slices) == 1
    many = scattered(0, 100_000)
    line = offset_line(many, COLUMNS)
    assert len(line.slices) <= COLUMNS
    assert sums(line.slices) == list(offsets_by_state(many).values())
    assert line.slices[-1].by_state[3] == line.slices[-1].last_offset - line.slices[-1].first_offset + 1


def test_neighbours_of_one_state_are_one_slice() -> None:
    runs = [run("VD"[at % 2], at, at) for at in range(200)] + [run("Q", 200, 9_999)]
    line = offset_line(state(0, 0, runs), 100)
    assert [one.by_state for one in line.slices] == [(50, 0, 50, 0), (50, 0, 50, 0), (0, 9_800, 0, 0)]


def sums(slices: tuple[Slice, ...]) -> list[int]:
    return [sum(found) for found in zip(*(one.by_state for one in slices), strict=True)]


@st.composite
def windows(draw: st.DrawFn) -> list[InFlightBatch]:
    at, runs = draw(st.integers(0, 5)), []
    for letter, gap, size in draw(
        st.lists(st.tuples(st.sampled_from("VQDX"), st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=60)
    ):
        runs.append(run(letter, at + gap, at + gap + size - 1))
        at += gap + size
    return runs


@given(windows(), st.integers(1, 300))
@pytest.mark.parametrize("start", [0, 3])
def test_slices_are_in_order_and_lose_no_offset(start: int, runs: list[InFlightBatch], columns: int) -> None:
    window = state(0, start, runs)
    line = offset_line(window, columns)
    assert sums(line.slices) == list(offsets_by_state(window).values())
    assert all(one.last_offset < other.first_offset for one, other in pairwise(line.slices))
    assert line.start_offset <= line.slices[0].first_offset
    assert line.slices[-1].last_offset in (runs[-1].last_offset, line.end_offset - 1)
    assert len(line.slices) <= max(1, columns)
