"""A log that loses its end under a group: nothing stalls, what exists is delivered, nothing else is delivered twice."""

from __future__ import annotations

import logging

import pytest

from share_spark.engine.attempts import EndedAttempt, ended_attempts
from share_spark.engine.step import PartitionInput, step
from share_spark.model.errors import DeadLetterError, StateError, TopicUnreachableError
from share_spark.model.ids import BatchStamp
from share_spark.partition import PartitionLimits
from tests.support.engine_world import (
    ACCEPT,
    REJECT,
    RELEASE,
    TOPIC,
    Death,
    EngineLife,
    InMemoryGroup,
    Interruption,
    at,
)
from tests.support.share_partition import KEY, Partition
from tests.twins.memory import MemoryRecord, Moment

pytestmark = pytest.mark.usefixtures("window_form")


def calls_of(world: InMemoryGroup, since: int) -> list[tuple[int, int]]:
    return [(offset, count) for _, offset, count in world.calls[since:]]


def new(first: int, end: int) -> list[tuple[int, int]]:
    return [(offset, 1) for offset in range(first, end)]


def drained(world: InMemoryGroup, engine: EngineLife) -> None:
    while not (progress := engine.run()).idle:
        assert progress.batch_id < 50, world.window()


def test_records_written_again_at_the_old_offsets_are_delivered(caplog: pytest.LogCaptureFixture) -> None:
    world = InMemoryGroup()
    world.produce(10)
    engine = world.engine()
    drained(world, engine)
    world.topics.truncate(at(), 6)
    with caplog.at_level(logging.WARNING):
        drained(world, engine)
    assert caplog.messages == [
        "partition 0 of topic 'orders' was truncated: its log ends at offset 6, and offsets 6 to 9 are gone; "
        "what is written there from now on are new records"
    ]
    assert world.window() == "6-6"
    world.produce(7)
    drained(world, engine)
    assert calls_of(world, 10) == new(6, 13)
    assert world.window() == "13-13"


def test_fewer_records_than_were_lost() -> None:
    """Written before the engine has looked, and less than before: what is above the new end is new later."""
    world = InMemoryGroup()
    world.produce(10)
    engine = world.engine()
    drained(world, engine)
    world.topics.truncate(at(), 4)
    world.produce(2)
    drained(world, engine)
    world.produce(5)
    drained(world, engine)
    assert calls_of(world, 10) == new(6, 11), "4 and 5 were there again before the engine could see that they were gone"


def test_the_next_engine_finds_it() -> None:
    world = InMemoryGroup()
    world.produce(10)
    drained(world, world.engine())
    world.topics.truncate(at(), 6)
    engine = world.engine()
    drained(world, engine)
    world.produce(1)
    drained(world, engine)
    assert calls_of(world, 10) == new(6, 7)


def test_what_lies_below_the_new_end_is_untouched() -> None:
    """Released and accepted there: redelivered once, with its count, or not at all."""
    world = InMemoryGroup(
        handler=lambda _topic, _partition, offset, count: RELEASE if offset % 3 == 0 and count == 1 else ACCEPT
    )
    world.produce(10)
    engine = world.engine()
    engine.run()
    world.topics.truncate(at(), 5)
    drained(world, engine)
    world.produce(3)
    drained(world, engine)
    assert sorted(calls_of(world, 10)) == sorted([(0, 2), (3, 2), *new(5, 8), (6, 2)])
    assert world.window() == "8-8"


