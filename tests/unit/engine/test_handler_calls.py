"""The calls of an engine whose handlers wait, at a service that throttles."""

from __future__ import annotations

from random import Random

from share_spark.engine.concurrency import FIRST_CALLS
from share_spark.model.requests import Loss
from tests.support.engine_world import ACCEPT, InMemoryGroup
from tests.twins.late_delivery import LateDelivery
from tests.twins.memory_delivery import Answer, RecordHandler


def throttled_until(at_ms: int, world: list[InMemoryGroup]) -> RecordHandler:
    """A service that refuses everything until then."""

    def handle(_topic: str, _partition: int, _offset: int, _count: int) -> Answer:
        return ACCEPT if world[0].clock() >= at_ms else (Loss.THROTTLED, "429", 100)

    return handle


def late_group(handler: RecordHandler | None = None, most: int = 64) -> InMemoryGroup:
    return InMemoryGroup(handler=handler, late=Random(1), delivery__max__in__flight=most)


def calls_allowed(world: InMemoryGroup, micro_batches: int, step_ms: int = 500) -> list[int]:
    """How many calls an engine allows in each micro-batch."""
    engine = world.engine()
    for _ in range(micro_batches):
        engine.run()
        world.clock.advance(step_ms)
    assert isinstance(engine.delivery, LateDelivery)
    return engine.delivery.most_calls


def test_an_engine_begins_with_few_calls_and_goes_up_to_the_setting() -> None:
    world = late_group()
    world.produce(3_000)
    found = calls_allowed(world, 30)
    assert found[0] == FIRST_CALLS
    assert found[-1] == 64
    assert found == sorted(found)


def test_a_service_that_throttles_gets_fewer_calls_and_slowly_more_afterwards() -> None:
    made: list[InMemoryGroup] = []
    world = late_group(throttled_until(20_000, made))
    made.append(world)
    world.clock.now_ms = 0
    world.produce(3_000)
    found = calls_allowed(world, 120)
    lowest = found.index(1)
    assert lowest < 40
    assert 5 < found[-1] < 30
    assert max(found[lowest:]) == found[-1]


def test_micro_batches_of_a_group_that_is_throttled_wait_for_the_delays() -> None:
    world = InMemoryGroup(handler=lambda *_: (Loss.THROTTLED, "429", 1_000))
    world.produce(50)
    engine, progress = world.engine(), []
    for _ in range(1_000):
        progress.append(engine.run())
        world.clock.advance(10)
    assert 9 * 50 <= len(world.calls) <= 10 * 50
    # In each second one micro-batch that delivers and one that takes the answers in; the loop waits after idle ones.
    assert sum(not one.idle for one in progress) <= 2 * 10
