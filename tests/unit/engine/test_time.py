"""The time of a group goes on from one engine to the next, and never back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_spark.engine.world import EngineTime
from tests.support.engine_world import ACCEPT, RELEASE, EngineLife, InMemoryGroup

LOCK_MS = 30_000
HOUR_MS = 3_600_000


def started(clock_ms: int, last_time_ms: int) -> EngineTime:
    time = EngineTime()
    time.start(clock_ms, last_time_ms)
    return time


def test_it_starts_at_the_clock_or_where_the_engine_before_ended() -> None:
    assert started(100, 0).now_ms == 100
    assert started(100, 70).now_ms == 100
    assert started(100, 250).now_ms == 250


def test_it_passes_as_its_own_clock_does() -> None:
    time = started(100, 250)
    assert [time.read(clock) for clock in (100, 101, 131)] == [250, 251, 281]


def test_a_clock_that_is_set_back_stands_still_and_then_goes_on() -> None:
    time = started(1_000, 0)
    assert [time.read(clock) for clock in (1_010, 10, 20)] == [1_010, 1_010, 1_020]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.lists(st.integers(0, 10**6), min_size=1))
def test_it_never_goes_back_and_never_faster_than_the_clock(start: int, last: int, clocks: list[int]) -> None:
    time = started(start, last)
    before, at = time.now_ms, start
    assert before >= last
    for clock in clocks:
        now = time.read(clock)
        assert now == before + max(0, clock - at)
        before, at = now, clock


@pytest.mark.parametrize("off_ms", [-HOUR_MS, 0, HOUR_MS])
def test_a_successor_with_another_clock_neither_waits_for_hours_nor_goes_back(off_ms: int) -> None:
    """The locks of ended engines expire after their duration if its clock is behind; if it is ahead, at once."""
    world = InMemoryGroup(handler=lambda _topic, _partition, _offset, count: RELEASE if count == 1 else ACCEPT)
    world.produce(1)
    world.engine().run()
    world.machine_is_lost()
    world.clock.advance(off_ms)
    successor = world.engine()
    runs(successor, 3)
    assert len(world.calls) == (2 if off_ms > 0 else 1)
    world.clock.advance(LOCK_MS)
    runs(successor, 3)
    assert world.calls == [(0, 0, 1), (0, 0, 2)]


def runs(engine: EngineLife, times: int) -> None:
    for _ in range(times):
        engine.run()
