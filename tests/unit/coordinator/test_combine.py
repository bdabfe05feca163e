"""Merging durable state batches, rule by rule (R79-R84, R87)."""

from __future__ import annotations

import pytest

from share_spark.coordinator import combine_batches
from share_spark.model.records import StateBatch

Batches = list[tuple[int, int, int, int]]


def combine(existing: Batches, new: Batches, start_offset: int = -1) -> Batches:
    merged = combine_batches([StateBatch(*b) for b in existing], [StateBatch(*b) for b in new], start_offset)
    return [tuple(batch) for batch in merged]


@pytest.mark.parametrize(
    ("existing", "new", "expected"),
    [
        ([], [], []),
        ([(0, 9, 0, 1)], [], [(0, 9, 0, 1)]),
        ([], [(0, 9, 0, 1)], [(0, 9, 0, 1)]),
        # Disjoint, and touching: joined only if equal in state and count.
        ([(0, 4, 0, 1)], [(6, 9, 0, 1)], [(0, 4, 0, 1), (6, 9, 0, 1)]),
        ([(0, 4, 0, 1)], [(5, 9, 0, 1)], [(0, 9, 0, 1)]),
        ([(0, 4, 0, 1)], [(5, 9, 2, 1)], [(0, 4, 0, 1), (5, 9, 2, 1)]),
        # A stronger one in the middle, at either end, all over.
        ([(0, 9, 0, 1)], [(3, 5, 2, 1)], [(0, 2, 0, 1), (3, 5, 2, 1), (6, 9, 0, 1)]),
        ([(0, 9, 0, 1)], [(0, 5, 2, 1)], [(0, 5, 2, 1), (6, 9, 0, 1)]),
        ([(0, 9, 0, 1)], [(5, 12, 2, 1)], [(0, 4, 0, 1), (5, 12, 2, 1)]),
        ([(3, 5, 0, 1)], [(0, 9, 2, 1)], [(0, 9, 2, 1)]),
        # A weaker one only fills what is free (R84).
        ([(3, 5, 2, 1)], [(0, 9, 0, 1)], [(0, 2, 0, 1), (3, 5, 2, 1), (6, 9, 0, 1)]),
        # The count goes before the state.
        ([(0, 9, 4, 1)], [(0, 9, 0, 2)], [(0, 9, 0, 2)]),
        ([(0, 9, 2, 1)], [(0, 9, 4, 1)], [(0, 9, 4, 1)]),
        # Overlaps of equals become one.
        ([(0, 5, 0, 1)], [(3, 9, 0, 1)], [(0, 9, 0, 1)]),
        # Many under one.
        ([(0, 1, 0, 1), (4, 5, 0, 1), (8, 9, 0, 1)], [(0, 9, 2, 3)], [(0, 9, 2, 3)]),
    ],
)
def test_r81_r83_the_stronger_wins_where_two_overlap(existing: Batches, new: Batches, expected: Batches) -> None:
    assert combine(existing, new) == expected


def test_r80_below_the_start_offset_nothing_is_kept() -> None:
    assert combine([(0, 4, 0, 1), (5, 9, 0, 1)], [(3, 12, 2, 1)], 8) == [(8, 12, 2, 1)]
    assert combine([(0, 4, 0, 1)], [], 5) == []


def test_r79_minus_one_prunes_nothing() -> None:
    assert combine([(0, 4, 0, 1)], [], -1) == [(0, 4, 0, 1)]


def test_r87_writing_twice_changes_nothing() -> None:
    new = [(3, 5, 2, 1), (7, 7, 0, 2)]
    once = combine([(0, 9, 0, 1)], new)
    assert combine(once, new) == once


def test_a_hundred_thousand_batches_are_one_sweep() -> None:
    """Quadratic, this would take minutes."""
    existing = [(i * 5, i * 5 + 2, 0, 1) for i in range(50_000)]
    new = [(i * 5 + 1, i * 5 + 3, 2, 1) for i in range(50_000)]
    assert len(combine(existing, new)) == 100_000
