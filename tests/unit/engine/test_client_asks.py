"""Clients of Kafka's protocol as members of a group: what they ask is decided and answered by micro-batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from share_spark.engine.pauses import Pause, Pauses
from share_spark.engine.topics import SubscribedTopics
from share_spark.model.errors import ErrorCode, StateError
from share_spark.model.ids import SharePartitionKey, TopicPartition, client_owner, is_client
from share_spark.model.records import DeliveryState, Doubt
from share_spark.model.requests import AcknowledgeType
from share_spark.partition.kafka_modes import LogBatch, ReadAhead
from tests.support.client_world import ClientWorld, fetch_of
from tests.support.engine_world import GROUP, TOPIC, Death, Interruption
from tests.twins.memory import Moment

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
LOCK_MS = 30_000
A, B = client_owner("a"), client_owner("b")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ClientWorld:
    """Its deliveries have no room, as those of a group without a handler."""
    monkeypatch.setattr("tests.twins.memory_delivery.InMemoryDelivery.room", lambda *_: 0)
    return ClientWorld()


def test_records_are_acquired_by_whole_batches_and_the_owner_is_in_the_state(world: ClientWorld) -> None:
    world.produce(20)
    engine = world.engine()
    number = world.fetch(A, most=7)
    engine.run()
    assert world.acquired(number) == [(0, 9, 1)]
    assert world.answer(number).next_fetch_offset == 10
    (run,) = world.state().in_flight
    assert (run.member_id, is_client(A), is_client(engine.claim.member_id)) == (A, True, False)


def test_what_was_not_read_is_not_acquired_and_the_answer_says_where_to_read(world: ClientWorld) -> None:
    world.produce(20)
    engine = world.engine()
    number = world._ask(0, fetch_of(A, (), 100))
    engine.run()
    assert (world.acquired(number), world.answer(number).next_fetch_offset) == ([], 0)


def test_all_that_has_come_is_one_commit_and_each_gets_its_own_answers(world: ClientWorld) -> None:
    world.produce(30)
    engine = world.engine()
    engine.run()
    commits = len(world.state_log.commits)
    first, second, refused = world.fetch(A, most=10), world.fetch(B, most=10), world.acknowledge(B, 0, 9, ACCEPT)
    engine.run()
    assert len(world.state_log.commits) == commits + 1
    assert (world.acquired(first), world.acquired(second)) == ([(0, 9, 1)], [(10, 19, 1)])
    assert world.answer(refused).error is ErrorCode.INVALID_RECORD_STATE
    accepted, released, rejected = (
        world.acknowledge(A, 0, 3, ACCEPT),
        world.acknowledge(A, 4, 8, RELEASE),
        world.acknowledge(A, 9, 9, REJECT),
    )
    progress = engine.run()
    assert {world.answer(number).error for number in (accepted, released, rejected)} == {ErrorCode.NONE}
    assert world.window() == "4-20: 4-8 V1, 9-9 X1, 10-19 Q1"
    assert (progress.accepted, progress.released, progress.rejected) == (4, 5, 1)
    # A client names no error, and no engine has died in these records.
    assert [(letter.first_offset, letter.error) for letter in world.dead_letters.letters] == [(9, None)]


def test_a_share_partition_that_the_group_does_not_have_is_missing_in_the_answer(world: ClientWorld) -> None:
    engine = world.engine()
    assert world.clients is not None
    number = world.clients.ask({SharePartitionKey(GROUP, "unknown", 0): [fetch_of(A, (), 1)]})
    engine.run()
    assert world.clients.answers[number] == {}


def test_what_a_client_has_released_waits_for_its_delay_and_holds_up_no_other_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.twins.memory_delivery.InMemoryDelivery.room", lambda *_: 0)
    backoff = {"policy": "fixed", "ms": 5_000}
    world = ClientWorld(**{f"share.record.redelivery.backoff.{name}": value for name, value in backoff.items()})
    world.produce(20)
    engine = world.engine()
    world.fetch(A, most=10)
    engine.run()
    world.acknowledge(A, 0, 4, ACCEPT)
    world.acknowledge(A, 5, 9, RELEASE)
    others = world.fetch(B, most=3)
    engine.run()
    assert world.acquired(others) == [(10, 14, 1)]
    assert world.answer(others).next_fetch_offset == 15
    world.clock.advance(4_999)
    rest = world.fetch(B)
    engine.run()
    assert world.acquired(rest) == [(15, 19, 1)]
    early = world.fetch(A)
    engine.run()
    assert (world.acquired(early), world.answer(early).next_fetch_offset) == ([], 20)
    world.clock.advance(1)
    again = world.fetch(A)
    engine.run()
    assert world.acquired(again) == [(5, 9, 2)]


def test_an_expired_lock_of_a_client_is_a_failure_and_no_suspicion(world: ClientWorld) -> None:
    world.config = world.config.changed({"share.delivery.count.limit": 2})
    world.produce(5)
    engine = world.engine()
    world.fetch(A)
    engine.run()
    world.clock.advance(LOCK_MS - 1)
    engine.run()
    assert world.window() == "0-5: 0-4 Q1"
    world.clock.advance(1)
    engine.run()
    (run,) = world.state().in_flight
    assert (run.delivery_state, run.delivery_count, run.doubt, run.excused) == (
        DeliveryState.AVAILABLE,
        1,
        Doubt.NONE,
        0,
    )
    world.fetch(B)
    engine.run()
    world.clock.advance(LOCK_MS)
    engine.run()
    assert world.window() == "5-5"
    assert [letter[1:] for letter in world.dead_letters.letters] == [(0, 4, 2, "delivery limit reached", None)]


def test_locks_outlive_the_engine_and_the_next_one_takes_acknowledgements(world: ClientWorld) -> None:
    world.produce(10)
    world.fetch(A, most=5)
    world.engine().run()
    successor = world.engine()
    successor.run()
    assert world.window() == "0-5: 0-4 Q1"
    number = world.acknowledge(A, 0, 1, ACCEPT)
    successor.run()
    assert world.answer(number).error is ErrorCode.NONE
    world.clock.advance(LOCK_MS)
    successor.run()
    (run,) = world.state().in_flight
    assert (run.first_offset, run.delivery_count, run.doubt) == (2, 1, Doubt.NONE)


def test_what_a_client_holds_is_given_back_at_the_end_of_its_session(world: ClientWorld) -> None:
    world.produce(10)
    engine = world.engine()
    world.fetch(A, most=5)
    world.fetch(B, most=5)
    engine.run()
    world.release(A)
    engine.run()
    assert world.window() == "0-10: 0-4 V1, 5-9 Q1"


def test_nothing_is_acquired_of_what_is_paused_and_acknowledgements_count(world: ClientWorld) -> None:
    world.produce(10)
    engine = world.engine()
    world.fetch(A, most=5)
    engine.run()
    world.pauses = Pauses((Pause(),))
    acknowledged, fetched = world.acknowledge(A, 0, 4, ACCEPT), world.fetch(B)
    engine.run()
    assert (world.answer(acknowledged).error, world.acquired(fetched), world.window()) == (ErrorCode.NONE, [], "5-5")


@pytest.mark.parametrize("moment", [Moment.BEFORE_APPEND, Moment.AFTER_APPEND])
def test_an_answer_leaves_after_the_append_whatever_the_engine_was_told_of_it(
    world: ClientWorld, moment: Moment
) -> None:
    world.produce(5)
    engine = world.engine()
    engine.run()
    engine.store.interrupt = Interruption(moment, OSError("no answer"))
    number = world.fetch(A)
    engine.run()
    assert world.acquired(number) == [(0, 4, 1)]
    assert world.window() == "0-5: 0-4 Q1"


def test_nobody_is_answered_by_an_engine_that_dies_in_the_append(world: ClientWorld) -> None:
    world.produce(5)
    engine = world.engine()
    engine.run()
    engine.store.interrupt = Interruption(Moment.AFTER_APPEND, Death())
    number = world.fetch(A)
    with pytest.raises(Death):
        engine.run()
    assert world.clients is not None
    assert number not in world.clients.answers


def test_what_a_failed_micro_batch_has_taken_is_not_answered_by_the_last_one(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one gives back and decides nothing for clients, so it has no answers to them."""
    world.produce(5)
    engine = world.engine()
    engine.run()
    fetched = world.fetch(A)
    engine.run()
    lost = world.acknowledge(A, 0, 4, ACCEPT)

    def fails(*_: object, **__: object) -> None:
        raise StateError("the table does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.store), "advance", fails)
        with pytest.raises(StateError):
            engine.run()
    world.clock.advance(LOCK_MS)
    engine.run(stopping=True)
    assert world.clients is not None
    assert (fetched in world.clients.answers, lost in world.clients.answers) == (True, False)


def test_a_letter_of_what_a_client_gave_up_does_not_say_what_a_handler_said_of_the_attempt_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler's release, the fetch of a client and its release, which it sends blindly, are in one micro-batch."""
    world = ClientWorld(share__delivery__count__limit=2)
    world.handler = lambda *_: (RELEASE, "not now")
    world.produce(1)
    engine = world.engine()
    engine.run()
    monkeypatch.setattr("tests.twins.memory_delivery.InMemoryDelivery.room", lambda *_: 0)
    fetched = world.fetch(A)
    world.acknowledge(A, 0, 0, RELEASE)
    engine.run()
    assert world.acquired(fetched) == [(0, 0, 2)]
    assert [(letter.delivery_count, letter.error) for letter in world.dead_letters.letters] == [(2, None)]


def test_who_waits_is_told_of_new_records_and_of_changed_states(world: ClientWorld) -> None:
    engine = world.engine()
    engine.run()
    assert world.clients is not None
    world.clients.changed.clear()
    engine.run()
    assert world.clients.changed == []
    world.produce(5)
    engine.run()
    assert world.clients.changed == [{world.key()}]


def beside_a_handler(monkeypatch: pytest.MonkeyPatch, handler: Callable[..., AcknowledgeType]) -> ClientWorld:
    world = ClientWorld()
    world.handler = handler
    return world


def test_a_handler_gets_what_clients_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    world = beside_a_handler(monkeypatch, lambda *_: ACCEPT)
    world.produce(10)
    engine = world.engine()
    number = world.fetch(A, most=5)
    engine.run()
    engine.run()
    assert world.acquired(number) == [(0, 4, 1)]
    assert [offset for _, offset, _ in world.calls] == [5, 6, 7, 8, 9]
    world.acknowledge(A, 0, 4, ACCEPT)
    engine.run()
    assert world.window() == "10-10"


def test_a_death_puts_in_doubt_what_the_handler_had_and_not_what_clients_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> AcknowledgeType:
        raise Death

    world = beside_a_handler(monkeypatch, die)
    world.produce(10)
    world.fetch(A, most=5)
    with pytest.raises(Death):
        world.engine().run()
    world.machine_is_lost()
    world.handler = lambda *_: (RELEASE, "not now")
    successor = world.engine()
    world.pauses = Pauses((Pause(),))
    world.clock.advance(LOCK_MS)
    successor.run()
    found = [(run.first_offset, run.doubt) for run in world.state().in_flight]
    assert found == [(0, Doubt.NONE), (5, Doubt.LOST_ONCE)]


def test_offsets_of_a_read_are_as_it_says() -> None:
    read = ReadAhead(3, (LogBatch(5, 9), LogBatch(20, 24)))
    assert [offset for offset in range(30) if read.holds(offset)] == list(range(3, 25))


def test_the_end_of_a_clients_lock_is_no_reason_to_look_for_traces(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where engines leave none, the records that they had are looked for one by one."""
    world.produce(5)
    world.fetch(A)
    world.engine().run()
    successor = world.engine()
    monkeypatch.setattr(type(successor.delivery), "traces", lambda _: pytest.fail("no engine has held these records"))
    world.clock.advance(LOCK_MS)
    successor.run()
    assert world.window() == "0-5: 0-4 V1"


def test_nothing_is_acquired_past_the_end_of_the_log_that_the_engine_knows(world: ClientWorld) -> None:
    """A read may be newer than the engine's look at the log, and a log that ends below what is acquired looks
    truncated."""
    world.produce(10)
    engine = world.engine()
    world._ask(0, fetch_of(A, tuple(LogBatch(first, first + 4) for first in (0, 5, 10, 15)), 100))
    engine.run()
    assert world.acquired(1) == [(0, 9, 1)]
    past_the_end = world._ask(0, fetch_of(A, (LogBatch(10, 10),), 100))
    engine.run()
    assert world.acquired(past_the_end) == []


def test_what_was_read_of_a_truncated_log_is_forgotten(world: ClientWorld) -> None:
    world.produce(10)
    engine = world.engine()
    engine.run()
    world.topics.truncate(TopicPartition(TOPIC, 0), 5)
    engine.run()
    assert world.clients is not None
    assert world.clients.forgotten == [world.key()]
    world.produce(10)
    engine.run()
    assert world.clients.forgotten == [world.key()]


def test_log_ends_may_be_as_old_as_is_allowed(world: ClientWorld) -> None:
    topics = SubscribedTopics(group_id=GROUP, topics=(), log=world.topics, clock=world.clock, most_age_ms=80)
    topics.subscribe([TOPIC])

    def end() -> int:
        return topics.log_ends()[world.key()].end_offset

    assert end() == 0
    world.produce(10)
    world.clock.advance(79)
    assert end() == 0
    world.clock.advance(1)
    assert end() == 10
    world.topics.create_topic("another")
    topics.subscribe(["another"])
    assert len(topics.log_ends()) == 2


@pytest.mark.usefixtures("world")
def test_clients_acquire_at_the_rate_of_their_group_whatever_the_batches_are() -> None:
    world = ClientWorld(partitions=2, delivery__rate__limit=10)
    world.produce(200)
    engine, fetched = world.engine(), list[int]()
    for _ in range(40):
        asked = [(world.fetch(A, partition=at, batch=100), at) for at in (0, 1)]
        progress = engine.run()
        got = sum(last - first + 1 for number, at in asked for first, last, _ in world.acquired(number, at))
        assert got == progress.acquired
        fetched.append(got)
        world.clock.advance(250)
    # There are no tokens at the start; later each 250 ms bring 2.5, and those not used are kept.
    assert (fetched[0], sum(fetched), max(fetched)) == (0, 97, 5)


def test_clients_and_handlers_share_the_rate_also_if_it_is_one_record_at_a_time() -> None:
    shares = {}
    for per_s, step_ms in ((100, 1_000), (1, 1_000)):
        world = ClientWorld(delivery__rate__limit=per_s)
        world.produce(2_000)
        engine = world.engine()
        clients = total = 0
        for _ in range(11):
            number = world.fetch(A, batch=2_000)
            total += engine.run().acquired
            clients += sum(last - first + 1 for first, last, _ in world.acquired(number))
            world.clock.advance(step_ms)
        shares[per_s] = (clients, total)
    assert shares == {100: (500, 1_000), 1: (5, 10)}
