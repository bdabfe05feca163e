"""Order by key in an engine: what is held back, for how long, and what goes on."""

from __future__ import annotations

import pytest

from share_spark.model.records import Doubt
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, Death, InMemoryGroup, at
from tests.twins.memory_delivery import Answer, RecordHandler

pytestmark = pytest.mark.usefixtures("window_form")


def ordered(handler: RecordHandler | None = None, **settings: object) -> InMemoryGroup:
    return InMemoryGroup(handler=handler, delivery__order="key", **settings)


def first_time(*offsets: int, answer: Answer = RELEASE) -> RecordHandler:
    """Gives ``answer`` to the first delivery of these, and accepts else."""
    return lambda _topic, _partition, offset, count: answer if offset in offsets and count == 1 else ACCEPT


def entered(world: InMemoryGroup) -> list[int]:
    """Offsets in the order of the calls, which are forgotten."""
    found = [offset for _, offset, _ in world.calls]
    world.calls.clear()
    return found


def test_a_released_record_holds_back_its_successors_and_no_others() -> None:
    world = ordered(first_time(0))
    world.produce_keys("ab.a.ba")
    engine = world.engine()
    engine.run()
    assert entered(world) == [0, 1, 2, 4, 5]
    engine.run()
    assert entered(world) == [0, 3, 6]
    assert set(world.calls) == set()


def test_what_was_held_back_is_not_charged() -> None:
    world = ordered(first_time(0))
    world.produce_keys("aaa")
    engine = world.engine()
    engine.run()
    assert engine.run().not_entered == 2
    assert world.window() == "0-3: 0-0 Q2, 1-2 Q1"


def test_successors_of_a_delayed_record_wait_as_long_as_it_does() -> None:
    world = ordered(first_time(0, answer=(RELEASE, "later", 60_000)))
    world.produce_keys("aab")
    engine = world.engine()
    engine.run()
    engine.run()
    assert entered(world) == [0, 2]
    version = world.state_log.version
    assert engine.run().idle
    assert world.state_log.version == version
    world.clock.advance(60_000)
    engine.run()
    assert entered(world) == [0, 1]


def test_new_records_of_a_delayed_key_are_read_once_and_then_wait() -> None:
    world = ordered(first_time(0, answer=(RELEASE, "later", 60_000)))
    world.produce_keys("a")
    engine = world.engine()
    engine.run()
    world.produce_keys("ab")
    world.clock.advance(10_000)
    engine.run()
    world.clock.advance(10_000)
    assert engine.run().not_entered == 1
    assert entered(world) == [0, 2]
    assert engine.run().idle
    assert world.state().in_flight[0][5] == world.state().in_flight[1][5]
    world.clock.advance(50_000)
    engine.run()
    assert entered(world) == [0, 1]


@pytest.mark.parametrize("answer", [ACCEPT, REJECT])
def test_what_ends_lets_its_successors_follow_in_the_same_delivery(answer: Answer) -> None:
    world = ordered(first_time(0, answer=answer))
    world.produce_keys("aaa")
    world.engine().run()
    assert entered(world) == [0, 1, 2]


def test_the_delivery_limit_ends_a_record() -> None:
    world = ordered(lambda _topic, _partition, offset, _count: RELEASE if offset == 0 else ACCEPT)
    world.config = world.config.changed({"share.delivery.count.limit": 2})
    world.produce_keys("aa")
    world.engine(available_now=True).run_until_done()
    assert entered(world) == [0, 0, 1]


def test_an_engine_that_starts_holds_back_what_another_has_delayed() -> None:
    world = ordered(first_time(0, answer=(RELEASE, "later", 60_000)))
    world.produce_keys("a")
    engine = world.engine()
    engine.run()
    engine.run(stopping=True)
    world.produce_keys("ab")
    world.engine().run()
    assert entered(world) == [0, 2]


def test_an_engine_that_starts_holds_back_what_a_dead_one_has_locked() -> None:
    def dies(_topic: str, _partition: int, _offset: int, count: int) -> Answer:
        if count == 1 and world.runs == 1:
            raise Death
        return ACCEPT

    world = ordered(dies)
    world.produce_keys("a")
    with pytest.raises(Death):
        world.engine().run()
    assert entered(world) == [0]
    world.produce_keys("ab")
    engine = world.engine()
    engine.run()
    assert entered(world) == [2]
    world.clock.advance(world.config.lock_duration_ms)
    for _ in range(4):
        engine.run()
        world.clock.advance(1)
    assert entered(world) == [0, 1]


def test_a_suspect_waits_for_a_delayed_record_and_the_engine_does_not_spin() -> None:
    """The record that is searched for cannot be delayed itself: it runs by itself, once its predecessor has ended."""

    def dies(_topic: str, _partition: int, offset: int, _count: int) -> Answer:
        if offset == 1 and world.runs == 1:
            raise Death
        return (RELEASE, "later", 60_000) if offset == 0 and world.runs == 2 and world.clock() < 1_100_000 else ACCEPT

    world = ordered(dies, output=True, loses_rows=True)  # the rows of the first one are lost with the engine
    world.produce_keys("aa")
    with pytest.raises(Death):
        world.engine().run()
    assert entered(world) == [0, 1]
    world.clock.advance(world.config.lock_duration_ms)
    engine = world.engine()
    for _ in range(5):
        engine.run()
    assert entered(world) == [0]
    assert world.state().in_flight[-1].doubt is Doubt.ACCUSED
    version = world.state_log.version
    assert engine.run().idle
    assert world.state_log.version == version
    world.clock.advance(60_000)
    world.clock.advance(60_000)
    for _ in range(4):
        engine.run()
        world.clock.advance(1_000)
    assert entered(world) == [0, 1]


def test_records_that_the_log_has_lost_hold_back_nothing() -> None:
    world = ordered(first_time(0, answer=(RELEASE, "later", 60_000)))
    world.produce_keys("a")
    engine = world.engine()
    engine.run()
    world.topics.compact(at(), [0])
    world.produce_keys("a")
    engine.run()
    assert entered(world) == [0, 1]
