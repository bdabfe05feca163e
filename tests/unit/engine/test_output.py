"""Output and acknowledgements are decided by one commit, that of the sink; wherever an engine dies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from share_spark.engine.attempts import ENGINE_LOST
from share_spark.model.errors import FencedError, OutputUnknownError, SinkError
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, Death, EngineLife, InMemoryGroup, Interruption, at
from tests.twins.memory import Moment
from tests.twins.memory_delivery import Answer, WorkerLostError

LOCK_MS = 30_000


def world_of(
    records: int, handler: Callable[..., Answer] | None = None, *, loses_rows: bool = False, **settings: object
) -> InMemoryGroup:
    world = InMemoryGroup(handler=handler, output=True, loses_rows=loses_rows, **settings)
    world.produce(records)
    return world


def rows(world: InMemoryGroup) -> list[int]:
    assert world.output is not None
    return [row.offset for row in world.output.rows]


def dies_at(engine: EngineLife, moment: str) -> None:
    def hook(now: str) -> None:
        if now == moment:
            raise Death

    assert engine.sink is not None
    engine.sink.hook = hook
    with pytest.raises(Death):
        runs(engine, 5)


def runs(engine: EngineLife, times: int) -> None:
    for _ in range(times):
        engine.run()


def finish(world: InMemoryGroup) -> None:
    world.clock.advance(LOCK_MS)
    world.engine(available_now=True).run_until_done(step_ms=LOCK_MS)


MOMENTS = ["before journal", "before output", "after output", "before forget"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("loses_rows", [False, True])
def test_wherever_it_dies_each_row_is_there_once(moment: str, loses_rows: bool) -> None:
    """The next engine takes over the rows that were not committed, if the workers still have them."""
    world = world_of(4, loses_rows=loses_rows)
    dies_at(world.engine(), moment)
    finish(world)
    assert sorted(rows(world)) == [0, 1, 2, 3]
    assert len(world.calls) == (8 if loses_rows and moment in MOMENTS[:2] else 4)
    assert world.window() == "4-4"


@pytest.mark.parametrize("moment", MOMENTS)
def test_wherever_a_successor_dies_that_takes_over_rows_each_is_there_once(moment: str) -> None:
    world = world_of(4)
    dies_at(world.engine(), "before output")
    dies_at(world.engine(), moment)
    finish(world)
    assert sorted(rows(world)) == [0, 1, 2, 3]
    assert len(world.calls) == 4
    assert world.window() == "4-4"


def test_rows_whose_locks_have_ended_are_not_committed_before_their_records_are_delivered_again() -> None:
    world = world_of(4)
    dies_at(world.engine(), "before output")
    world.clock.advance(10 * LOCK_MS)
    successor = world.engine()
    runs(successor, 3)
    assert sorted(rows(world)) == [0, 1, 2, 3]
    assert len(world.calls) == 4


def test_rows_below_the_log_start_are_not_taken_over_any_more() -> None:
    """An engine that stopped at once has moved the start offset past them: an answer for them would not count."""
    world = world_of(4)
    dies_at(world.engine(), "before output")
    world.topics.move_log_start(at(), 2)
    world.engine().run(stopping=True)
    finish(world)
    assert sorted(rows(world)) == [2, 3]
    assert world.window() == "4-4"


@pytest.mark.parametrize("stops", [False, True])
def test_late_output_of_records_that_the_log_has_lost_keeps_no_successor_from_starting(stops: bool) -> None:
    """No state row has their acknowledgements, as none of them is held any more."""
    world = world_of(4, loses_rows=True, late=Random(2))
    engine = world.engine()
    while not engine.engine.has_calls:
        engine.run()
    world.topics.move_log_start(at(), 4)
    engine.run()
    world.clock.advance(LOCK_MS)
    while not rows(world) or engine.engine.has_calls:
        engine.run()
    runs(engine, 3)
    if stops:
        engine.run(stopping=True)
    world.produce(2)
    finish(world)
    assert sorted(rows(world))[-2:] == [4, 5]
    assert world.window() == "6-6"


def test_a_sink_that_refuses_rows_that_were_taken_over_ends_the_engine_and_loses_none() -> None:
    world = world_of(4)
    dies_at(world.engine(), "before output")
    successor = world.engine()
    assert successor.sink is not None
    successor.sink.refuse = SinkError("full")
    with pytest.raises(SinkError):
        successor.run()
    successor.run(stopping=True)
    finish(world)
    assert sorted(rows(world)) == [0, 1, 2, 3]
    assert len(world.calls) == 4


def test_what_is_committed_with_output_is_absorbed_before_its_locks_end() -> None:
    """All answers of the delivery count, those without output too."""
    answers = [ACCEPT, REJECT, RELEASE, ACCEPT]
    world = world_of(4, handler=lambda _t, _p, offset, count: answers[offset] if count == 1 else ACCEPT)
    dies_at(world.engine(), "after output")
    successor = world.engine()
    successor.run()
    assert world.window() == "2-4: 2-2 Q2, 3-3 D1"
    assert [letter[1] for letter in world.dead_letters.letters] == [1]
    finish(world)
    assert sorted(rows(world)) == [0, 2, 3]


def test_a_successor_that_dies_before_it_absorbs_leaves_it_to_the_next() -> None:
    world = world_of(3)
    dies_at(world.engine(), "after output")
    successor = world.engine(interrupt=Interruption(Moment.BEFORE_APPEND, Death()))
    with pytest.raises(Death):
        successor.run()
    finish(world)
    assert rows(world) == [0, 1, 2]
    assert len(world.calls) == 3


def test_absorbing_twice_is_absorbing_once() -> None:
    """The journal outlives the commit that absorbed it: the successor finds it again, and nothing left to do."""
    world = world_of(2)
    dies_at(world.engine(), "before forget")
    second = world.engine()
    second.run()
    world.produce(1)
    second.run()
    second.run()
    assert rows(world) == [0, 1, 2]
    assert world.window() == "3-3"


def test_a_zombie_cannot_write_after_its_successor_has_claimed() -> None:
    world = world_of(3)
    zombie = world.engine()
    assert zombie.sink is not None

    def successor_starts(moment: str) -> None:
        if moment == "before output":
            world.engine()

    zombie.sink.hook = successor_starts
    with pytest.raises(FencedError):
        zombie.run()
    assert rows(world) == []
    finish(world)
    assert sorted(rows(world)) == [0, 1, 2]


def test_a_sink_that_refuses_rows_costs_no_attempt() -> None:
    world = world_of(3, share__delivery__count__limit=2)
    for _ in range(4):
        engine = world.engine()
        assert engine.sink is not None
        engine.sink.refuse = SinkError("no such column")
        with pytest.raises(SinkError):
            engine.run()
        engine.run(stopping=True)
        assert world.window() == "0-3: 0-2 V0"
    finish(world)
    assert rows(world) == [0, 1, 2]


def test_an_engine_that_cannot_tell_whether_it_has_written_gives_nothing_back() -> None:
    world = world_of(3)
    engine = world.engine()
    assert engine.sink is not None

    def unknown(moment: str) -> None:
        if moment == "before reading back":
            raise OutputUnknownError("out of reach")

    engine.sink.hook = unknown
    for stopping in (False, True):
        with pytest.raises(OutputUnknownError):
            engine.run(stopping=stopping)
    assert world.window() == "0-3: 0-2 Q1"
    finish(world)
    assert (rows(world), len(world.calls)) == ([0, 1, 2], 3)


def test_a_poison_record_is_found_and_archived_alone_while_others_go_on() -> None:
    def handler(_topic: str, _partition: int, offset: int, _count: int) -> Answer:
        if offset == 777:
            raise WorkerLostError
        return ACCEPT

    world = world_of(1_000, handler, share__partition__max__record__locks=5_000)
    engine = world.engine()
    engine.run()
    world.produce(100)
    engine.run()
    engine.run()
    assert {offset for _, offset, _ in world.calls} >= set(range(1_000, 1_100)), "unsuspected work goes on"
    world.engine(available_now=True)
    engine = world.engine(available_now=True)
    world.clock.advance(LOCK_MS)
    engine.run_until_done(most=500)
    assert sorted(rows(world)) == [offset for offset in range(1_100) if offset != 777]
    assert [letter[1:] for letter in world.dead_letters.letters] == [
        (777, 777, 5, "delivery limit reached", "worker lost")
    ]
    assert world.deliveries[0, 777] == 5


def test_a_handler_that_kills_the_whole_engine_is_counted_and_given_up() -> None:
    def handler(_topic: str, _partition: int, offset: int, _count: int) -> Answer:
        if offset == 42:
            raise Death
        return ACCEPT

    world = world_of(100, handler)
    for _ in range(6):
        engine = world.engine(available_now=True)
        try:
            engine.run_until_done(step_ms=LOCK_MS, most=500)
        except Death:
            world.clock.advance(LOCK_MS)
    engine = world.engine(available_now=True)
    engine.run_until_done(step_ms=LOCK_MS, most=500)
    assert sorted(rows(world)) == [offset for offset in range(100) if offset != 42]
    assert [letter[1:] for letter in world.dead_letters.letters] == [(42, 42, 6, "delivery limit reached", ENGINE_LOST)]


@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize("limit", [2, 5])
def test_kills_that_no_record_caused_archive_nothing(limit: int, is_traced: bool) -> None:
    """Ten engines die before they acquire, while they hold what they have acquired, or after the handler."""
    world = world_of(0, share__delivery__count__limit=limit)
    for number in range(10):
        world.produce(20)
        engine = world.engine()
        if number % 3 == 2:
            dies_at(engine, "before journal")
        else:
            append = Moment.AFTER_APPEND if number % 3 else Moment.BEFORE_APPEND
            engine.store.interrupt = Interruption(append, Death(), nth=1 + number // 3 % 2)
            with pytest.raises(Death):
                runs(engine, 4)
        if not is_traced:
            world.machine_is_lost()
        world.clock.advance(LOCK_MS)
    finish_within(world, 1_000)
    assert world.dead_letters.letters == []
    assert sorted(rows(world)) == list(range(200))


def test_an_engine_that_dies_after_the_handler_keeps_the_counts() -> None:
    """The handler has run, whatever became of its output."""
    world = world_of(3, loses_rows=True)
    dies_at(world.engine(), "before output")
    finish(world)
    assert world.calls[3:] == [(0, offset, 2) for offset in range(3)]


def finish_within(world: InMemoryGroup, most: int) -> None:
    world.engine(available_now=True).run_until_done(step_ms=LOCK_MS, most=most)
