"""The small pure functions of the micro-batch: gaps between acknowledgements, errors of ranges."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.engine.micro_batch import cut_by_error, with_gaps
from share_spark.engine.step import Ranges


def ranges(*rows: tuple[int, int, int]) -> Ranges:
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def by_offset(rows: list[tuple[int, int, object]]) -> dict[int, object]:
    """Third column per offset; the ranges must be disjoint and ascend."""
    offsets = [offset for first, last, _ in rows for offset in range(first, last + 1)]
    assert offsets == sorted(set(offsets))
    return {offset: what for first, last, what in rows for offset in range(first, last + 1)}


def test_what_nobody_reported_is_a_gap() -> None:
    """R19: before, between and after what was reported, and a whole range of it."""
    acquired = ranges((0, 9, 1), (20, 24, 1))
    assert with_gaps(acquired, ranges((2, 3, 1), (6, 8, 2))).tolist() == [
        [0, 1, 0],
        [2, 3, 1],
        [4, 5, 0],
        [6, 8, 2],
        [9, 9, 0],
        [20, 24, 0],
    ]


def test_a_reported_run_may_reach_over_acquired_ranges_of_different_counts() -> None:
    acquired = ranges((38, 39, 3), (40, 56, 2))
    assert with_gaps(acquired, ranges((38, 45, 2), (47, 47, 2))).tolist() == [
        [38, 45, 2],
        [46, 46, 0],
        [47, 47, 2],
        [48, 56, 0],
    ]


def test_nothing_reported_is_all_gaps() -> None:
    assert with_gaps(ranges((5, 6, 1)), ranges()).tolist() == [[5, 6, 0]]


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 40), st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1))
def test_gaps_fill_exactly_what_is_missing(wanted: dict[int, tuple[int, int]]) -> None:
    """Per offset: (delivery count, acknowledge type or 0 for not reported), against a plain loop."""
    acquired = runs({offset: count for offset, (count, _) in wanted.items()})
    said = runs({offset: kind for offset, (_, kind) in wanted.items() if kind})
    filled = with_gaps(ranges(*acquired), ranges(*said)).tolist()
    assert by_offset(filled) == {offset: kind for offset, (_, kind) in wanted.items()}


def runs(by_offset: dict[int, int]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for offset in sorted(by_offset):
        if found and found[-1][1:] == (offset - 1, by_offset[offset]):
            found[-1] = (found[-1][0], offset, by_offset[offset])
        else:
            found.append((offset, offset, by_offset[offset]))
    return found


def test_errors_cut_a_range() -> None:
    errors = [(2, 3, "a"), (5, 5, "b"), (8, 20, "c")]
    assert cut_by_error(0, 9, errors) == [
        (0, 1, None),
        (2, 3, "a"),
        (4, 4, None),
        (5, 5, "b"),
        (6, 7, None),
        (8, 9, "c"),
    ]


def test_errors_that_end_before_a_range_or_begin_after_it_do_not_concern_it() -> None:
    assert cut_by_error(4, 6, [(0, 3, "before"), (7, 9, "after")]) == [(4, 6, None)]
    assert cut_by_error(4, 6, []) == [(4, 6, None)]


@settings(deadline=None)
@given(
    st.tuples(st.integers(0, 15), st.integers(0, 15)).map(sorted),
    st.dictionaries(st.integers(0, 20), st.sampled_from([1, 2])),
)
def test_every_offset_keeps_its_own_error(span: list[int], errors: dict[int, int]) -> None:
    first, last = span
    told = [(low, high, str(text)) for low, high, text in runs(errors)]
    wanted = {o: str(errors[o]) if o in errors else None for o in range(first, last + 1)}
    assert by_offset(cut_by_error(first, last, told)) == wanted
