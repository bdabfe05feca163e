"""The small pure functions of the micro-batch: what acknowledgements leave out, errors of ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.engine.answers import are_inside, filled, output_lost
from share_spark.engine.attempts import cut_by_error
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.ranges import Ranges
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss
from tests.support.answers import answered

GAP = AcknowledgeType.GAP


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
    assert filled(acquired, answered([(2, 3, 1), (6, 8, 2)]), GAP) == (
        (0, 1, 0),
        (2, 3, 1),
        (4, 5, 0),
        (6, 8, 2),
        (9, 9, 0),
        (20, 24, 0),
    )


def test_a_reported_run_may_reach_over_acquired_ranges_of_different_counts() -> None:
    acquired = ranges((38, 39, 3), (40, 56, 2))
    assert filled(acquired, answered([(38, 45, 2), (47, 47, 2)]), GAP) == (
        (38, 45, 2),
        (46, 46, 0),
        (47, 47, 2),
        (48, 56, 0),
    )


def test_nothing_reported_is_all_gaps() -> None:
    assert filled(ranges((5, 6, 1)), (), GAP) == ((5, 6, 0),)


def test_what_a_broken_delivery_does_not_mention_was_not_entered() -> None:
    found = filled(ranges((0, 4, 1)), answered([(1, 2, 1)]), Loss.NOT_ENTERED)
    assert found == ((0, 0, Loss.NOT_ENTERED), (1, 2, 1), (3, 4, Loss.NOT_ENTERED))


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 40), st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1))
def test_gaps_fill_exactly_what_is_missing(wanted: dict[int, tuple[int, int]]) -> None:
    """Per offset: (delivery count, acknowledge type or 0 for not reported), against a plain loop."""
    acquired = runs({offset: count for offset, (count, _) in wanted.items()})
    said = runs({offset: kind for offset, (_, kind) in wanted.items() if kind})
    found = filled(ranges(*acquired), answered(said), GAP)
    assert by_offset(list(found)) == {offset: kind for offset, (_, kind) in wanted.items()}


@given(st.sets(st.integers(0, 30)), st.lists(st.integers(0, 31)))
def test_which_offsets_are_inside(covered: set[int], asked: list[int]) -> None:
    found = answered(runs(dict.fromkeys(covered, 1)))
    assert are_inside(found, asked) == [offset in covered for offset in asked]


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
    said = [(low, high, str(text)) for low, high, text in runs(errors)]
    wanted = {o: str(errors[o]) if o in errors else None for o in range(first, last + 1)}
    assert by_offset(cut_by_error(first, last, said)) == wanted


@pytest.mark.parametrize(("is_explained", "loss"), [(True, Loss.FINISHED), (False, Loss.AFTER_HANDLER)])
def test_lost_output_takes_back_what_was_accepted_and_nothing_else(is_explained: bool, loss: Loss) -> None:
    """A death that one record is known for puts no other in doubt."""
    at = TopicPartition("orders", 0)
    span = AcknowledgedSpan(at, answered([(0, 3, 1), (4, 4, 2), (5, 9, 1)]), [(4, 4, "worker lost")])
    lost = output_lost(span, "gone", is_explained=is_explained)
    assert lost.ranges == ((0, 3, loss), (4, 4, 2), (5, 9, loss))
    assert lost.errors == [(0, 3, "gone"), (4, 4, "worker lost"), (5, 9, "gone")]
