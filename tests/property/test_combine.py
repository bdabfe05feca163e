"""``combine_batches`` against a dict of offsets (R80-R84, R87)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from share_spark.coordinator import combine_batches
from share_spark.model.records import StateBatch


@st.composite
def state_batch(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 30))
    last = first + draw(st.integers(0, 8))
    return StateBatch(first, last, draw(st.sampled_from([0, 2, 4])), draw(st.integers(0, 3)))


BATCHES = st.lists(state_batch(), max_size=12)


def by_offset(batches: list[StateBatch], start_offset: int) -> dict[int, tuple[int, int]]:
    """(count, state) of each offset: the greatest of all that name it."""
    out: dict[int, tuple[int, int]] = {}
    for first, last, state, count in batches:
        for offset in range(first, last + 1):
            if offset >= start_offset:
                out[offset] = max(out.get(offset, (-1, -1)), (count, state))
    return out


@given(existing=BATCHES, new=BATCHES, start_offset=st.integers(-1, 35))
def test_each_offset_has_its_greatest_count_and_state(
    existing: list[StateBatch], new: list[StateBatch], start_offset: int
) -> None:
    merged = combine_batches(existing, new, start_offset)
    assert by_offset(list(merged), -1) == by_offset(existing + new, start_offset)
    for left, right in pairwise(merged):
        assert left.last_offset < right.first_offset, "sorted and disjoint"
        touching = left.last_offset + 1 == right.first_offset
        assert not (touching and left[2:] == right[2:]), "canonical"


@given(existing=BATCHES, new=BATCHES, start_offset=st.integers(-1, 35))
def test_writing_again_changes_nothing(existing: list[StateBatch], new: list[StateBatch], start_offset: int) -> None:
    once = combine_batches(existing, new, start_offset)
    assert combine_batches(once, new, start_offset) == once
