"""How the calls at a time of a group are divided over its companions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.companion.shares import Calling, shares
from tests.support.examples import examples

IDLE = Calling(0, 0)


def test_shares_are_as_equal_as_they_can_be() -> None:
    assert shares(10, [IDLE]) == [10]
    assert shares(10, [IDLE, IDLE, IDLE]) == [4, 3, 3]
    assert shares(2, [IDLE, IDLE, IDLE]) == [1, 1, 0]


def test_a_new_companion_gets_what_the_calls_of_others_leave() -> None:
    assert shares(100, [Calling(100, 100), IDLE]) == [50, 0]
    assert shares(100, [Calling(50, 80), IDLE]) == [50, 20]
    assert shares(100, [Calling(50, 50), Calling(20, 20)]) == [50, 50]


def test_calls_of_companions_that_take_no_more_records_count() -> None:
    assert shares(100, [Calling(50, 50)], elsewhere=50) == [50]
    assert shares(100, [Calling(50, 50), IDLE], elsewhere=50) == [25, 0]
    assert shares(10, [Calling(50, 50)], elsewhere=50) == [0]


def test_fewer_calls_take_from_all() -> None:
    assert shares(80, [Calling(50, 50), Calling(50, 50)]) == [40, 40]


COMPANIONS = st.lists(st.builds(Calling, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5)


@given(st.integers(0, 20), COMPANIONS, st.integers(0, 9))
@settings(max_examples=examples(300))
def test_more_calls_never_run_than_before_or_than_may(most: int, companions: list[Calling], elsewhere: int) -> None:
    before = sum(max(one) for one in companions) + elsewhere
    found = shares(most, companions, elsewhere)
    after = sum(max(share, one.running) for share, one in zip(found, companions, strict=True)) + elsewhere
    assert after <= max(most, before)
    assert min(found) >= 0


@given(st.integers(0, 20), COMPANIONS)
def test_shares_become_equal_once_the_calls_are_within_them(most: int, companions: list[Calling]) -> None:
    for _ in range(3):
        found = shares(most, companions)
        companions = [Calling(share, 0) for share in found]
    assert sum(found) == most
    assert max(found) - min(found) <= 1
