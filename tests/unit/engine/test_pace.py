"""How many records a micro-batch may acquire: the measured rate times the budget of time."""

from __future__ import annotations

import pytest

from share_spark.engine.acquisition_limits import FIRST_RECORDS, Pace
from tests.support.engine_world import ACCEPT, InMemoryGroup

BUDGET_MS = 10_000


def test_before_anything_is_measured_the_first_micro_batch_is_bounded() -> None:
    assert Pace().most_records(10**9, BUDGET_MS) == FIRST_RECORDS
    assert Pace().most_records(7, BUDGET_MS) == 7


def test_a_slow_handler_gets_what_it_can_do_within_the_budget() -> None:
    """Ten a second for ten seconds, less a fifth for workers that have more than others."""
    assert Pace(records_per_s=10).most_records(10**9, BUDGET_MS) == 80


def test_a_fast_handler_is_bounded_by_the_setting_only() -> None:
    assert Pace(records_per_s=1e6).most_records(500_000, BUDGET_MS) == 500_000


def test_one_record_is_always_tried() -> None:
    assert Pace(records_per_s=0.001).most_records(500, BUDGET_MS) == 1


def test_a_handler_that_has_become_slower_is_believed_at_once_and_a_faster_one_half() -> None:
    assert Pace(records_per_s=1_000).after(200, 2.0).records_per_s == 100
    assert Pace(records_per_s=1_000).after(3_000, 1.0).records_per_s == 2_000


@pytest.mark.parametrize(("entered", "busy_s"), [(0, 50.0), (99, 0.9)])
def test_too_little_says_nothing(entered: int, busy_s: float) -> None:
    """Nothing was entered; or it may have been the first call, which imports and connects."""
    assert Pace(records_per_s=5).after(entered, busy_s) == Pace(records_per_s=5)
    assert Pace().after(entered, busy_s) == Pace()


@pytest.mark.parametrize(("entered", "busy_s", "rate"), [(100, 0.5, 200), (2, 4.0, 0.5)])
def test_many_records_or_much_time_is_a_measurement(entered: int, busy_s: float, rate: float) -> None:
    assert Pace().after(entered, busy_s).records_per_s == rate


def test_a_handler_that_took_no_time_that_a_clock_can_see_has_no_bound() -> None:
    assert Pace().after(1_000, 0.0).most_records(10**9, BUDGET_MS) == 10**9


def test_an_engine_acquires_by_its_pace() -> None:
    world = InMemoryGroup(handler=lambda *_: ACCEPT, delivery__budget__ms=1_000)
    world.produce(100)
    engine = world.engine()
    engine.engine._limits.pace = Pace(records_per_s=10)
    assert engine.run().acquired == 8
