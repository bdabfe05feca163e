"""Settings that change while an engine runs: what it takes over, from when on, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from share_spark.engine.acquisition_limits import AcquisitionLimits
from share_spark.engine.breaker import Attempts, Breaker
from share_spark.engine.rate_limit import RateLimit
from share_spark.model.config import DEFAULT_CONFIG
from share_spark.model.records import DeliveryState
from tests.support.engine_world import ACCEPT, RELEASE, Death, InMemoryGroup, Interruption
from tests.twins.memory import Moment

pytestmark = pytest.mark.usefixtures("window_form")


def alter(world: InMemoryGroup, **changes: object) -> None:
    """As an operator does: fields of GroupConfig."""
    world.config = replace(world.config, **changes)


def released(*_: object) -> int:
    return RELEASE


def test_a_lower_delivery_limit_archives_what_has_reached_it_when_it_fails_next() -> None:
    """Not before: a record that is Available is delivered once more, as in Kafka, and may succeed."""
    world = InMemoryGroup(handler=released)  # type: ignore[arg-type]
    world.produce(2)
    engine = world.engine()
    for _ in range(4):
        engine.run()
    assert world.window() == "0-2: 0-1 Q4"
    alter(world, max_delivery_count=2)
    world.handler = lambda _t, _p, offset, _c: ACCEPT if offset else RELEASE
    engine.run()
    assert world.window() == "2-2"
    assert [
        (letter.first_offset, letter.last_offset, letter.delivery_count) for letter in world.dead_letters.letters
    ] == [(0, 1, 4)]


def test_what_is_available_above_a_lower_limit_is_delivered_once_more() -> None:
    world = InMemoryGroup(handler=released)  # type: ignore[arg-type]
    world.produce(1)
    engine = world.engine()
    for _ in range(3):
        engine.run()
    engine.run(stopping=True)
    assert world.window() == "0-1: 0-0 V3"
    alter(world, max_delivery_count=2)
    world.handler = lambda *_: ACCEPT
    world.engine(available_now=True).run_until_done()
    assert world.calls[-1] == (0, 0, 4)
    assert world.window() == "1-1"
    assert world.dead_letters.letters == []


def test_a_higher_delivery_limit_gives_further_attempts() -> None:
    world = InMemoryGroup(handler=released, share__delivery__count__limit=2)  # type: ignore[arg-type]
    world.produce(1)
    engine = world.engine(available_now=True)
    engine.run()
    engine.run()
    alter(world, max_delivery_count=4)
    engine.run_until_done()
    assert [count for *_, count in world.calls] == [1, 2, 3, 4]


def test_new_locks_have_the_new_duration_and_old_ones_keep_theirs() -> None:
    world = InMemoryGroup(partitions=2)
    world.produce(1, 0)
    began_ms = world.clock()
    with pytest.raises(Death):
        world.engine(interrupt=Interruption(Moment.AFTER_APPEND, Death())).run()
    alter(world, lock_duration_ms=5_000)
    world.produce(1, 1)
    with pytest.raises(Death):
        world.engine(interrupt=Interruption(Moment.AFTER_APPEND, Death())).run()
    (old,), (new,) = world.state(0).in_flight, world.state(1).in_flight
    assert (old.lock_deadline_ms, new.lock_deadline_ms) == (began_ms + 30_000, began_ms + 5_000)


def test_a_narrower_window_takes_no_new_records_until_the_old_ones_are_finished() -> None:
    fails = {0}
    world = InMemoryGroup(handler=lambda _t, _p, offset, _c: RELEASE if offset in fails else ACCEPT)
    world.produce(500)
    engine = world.engine()
    alter(world, max_record_locks=300)
    engine.run()
    assert world.state().end_offset == 300
    alter(world, max_record_locks=100)
    assert engine.run().redelivered == 1
    assert world.state().end_offset == 300
    fails.clear()
    for _ in range(3):
        engine.run()
    assert world.state().start_offset >= 300
    assert world.state().end_offset - world.state().start_offset <= 100
    for _ in range(4):
        engine.run()
    assert world.window() == "500-500"


def test_a_wider_window_is_used_at_the_next_micro_batch() -> None:
    world = InMemoryGroup(share__partition__max__record__locks=100)
    world.produce(500)
    engine = world.engine()
    assert engine.run().acquired == 100
    alter(world, max_record_locks=1_000)
    assert engine.run().acquired == 400


def test_delays_are_those_of_the_release() -> None:
    world = InMemoryGroup(handler=released)  # type: ignore[arg-type]
    world.produce(1)
    engine = world.engine()
    engine.run()
    alter(world, backoff_policy="fixed", backoff_ms=5_000)
    assert engine.run().acquired == 0
    (run,) = world.state().in_flight
    assert (run.delivery_state, run.lock_deadline_ms) == (DeliveryState.AVAILABLE, world.clock() + 5_000)
    alter(world, backoff_policy="none")
    assert engine.run().idle, "what waits already waits on"
    world.clock.advance(5_000)
    assert engine.run().acquired == 1
    assert engine.run().acquired == 1


def test_a_start_for_topics_to_come_moves_no_share_partition() -> None:
    world = InMemoryGroup()
    world.produce(3)
    engine = world.engine()
    engine.run()
    alter(world, offset_reset=DEFAULT_CONFIG.offset_reset)
    world.produce(2)
    assert engine.run().acquired == 2


def test_most_records_of_a_micro_batch() -> None:
    world = InMemoryGroup()
    world.produce(10)
    engine = world.engine()
    alter(world, max_records_per_trigger=3)
    assert engine.run().acquired == 3
    alter(world, max_records_per_trigger=500)
    assert engine.run().acquired == 7


def test_one_reading_counts_in_a_micro_batch() -> None:
    """Also where the append fails and the decision is repeated."""
    world = InMemoryGroup(handler=released)  # type: ignore[arg-type]
    world.produce(1)

    def alter_and_fail(moment: Moment, _commit: object) -> None:
        if moment is Moment.BEFORE_APPEND and world.config.lock_duration_ms == 30_000:
            alter(world, lock_duration_ms=1_000)
            raise OSError("no answer")

    engine = world.engine(interrupt=alter_and_fail)
    engine.run()
    (run,) = world.state().in_flight
    assert run.lock_deadline_ms == world.clock() + 30_000


def test_an_engine_that_stops_reads_nothing_more() -> None:
    world = InMemoryGroup(handler=released)  # type: ignore[arg-type]
    world.produce(1)
    engine = world.engine()
    engine.run()
    alter(world, max_delivery_count=1)
    engine.run(stopping=True)
    assert world.window() == "0-1: 0-0 V1"


# ------------------------------------------------------------------------------------------- rate and circuit breaker


def test_a_rate_that_is_set_owes_nothing_for_the_time_without_one() -> None:
    world = InMemoryGroup()
    world.produce(1_000)
    engine = world.engine()
    assert engine.run().acquired == 1_000
    world.produce(1_000)
    alter(world, rate_limit=10.0)
    assert engine.run().acquired == 0
    world.clock.advance(1_000)
    assert engine.run().acquired == 10
    alter(world, rate_limit=0.0)
    assert engine.run().acquired == 990


def test_of_what_was_saved_at_a_higher_rate_a_second_is_left() -> None:
    saved = RateLimit(per_s=1_000.0).at(0, 10_000).at(1_000, 10_000)
    assert saved.most_records(10**6) == 1_000
    assert saved.limited_to(5.0).most_records(10**6) == 5
    assert saved.limited_to(2_000.0).most_records(10**6) == 1_000
    assert saved.limited_to(1_000.0) is saved
    assert saved.after(1_500).limited_to(5.0).tokens == -500, "what a piece has taken too much is waited for"


def test_a_breaker_without_a_failure_rate_closes() -> None:
    strict = replace(DEFAULT_CONFIG, breaker_failure_rate=0.5, breaker_probes=3)
    is_open = Breaker().under(strict).after(Attempts(0, 20, 20))
    assert is_open.most_records(1, 100) == 0
    assert is_open.under(replace(strict, breaker_probe_interval_ms=0)).most_records(1, 100) == 3
    assert is_open.under(strict) == is_open
    assert is_open.under(DEFAULT_CONFIG).most_records(1, 100) == 100
    assert not is_open.under(DEFAULT_CONFIG).under(strict).is_open


def test_the_budget_of_a_delivery_bounds_what_is_acquired() -> None:
    limits = AcquisitionLimits()
    limits.pace = replace(limits.pace, records_per_s=100.0)
    assert limits.most_records(replace(DEFAULT_CONFIG, delivery_budget_ms=1_000), 0) == 80
    assert limits.most_records(replace(DEFAULT_CONFIG, delivery_budget_ms=2_000), 0) == 160
