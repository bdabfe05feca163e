"""The rate limit of a group: a token bucket, and what an engine acquires under it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_spark.engine.rate_limit import RateLimit
from tests.support.engine_world import ACCEPT, RELEASE, Death, InMemoryGroup

BUDGET_MS = 10_000


def limit_of(records_per_s: float) -> RateLimit:
    return RateLimit(per_s=records_per_s).at(0, BUDGET_MS)


def test_without_a_limit_all_may_be_acquired() -> None:
    assert limit_of(0).after(10**9).most_records(500) == 500


@pytest.mark.parametrize(
    ("records_per_s", "passed_ms", "most"),
    [
        (10, 0, 0),
        (10, 500, 5),
        (10, 1_000, 10),
        (10, 5_000, 50),  # a slow micro-batch
        (10, 3_600_000, 100),  # no longer than the budget
        (0.1, 9_999, 0),
        (0.1, 10_000, 1),
        (1e9, 1_000, 500_000),
    ],
)
def test_time_brings_tokens(records_per_s: float, passed_ms: int, most: int) -> None:
    assert limit_of(records_per_s).at(passed_ms, BUDGET_MS).most_records(500_000) == most


def test_an_idle_group_keeps_a_seconds_worth() -> None:
    limit = limit_of(10)
    for now_ms in range(100, 60_001, 100):
        limit = limit.at(now_ms, BUDGET_MS)
    assert limit.most_records(1_000) == 10


def test_a_seldom_record_is_not_lost_in_rounding() -> None:
    limit = limit_of(0.001)
    for now_ms in range(100, 1_000_001, 100):
        limit = limit.at(now_ms, BUDGET_MS)
    assert limit.most_records(5) == 1


@given(st.floats(0.1, 1_000), st.lists(st.integers(0, 20_000), min_size=1, max_size=50))
def test_never_more_than_the_rate_over_any_time(records_per_s: float, waits_ms: list[int]) -> None:
    limit, now_ms, taken = limit_of(records_per_s), 0, list[tuple[int, int]]()
    for wait_ms in waits_ms:
        now_ms += wait_ms
        limit = limit.at(now_ms, BUDGET_MS)
        taken.append((now_ms, limit.most_records(10**6)))
        limit = limit.after(taken[-1][1])
    for first, (begin_ms, _) in enumerate(taken):
        for last_ms, _ in taken[first:]:
            total = sum(records for at_ms, records in taken[first:] if at_ms <= last_ms)
            assert total <= records_per_s * (last_ms - begin_ms + BUDGET_MS) / 1_000 + 1.001


def test_an_engine_acquires_at_its_rate_across_micro_batches() -> None:
    world = InMemoryGroup(delivery__rate__limit=10)
    world.produce(35)
    engine = world.engine()
    acquired = []
    for _ in range(8):
        acquired.append(engine.run().acquired)
        world.clock.advance(500)
    assert acquired == [0, 5, 5, 5, 5, 5, 5, 5]


def test_redeliveries_count_as_well() -> None:
    world = InMemoryGroup(handler=lambda *_: RELEASE, delivery__rate__limit=2, share__delivery__count__limit=3)
    world.produce(2)
    engine = world.engine(available_now=True)
    progress = engine.run_until_done(step_ms=1_000)
    assert max(one.acquired for one in progress) == 2
    assert sum(one.acquired for one in progress) == 6


def test_while_there_is_no_token_nothing_is_written() -> None:
    world = InMemoryGroup(delivery__rate__limit=1)
    world.produce(5)
    engine = world.engine()
    engine.run()
    world.clock.advance(1_000)
    engine.run()
    engine.run()
    version = world.state_log.version
    world.clock.advance(200)
    assert engine.run().idle
    assert world.state_log.version == version


def test_an_available_now_run_ends_all_the_same() -> None:
    world = InMemoryGroup(delivery__rate__limit=3)
    world.produce(10)
    began_ms = world.clock()
    world.engine(available_now=True).run_until_done(step_ms=1_000)
    assert world.clock() - began_ms >= 3_000
    assert len(world.calls) == 10


def test_what_brings_engines_down_is_searched_at_the_rate_as_well() -> None:
    """A piece is not cut: what it takes too much is waited for."""

    def deadly(_topic: str, _partition: int, offset: int, _count: int) -> int:
        if offset == 4:
            raise Death
        return ACCEPT

    world = InMemoryGroup(handler=deadly, delivery__rate__limit=5, share__delivery__count__limit=2)  # type: ignore[arg-type]
    world.produce(9)
    for _ in range(60):
        engine = world.engine()
        for _ in range(20):
            world.clock.advance(10_000)
            try:
                engine.run()
            except Death:
                world.machine_is_lost()
                break
        else:
            break
    assert world.window().startswith("9-9")
