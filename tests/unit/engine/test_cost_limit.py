"""The limit on what accepted records cost: a bucket that is charged after the fact, and what an engine acquires."""

from __future__ import annotations

from random import Random

import pytest

from share_spark.engine.cost_limit import FIRST_RECORDS, CostLimit
from tests.support.engine_world import ACCEPT, InMemoryGroup
from tests.twins.memory_delivery import Answer

BUDGET_MS = 10_000


def limit_at(now_ms: int, units_per_s: float = 100) -> CostLimit:
    """A limit that has been there since 0 ms."""
    return CostLimit().at(0, BUDGET_MS, units_per_s).at(now_ms, BUDGET_MS, units_per_s)


def test_without_a_limit_costs_are_of_no_interest() -> None:
    assert CostLimit().at(0, BUDGET_MS, 0).after(10**9, 1, 0).at(1, BUDGET_MS, 0).most_records(500) == 500


def test_before_a_cost_is_known_a_few_records_are_in_flight() -> None:
    limit = limit_at(1_000)
    assert limit.most_records(500) == FIRST_RECORDS
    assert limit.after(0.0, 0, 7).most_records(500) == FIRST_RECORDS - 7


def test_the_average_says_how_many_records_there_are_units_for() -> None:
    limit = limit_at(0).after(400, 10, 0).at(5_000, BUDGET_MS, 100)
    assert (limit.per_record, limit.most_records(500)) == (40, 2)
    assert limit.most_records(1) == 1


def test_after_a_debt_nothing_is_acquired_until_it_is_paid() -> None:
    limit = limit_at(1_000).after(900, 1, 0)
    acquired = [limit.at(now_ms, BUDGET_MS, 100).most_records(500) for now_ms in (1_000, 8_999, 9_000, 9_001)]
    assert acquired == [0, 0, 0, 1]


def test_an_idle_group_saves_up_a_second() -> None:
    limit = limit_at(0).after(10, 10, 0)
    for now_ms in range(100, 60_001, 100):
        limit = limit.at(now_ms, BUDGET_MS, 100)
    assert limit.most_records(1_000) == 100


def test_records_in_flight_are_charged_with_the_average_and_settled_once_answered() -> None:
    limit = limit_at(0).after(10, 1, 0).at(1_000, BUDGET_MS, 100)
    in_flight = limit.after(0.0, 0, 4)
    assert (limit.most_records(500), in_flight.most_records(500)) == (9, 5)
    assert in_flight.after(40, 4, 0).bucket.tokens == pytest.approx(limit.bucket.tokens - 40)
    assert in_flight.after(100, 4, 0).bucket.tokens == pytest.approx(limit.bucket.tokens - 100)
    assert in_flight.after(0.0, 0, 0).bucket.tokens == pytest.approx(limit.bucket.tokens), "they were given back"


def test_records_that_cost_nothing_are_not_limited() -> None:
    assert limit_at(0).after(0.0, 20, 0).at(1_000, BUDGET_MS, 100).most_records(500) == 500


def test_a_limit_that_begins_later_does_not_charge_for_the_time_before() -> None:
    limit = CostLimit().at(0, BUDGET_MS, 0).after(10**6, 100, 0).at(1_000, BUDGET_MS, 100)
    assert limit.at(1_001, BUDGET_MS, 100).most_records(500) == FIRST_RECORDS


def spent(world: InMemoryGroup, seconds: int) -> int:
    """Return how many records were called, of a group that goes on for so long."""
    engine = world.engine()
    for _ in range(10 * seconds):
        engine.run()
        world.clock.advance(100)
    return len(world.calls)


@pytest.mark.parametrize("late", [None, Random(5)], ids=["in tasks", "late"])
def test_a_group_spends_what_it_may(late: Random | None) -> None:
    def handle(_topic: str, _partition: int, offset: int, _count: int) -> Answer:
        return ACCEPT

    world = InMemoryGroup(handler=handle, late=late, delivery__cost__limit=100)
    world.costs = lambda offset: 5.0 + offset % 20
    world.produce(5_000)
    average = 14.5
    assert 0.9 * 60 * 100 <= spent(world, 60) * average <= 60 * 100 + 15 * 25


def test_a_record_that_costs_more_than_a_second_is_delivered_and_paid_for() -> None:
    world = InMemoryGroup(delivery__cost__limit=100)
    world.costs = lambda _: 812.0
    world.produce(50)
    assert FIRST_RECORDS <= spent(world, 120) <= FIRST_RECORDS + 6