def test_the_locks_of_the_dead_above_the_new_end_are_gone_at_once() -> None:
    world = InMemoryGroup()
    world.produce(10)

    def dies(*_: object) -> None:
        raise Death

    world.handler = dies  # type: ignore[assignment]
    with pytest.raises(Death):
        world.engine().run()
    world.handler = lambda *_: ACCEPT
    world.topics.truncate(at(), 4)
    engine = world.engine()
    engine.run()
    assert world.window().endswith("Q1")
    assert world.window().startswith("0-4: ")
    world.produce(3)
    drained(world, engine)
    assert calls_of(world, 1) == new(4, 7), "without waiting for a lock"
    world.clock.advance(30_001)
    engine.run()
    drained(world, engine)
    assert sorted(offset for offset, _ in calls_of(world, 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("first_engine_knows", [False, True])
def test_what_is_known_of_the_lost_records_is_not_held_against_those_that_are_written_there(
    first_engine_knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their engine dies before it enters a handler with them, and has left the ledgers of the delivery before; perhaps
    the micro-batch that found the truncation was not known to have been written until the next one."""
    world = InMemoryGroup()
    world.produce(10)
    engine = world.engine()
    engine.run()
    world.topics.truncate(at(), 4)
    if first_engine_knows:
        engine.run()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(type(engine.store), "was_committed", unreachable)
            engine.store.interrupt = Interruption(Moment.AFTER_APPEND, OSError("timed out"))
            with pytest.raises(StateError):
                engine.run()
    world.produce(3)
    engine.store.interrupt = Interruption(Moment.AFTER_APPEND, Death())
    with pytest.raises(Death):
        engine.run()
    assert world.window() == "4-7: 4-6 Q1"
    world.clock.advance(30_000)
    drained(world, world.engine())
    assert calls_of(world, 10) == new(4, 7)


def unreachable(*_: object) -> bool:
    raise StateError("out of reach")


def test_no_dead_letter_for_what_is_no_longer_there() -> None:
    """It would be written with the content of another record."""
    world = InMemoryGroup(handler=lambda *_: REJECT)
    world.produce(10)
    engine = world.engine()
    engine.run()
    world.topics.truncate(at(), 6)
    engine.run()
    letters = [(letter.first_offset, letter.last_offset) for letter in world.dead_letters.letters]
    assert letters == [(0, 5)]


@pytest.mark.parametrize("by_a_successor", [False, True])
def test_a_dead_letter_that_waits_is_not_written_with_another_record(by_a_successor: bool) -> None:
    """It was archived before the truncation, and its table took nothing until after it."""
    world = InMemoryGroup(handler=lambda *_: REJECT)
    world.produce(10)
    world.dead_letters.is_late = True
    engine = world.engine()
    engine.run()
    world.dead_letters.refuse = DeadLetterError("no room")
    engine.run(stopping=by_a_successor)
    assert (list(world.dead_letters.table.announced), world.dead_letters.letters) == ([BatchStamp(1, 1)], [])
    world.topics.truncate(at(), 6)
    if not by_a_successor:
        engine.run(stopping=True)
    world.dead_letters.refuse = None
    world.engine()
    letters = [(letter.first_offset, letter.last_offset) for letter in world.dead_letters.letters]
    assert letters == [(0, 5)]


@pytest.mark.parametrize("again", [0, 2, 10])
def test_an_available_now_run_does_not_wait_for_what_is_gone(again: int) -> None:
    world = InMemoryGroup(max__records__per__trigger=20)
    world.produce(60)
    engine = world.engine(available_now=True)
    engine.run()
    world.topics.truncate(at(), 10)
    engine.run()
    world.produce(again)
    runs = engine.run_until_done(most=10)
    assert all(progress.acquired == 0 for progress in runs), "its target has followed the end"
    world.engine(available_now=True).run_until_done(most=10)
    assert calls_of(world, 20) == new(10, 10 + again)


def test_a_truncation_between_the_window_and_the_target() -> None:
    """Nothing is forgotten, but less is to come."""
    world = InMemoryGroup(max__records__per__trigger=20)
    world.produce(60)
    engine = world.engine(available_now=True)
    engine.run()
    world.topics.truncate(at(), 30)
    engine.run_until_done(most=10)
    assert calls_of(world, 0) == new(0, 30)


def test_a_log_that_is_emptied_and_begins_higher() -> None:
    world = InMemoryGroup()
    world.produce(10)
    engine = world.engine()
    drained(world, engine)
    world.topics.truncate(at(), 3)
    world.topics.move_log_start(at(), 8)
    drained(world, engine)
    assert world.window() == "8-8"
    world.produce(3)
    drained(world, engine)
    assert calls_of(world, 10) == new(8, 11)


def test_an_engine_that_stops_without_its_topics_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InMemoryGroup(handler=lambda *_: RELEASE)
    world.produce(10)
    engine = world.engine()
    engine.run()

    def unreachable(_self: object, _topic: str) -> None:
        raise TopicUnreachableError("no answer")

    world.topics.truncate(at(), 5)
    monkeypatch.setattr(type(world.topics), "log_ends", unreachable)
    engine.run(stopping=True)
    assert world.window() == "0-10: 0-9 V1"


def test_an_engine_that_stops_says_what_it_has_seen() -> None:
    world = InMemoryGroup()
    world.produce(10)
    engine = world.engine()
    engine.run()
    world.topics.truncate(at(), 5)
    engine.run(stopping=True)
    world.produce(20)
    drained(world, world.engine())
    assert calls_of(world, 10) == new(5, 25)


def test_other_partitions_are_left_alone() -> None:
    world = InMemoryGroup(partitions=2)
    world.produce(5, partition=0)
    world.produce(5, partition=1)
    engine = world.engine()
    drained(world, engine)
    world.topics.truncate(at(1), 2)
    drained(world, engine)
    assert (world.window(0), world.window(1)) == ("5-5", "2-2")


def test_a_segment_that_ends_with_it() -> None:
    """The snapshot of the truncation and the one that begins a segment are one record."""
    world = InMemoryGroup(share__coordinator__snapshot__update__records__per__snapshot=1)
    engine = world.engine()
    for end in (4, 3, 2):
        world.topics.append(at(), [MemoryRecord(0)] * 5)
        drained(world, engine)
        world.topics.truncate(at(), end)
        drained(world, engine)
        assert world.window() == f"{end}-{end}"
    assert calls_of(world, 0) == [*new(0, 5), *new(4, 9), *new(3, 8)]


def test_the_audit_says_so() -> None:
    found = Partition()
    found.fetch("a", (0, 9))
    partition_input = PartitionInput(topic=TOPIC, log_start_offset=0, end_offset=4, truncated_to=4)
    result = step(KEY, found.state, partition_input, limits=PartitionLimits(), member_id="b", now_ms=0)
    assert ended_attempts(result.answered) == [EndedAttempt(4, 9, 1, "truncated")]


def test_nothing_is_acquired_of_what_is_gone() -> None:
    """Not in the micro-batch that finds it, either: its partition input was planned with the old window."""
    found = Partition()
    found.fetch("a", (0, 9))
    found.release("a")
    partition_input = PartitionInput(topic=TOPIC, log_start_offset=0, end_offset=4, truncated_to=4, max_records=10)
    result = step(KEY, found.state, partition_input, limits=PartitionLimits(), member_id="b", now_ms=0)
    assert result.outcome.acquired.tolist() == [[0, 3, 2]]
    assert (result.outcome.summary.start_offset, result.outcome.summary.end_offset) == (0, 4)
