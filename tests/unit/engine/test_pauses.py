"""What is paused is not acquired, and nothing else changes."""

from __future__ import annotations

import pytest

from share_spark.engine.pauses import NOT_PAUSED, Pause, Pauses
from tests.support.engine_world import RELEASE, TOPIC, Death, InMemoryGroup, Interruption
from tests.twins.memory import Moment

pytestmark = pytest.mark.usefixtures("window_form")


def test_what_a_pause_holds() -> None:
    pauses = NOT_PAUSED.paused({"orders": [1], "bills": []}, 50)
    assert [pauses.holds("orders", partition, 49) for partition in (0, 1)] == [False, True]
    assert [pauses.holds("bills", partition, 49) for partition in (0, 1)] == [True, True]
    assert not pauses.holds("orders", 1, 50)
    assert NOT_PAUSED.paused(None, None).holds("orders", 7, 10**15)
    assert pauses.at(49) == pauses
    assert pauses.at(50) == NOT_PAUSED


def test_who_pauses_again_says_anew_until_when() -> None:
    once = NOT_PAUSED.paused({"orders": [1, 0]}, 50)
    assert once.paused({"orders": [1]}, None).entries == (Pause("orders", 0, 50), Pause("orders", 1, None))
    assert once.paused({"orders": [0, 1]}, 50) == once


def test_a_topic_that_is_resumed_takes_its_partitions_along() -> None:
    pauses = NOT_PAUSED.paused({"orders": [0, 1], "bills": []}, None)
    assert pauses.resumed({"orders": [1]}).entries == (Pause("bills"), Pause("orders", 0))
    assert pauses.resumed({"orders": []}).entries == (Pause("bills"),)
    assert pauses.resumed(None) == NOT_PAUSED
    assert NOT_PAUSED.resumed({"orders": [1]}) == NOT_PAUSED


def test_what_still_holds_after_a_resume() -> None:
    pauses = NOT_PAUSED.paused({"orders": []}, None)
    assert pauses.still_holding({"orders": [1]}) == Pause("orders")
    assert pauses.still_holding({"orders": []}) is None
    assert pauses.still_holding({"bills": [1]}) is None
    assert pauses.paused(None, 9).still_holding({"bills": []}) == Pause(until_ms=9)
    assert pauses.paused(None, 9).still_holding(None) is None


def test_as_text() -> None:
    assert str(NOT_PAUSED) == "nothing"
    pauses = NOT_PAUSED.paused({"orders": [0], "bills": []}, None).paused(None, 1_767_225_600_000)
    assert str(pauses) == "all topics until 2026-01-01T00:00:00+00:00, bills, orders:0"


def test_a_running_engine_stops_acquiring_and_goes_on() -> None:
    world = InMemoryGroup(handler=lambda _t, _p, _o, count: RELEASE if count == 1 else 1)  # type: ignore[arg-type,return-value]
    world.produce(3)
    engine = world.engine()
    engine.run()
    world.pauses = NOT_PAUSED.paused(None, None)
    world.produce(2)
    assert engine.run().released == 3  # what was in flight
    assert engine.run().idle
    assert world.window() == "0-3: 0-2 V1"
    world.pauses = NOT_PAUSED
    assert engine.run().acquired == 5


def test_a_pause_ends_by_itself() -> None:
    world = InMemoryGroup()
    world.produce(3)
    engine = world.engine()
    world.pauses = NOT_PAUSED.paused(None, world.clock() + 1_000)
    engine.run()
    world.clock.advance(999)
    assert engine.run().acquired == 0
    world.clock.advance(1)
    assert engine.run().acquired == 3


def test_a_partition_and_a_topic() -> None:
    world = InMemoryGroup(partitions=3)
    for partition in range(3):
        world.produce(2, partition)
    world.pauses = NOT_PAUSED.paused({TOPIC: [0, 2]}, None)
    engine = world.engine()
    engine.run()
    engine.run()
    assert {call[0] for call in world.calls} == {1}
    world.pauses = NOT_PAUSED.paused({TOPIC: []}, None)
    world.produce(2, 1)
    assert engine.run().acquired == 0


def test_locks_of_the_dead_end_while_all_is_paused() -> None:
    world = InMemoryGroup()
    world.produce(3)
    with pytest.raises(Death):
        world.engine(interrupt=Interruption(Moment.AFTER_APPEND, Death())).run()
    world.pauses = NOT_PAUSED.paused(None, None)
    engine = world.engine()
    world.clock.advance(30_000)
    engine.run()
    assert world.window() == "0-3: 0-2 V0"
    assert engine.run().idle


def test_an_available_now_run_does_not_wait_for_what_is_paused() -> None:
    world = InMemoryGroup(partitions=2)
    for partition in range(2):
        world.produce(4, partition)
    world.pauses = NOT_PAUSED.paused({TOPIC: [0]}, None)
    world.engine(available_now=True).run_until_done()
    assert {call[0] for call in world.calls} == {1}
    world.pauses = NOT_PAUSED
    world.engine(available_now=True).run_until_done()
    assert {call[0] for call in world.calls} == {0, 1}


def test_pauses_are_a_value() -> None:
    assert Pauses((Pause("a"),)) == NOT_PAUSED.paused({"a": ()}, None)
