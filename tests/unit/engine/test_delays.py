"""Delayed records in an engine: planning, restarts, and the end of an available-now run."""

from __future__ import annotations

import pytest

from share_spark.engine.step import MOST_DELAYS
from tests.support.engine_world import ACCEPT, RELEASE, Death, InMemoryGroup, Interruption
from tests.twins.memory import Moment
from tests.twins.memory_delivery import Answer, RecordHandler

pytestmark = pytest.mark.usefixtures("window_form")


def failing_once(offset: int, delay_ms: int | None = None) -> RecordHandler:
    """Releases the record at ``offset`` the first time."""

    def handler(_topic: str, _partition: int, at: int, count: int) -> Answer:
        if at != offset or count > 1:
            return ACCEPT
        return RELEASE if delay_ms is None else (RELEASE, "later", delay_ms)

    return handler


def fixed(handler: RecordHandler, delay_ms: int = 5_000) -> InMemoryGroup:
    return InMemoryGroup(
        handler=handler,
        share__record__redelivery__backoff__policy="fixed",
        share__record__redelivery__backoff__ms=delay_ms,
    )


def test_others_are_delivered_past_a_delayed_record() -> None:
    world = fixed(failing_once(1))
    world.produce(3)
    engine = world.engine()
    engine.run()
    world.produce(2)
    assert engine.run().acquired == 2
    assert world.calls == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1)]
    assert world.window() == "1-5: 1-1 V1, 2-2 D1, 3-4 Q1"


def test_a_delayed_record_is_delivered_at_its_time_and_nothing_is_written_until_then() -> None:
    world = fixed(failing_once(0))
    world.produce(1)
    engine = world.engine()
    engine.run()
    engine.run()
    assert engine.next_available_ms == world.clock() + 5_000
    version = world.state_log.version
    world.clock.advance(4_999)
    assert engine.run().idle
    assert world.state_log.version == version
    world.clock.advance(1)
    assert engine.run().redelivered == 1
    assert engine.next_available_ms is None


def test_what_a_handler_asks_for_wins_over_the_settings() -> None:
    world = fixed(failing_once(0, delay_ms=60_000))
    world.produce(1)
    engine = world.engine()
    engine.run()
    engine.run()
    assert engine.next_available_ms == world.clock() + 60_000


def test_a_delay_of_zero_is_none() -> None:
    world = fixed(failing_once(0, delay_ms=0))
    world.produce(1)
    engine = world.engine()
    engine.run()
    assert engine.run().redelivered == 1


def test_a_delay_survives_engines() -> None:
    world = fixed(failing_once(0))
    world.produce(1)
    first = world.engine()
    first.run()
    first.run()
    until_ms = world.clock() + 5_000
    second = world.engine()
    assert second.next_available_ms == until_ms
    world.clock.advance(4_999)
    assert second.run().acquired == 0
    world.clock.advance(1)
    assert second.run().redelivered == 1


@pytest.mark.parametrize("moment", Moment)
def test_a_release_is_delayed_even_if_the_engine_dies_in_its_commit(moment: Moment) -> None:
    world = fixed(failing_once(0), delay_ms=50_000)
    world.produce(1)
    engine = world.engine(interrupt=Interruption(moment, Death(), nth=2))
    engine.run()
    with pytest.raises(Death):
        engine.run()
    second = world.engine()
    assert second.next_available_ms == (world.clock() + 50_000 if moment is Moment.AFTER_APPEND else None)
    second.run()
    assert second.next_available_ms == world.clock() + 50_000
    world.clock.advance(49_999)
    assert sum(second.run().redelivered for _ in range(2)) == 0
    world.clock.advance(1)
    assert second.run().redelivered == 1


def test_output_that_was_committed_before_the_end_takes_its_delays_along() -> None:
    world = InMemoryGroup(handler=failing_once(1, delay_ms=9_000), output=True)
    world.produce(3)
    world.engine().run()
    second = world.engine()
    assert second.run().acquired == 0
    assert second.next_available_ms == world.clock() + 9_000


def test_an_available_now_run_waits_for_delayed_records() -> None:
    world = fixed(failing_once(1))
    world.produce(3)
    began_ms = world.clock()
    world.engine(available_now=True).run_until_done(step_ms=1_000)
    assert world.deliveries[0, 1] == 2
    assert world.clock() >= began_ms + 5_000


def test_more_times_than_a_summary_holds_are_all_seen() -> None:
    world = InMemoryGroup(handler=lambda _t, _p, at, count: (RELEASE, "", 100 * (at + 1)) if count == 1 else ACCEPT)
    world.produce(3 * MOST_DELAYS)
    engine = world.engine()
    engine.run()
    engine.run()
    redelivered = []
    for _ in range(3 * MOST_DELAYS):
        world.clock.advance(100)
        redelivered.append(engine.run().redelivered)
    assert redelivered == [1] * (3 * MOST_DELAYS)


def test_all_that_is_due_is_delivered_after_a_long_sleep() -> None:
    world = InMemoryGroup(handler=lambda _t, _p, at, count: (RELEASE, "", 100 * (at + 1)) if count == 1 else ACCEPT)
    world.produce(3 * MOST_DELAYS)
    engine = world.engine()
    engine.run()
    engine.run()
    world.clock.advance(60_000)
    assert [engine.run().redelivered for _ in range(4)] == [MOST_DELAYS, MOST_DELAYS, MOST_DELAYS, 0]


def test_delayed_records_take_no_share_from_others() -> None:
    world = InMemoryGroup(
        partitions=2,
        handler=lambda _t, partition, _o, _c: (RELEASE, "", 60_000) if partition == 0 else ACCEPT,
        max__records__per__trigger=10,
    )
    world.produce(5, 0)
    engine = world.engine()
    engine.run()
    engine.run()
    world.produce(20, 1)
    assert engine.run().acquired == 10
