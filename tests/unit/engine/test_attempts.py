"""What an attempt costs, whatever becomes of its engine, worker, machine or delivery.

The delivery count is the number of times that the handler was entered with a record; where a machine was lost with its
ledgers, one more for that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from share_spark.engine.attempts import ENGINE_LOST, FinishedCalls, MemberTrace
from share_spark.engine.delivery_port import AcknowledgedSpan, AcquiredSpan, Delivered, DeliveryAtOnce
from share_spark.engine.outage import Reach
from share_spark.model.errors import HandlerError
from share_spark.model.requests import Loss
from tests.support.answers import answered
from tests.support.engine_deaths import LOCK_MS, dies, killer, killer_of, recovers, runs
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, Death, EngineLife, InMemoryGroup, Interruption, at
from tests.twins.memory import Moment
from tests.twins.memory_delivery import Answer, LedgerLostError, WorkerLostError

pytestmark = pytest.mark.usefixtures("window_form")


@dataclass
class BrokenDelivery(DeliveryAtOnce):
    """It fails as a whole: it returns what it knows and the fault or, if ``raises``, only raises it."""

    answers: Sequence[AcknowledgedSpan] = ()
    raises: bool = False

    def start(self) -> None: ...

    def deliver(self, _acquired: Sequence[AcquiredSpan], **_: bool) -> Delivered:
        fault = HandlerError("cannot be loaded")
        if self.raises:
            raise fault
        return Delivered(self.answers, fault=fault)

    def finished_calls(self) -> Sequence[FinishedCalls]:
        return ()

    def hold_rows(self, _: object) -> bool:
        return False

    def traces(self) -> Sequence[MemberTrace]:
        return ()

    def forget_traces(self) -> None: ...

    def forget_last(self) -> None: ...

    def close(self) -> None: ...


def broken(engine: EngineLife, answers: Sequence[AcknowledgedSpan] = (), *, raises: bool = False) -> None:
    """Its delivery is broken from now on."""
    engine.engine._calls.delivery = BrokenDelivery(answers, raises)


def test_death_before_the_append_leaves_no_trace() -> None:
    world = InMemoryGroup()
    world.produce(5)
    dies(world.engine(interrupt=Interruption(Moment.BEFORE_APPEND, Death())))
    assert world.calls == []
    recovers(world)
    assert world.calls == [(0, offset, 1) for offset in range(5)]
    assert world.window() == "5-5"


def test_death_after_the_append_has_cost_nothing() -> None:
    """No handler was entered, as the empty ledger shows."""
    world = InMemoryGroup()
    world.produce(5)
    dies(world.engine(interrupt=Interruption(Moment.AFTER_APPEND, Death())))
    assert world.window() == "0-5: 0-4 Q1"
    recovers(world)
    assert world.calls == [(0, offset, 1) for offset in range(5)]


def test_death_with_the_machine_has_cost_one_attempt() -> None:
    """Nothing shows that no handler was entered."""
    world = InMemoryGroup()
    world.produce(5)
    dies(world.engine(interrupt=Interruption(Moment.AFTER_APPEND, Death())))
    world.machine_is_lost()
    recovers(world)
    assert world.calls == [(0, offset, 2) for offset in range(5)]


def test_death_during_delivery_has_cost_one_attempt_for_what_was_in_the_handler() -> None:
    """The next engine takes over what the handler had answered."""
    world = InMemoryGroup(handler=killer_of(2))
    world.produce(5)
    dies(world.engine())
    recovers(world)
    assert world.calls[:3] == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]
    assert world.calls[3:] == [(0, 2, 2), (0, 3, 1), (0, 4, 1)]


def test_death_during_delivery_with_the_machine_has_cost_one_attempt_for_all_that_was_acquired() -> None:
    world = InMemoryGroup(handler=killer_of(2))
    world.produce(5)
    dies(world.engine())
    world.machine_is_lost()
    recovers(world)
    assert world.calls == [(0, 0, 1), (0, 1, 1), (0, 2, 1), *((0, offset, 2) for offset in range(5))]


def test_of_the_dead_before_the_last_one_the_ledgers_are_kept_until_their_locks_end() -> None:
    """The one in between died before any lock had ended."""
    world = InMemoryGroup(handler=killer_of(2))
    world.produce(5)
    dies(world.engine())
    dies(world.engine(interrupt=Interruption(Moment.BEFORE_APPEND, Death())))
    assert world.ledgers.keys() == {"memory-run1", "memory-run2"}
    recovers(world)
    assert world.calls[3:] == [(0, 2, 2), (0, 3, 1), (0, 4, 1)]
    assert world.ledgers.keys() == {"memory-run3"}


def test_a_worker_that_dies_in_a_record_has_cost_that_record_one_attempt() -> None:
    def handler(_topic: str, _partition: int, offset: int, count: int) -> Answer:
        if (offset, count) == (2, 1):
            raise WorkerLostError
        return ACCEPT

    world = InMemoryGroup(handler=handler)
    world.produce(5)
    world.engine(available_now=True).run_until_done()
    assert world.calls == [*((0, offset, 1) for offset in range(5)), (0, 2, 2)]


def test_a_record_that_kills_its_worker_each_time_is_archived_at_the_limit() -> None:
    def handler(_topic: str, _partition: int, offset: int, _count: int) -> Answer:
        if offset == 2:
            raise WorkerLostError
        return ACCEPT

    world = InMemoryGroup(handler=handler, share__delivery__count__limit=3)
    world.produce(5)
    world.engine(available_now=True).run_until_done()
    assert world.deliveries == Counter({(0, 0): 1, (0, 1): 1, (0, 2): 3, (0, 3): 1, (0, 4): 1})
    assert [letter[1:] for letter in world.dead_letters.letters] == [(2, 2, 3, "delivery limit reached", "worker lost")]


def test_a_worker_lost_with_its_machine_costs_its_records_one_attempt_and_archives_none() -> None:
    def handler(_topic: str, _partition: int, offset: int, count: int) -> Answer:
        if offset == 2 and count < 3:
            raise LedgerLostError
        return ACCEPT

    world = InMemoryGroup(handler=handler, share__delivery__count__limit=2)
    world.produce(5)
    world.engine(available_now=True).run_until_done()
    assert world.dead_letters.letters == []
    assert {call[1:] for call in world.calls if call[2] == 3} == {(offset, 3) for offset in range(5)}


def test_death_after_delivery_repeats_what_has_lost_its_rows_and_nothing_else() -> None:
    world = InMemoryGroup(output=True, loses_rows=True)
    world.produce(5)
    engine = world.engine()
    assert engine.sink is not None
    engine.sink.hook = killer("before journal")
    dies(engine)
    recovers(world)
    assert world.calls == [(0, offset, count) for count in (1, 2) for offset in range(5)]
    assert world.window() == "5-5"


def test_death_after_delivery_repeats_no_call() -> None:
    world = InMemoryGroup()
    world.produce(5)
    world.engine().run()
    recovers(world)
    assert world.calls == [(0, offset, 1) for offset in range(5)]
    assert world.window() == "5-5"


@pytest.mark.parametrize("is_traced", [True, False])
def test_crashes_in_the_handler_count_toward_the_limit_once_it_is_accused(is_traced: bool) -> None:
    """R6. Without ledgers it must be found first, which takes four deaths."""
    limit, excused = 3, 1 if is_traced else 4
    deaths = limit + excused
    world = InMemoryGroup(handler=killer_of(0, times=99), share__delivery__count__limit=limit)
    world.produce(1)
    for _ in range(deaths):
        engine = world.engine()
        with pytest.raises(Death):
            runs(engine, 2)
        if not is_traced:
            world.machine_is_lost()
        world.clock.advance(LOCK_MS)
    world.engine(available_now=True).run_until_done()
    assert world.calls == [(0, 0, count) for count in range(1, deaths + 1)]
    assert [letter[1:] for letter in world.dead_letters.letters] == [
        (0, 0, deaths, "delivery limit reached", ENGINE_LOST)
    ]


@pytest.mark.parametrize("raises", [True, False])
def test_a_delivery_that_fails_before_any_handler_costs_no_attempt(raises: bool) -> None:
    """A supervisor starts the query again and again: nothing is used up, and what is given back is there at once."""
    world = InMemoryGroup(share__delivery__count__limit=2)
    world.produce(3)
    for _ in range(20):
        engine = world.engine()
        broken(engine, raises=raises)
        with pytest.raises(HandlerError):
            engine.run()
        engine.run(stopping=True)
        assert world.window() == "0-3: 0-2 V0"
    world.engine(available_now=True).run_until_done()
    assert world.calls == [(0, offset, 1) for offset in range(3)]
    assert world.dead_letters.letters == []


def test_what_a_failed_delivery_knows_counts_and_the_rest_was_not_entered() -> None:
    world = InMemoryGroup()
    world.produce(5)
    engine = world.engine()
    known = answered([(0, 0, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT)])
    broken(engine, [AcknowledgedSpan(at(), known, [(3, 3, "no such account")])])
    with pytest.raises(HandlerError):
        engine.run()
    engine.run(stopping=True)
    assert world.window() == "1-5: 1-1 V0, 2-2 V1, 3-3 X1, 4-4 V0"
    assert [letter[1:] for letter in world.dead_letters.letters] == [(3, 3, 1, "rejected", "no such account")]


def test_with_a_sink_a_failed_delivery_gives_everything_back() -> None:
    """What it knows of records without their rows would be acceptance without output."""
    world = InMemoryGroup(output=True)
    world.produce(3)
    engine = world.engine()
    broken(engine, [AcknowledgedSpan(at(), answered([(0, 1, ACCEPT)]), ())])
    with pytest.raises(HandlerError):
        engine.run()
    engine.run(stopping=True)
    assert world.window() == "0-3: 0-2 V0"


def test_what_a_slow_delivery_did_not_come_to_is_given_back() -> None:
    """It is no attempt, and comes with the next micro-batch."""
    world = InMemoryGroup()
    world.produce(3)
    engine = world.engine()
    slow = answered([(0, 0, ACCEPT), (1, 2, Loss.NOT_ENTERED)])
    deliver = BrokenDelivery()
    deliver.deliver = lambda *_, **__: Delivered([AcknowledgedSpan(at(), slow, ())], entered=1)  # type: ignore[method-assign]
    engine.engine._calls.delivery = deliver
    engine.run()
    engine.engine._calls.delivery = engine.delivery
    progress = engine.run()
    assert (progress.not_entered, progress.released, progress.redelivered) == (2, 0, 0)
    assert world.calls == [(0, 1, 1), (0, 2, 1)]


def test_ledgers_of_ended_engines_are_kept_while_their_topic_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their locks have run out, but no micro-batch could end them."""
    world = InMemoryGroup(handler=killer_of(2))
    world.produce(5)
    dies(world.engine())
    world.clock.advance(LOCK_MS)
    engine = world.engine()
    with monkeypatch.context() as patch:
        patch.setattr(Reach, "last_ends", lambda _self: {})
        engine.run(stopping=True)
    recovers(world)
    assert world.calls[3:] == [(0, 2, 2), (0, 3, 1), (0, 4, 1)]


def test_an_engine_that_was_replaced_does_not_remove_the_ledgers_of_its_successor() -> None:
    world = InMemoryGroup()
    zombie = world.engine()
    world.engine()
    zombie.engine.ports.delivery.forget_traces()
    assert world.ledgers.keys() == {"memory-run1", "memory-run2"}


@pytest.mark.parametrize("limit", [6, 10, 25])
def test_where_ended_engines_leave_no_ledgers_a_successor_knows_it_before_it_acquires(limit: int) -> None:
    """Else the accused would run together in its first micro-batch, and one death would show nothing."""
    world = InMemoryGroup(handler=killer_of(0, times=99), share__delivery__count__limit=limit)
    world.produce(100)
    deaths = 0
    while not (engine := world.engine(available_now=True)).engine.done:
        try:
            engine.run_until_done()
        except Death:
            deaths += 1
            world.machine_is_lost()
            world.clock.advance(LOCK_MS)
        else:
            break
    assert deaths == limit + 4
    assert [letter[1:4] for letter in world.dead_letters.letters] == [(0, 0, limit + 4)]
