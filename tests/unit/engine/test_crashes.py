"""An engine that dies, or does not know whether it has written, or is replaced: at every point of the micro-batch.

What must hold each time: no record is lost, no record whose acceptance was committed is delivered again, and a delivery
count is the number of times that the handler was entered; where a machine was lost with its ledgers, one more for that.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from share_spark.engine.ports import Claim
from share_spark.model.errors import DeadLetterError, FencedError, StateError
from share_spark.model.ids import BatchStamp
from tests.support.engine_deaths import LOCK_MS, dies, dies_in_second_commit, killer, recovers, runs
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, Death, EngineLife, InMemoryGroup, Interruption
from tests.twins.memory import Moment, StateCommit
from tests.twins.memory_delivery import InMemoryDelivery
from tests.twins.memory_output import InMemoryNoDeadLetters


def test_death_before_the_append_of_acknowledgements_repeats_no_call() -> None:
    """The ledgers have the answers."""
    world = InMemoryGroup()
    world.produce(5)
    dies_in_second_commit(world, Moment.BEFORE_APPEND)
    assert world.window() == "0-5: 0-4 Q1"
    recovers(world)
    assert set(world.deliveries.values()) == {1}


def test_death_before_the_append_of_acknowledgements_repeats_the_delivery_without_ledgers() -> None:
    world = InMemoryGroup()
    world.produce(5)
    dies_in_second_commit(world, Moment.BEFORE_APPEND)
    world.machine_is_lost()
    recovers(world)
    assert set(world.deliveries.values()) == {2}


def test_rows_of_accepted_records_are_lost_with_their_engine_and_other_answers_are_not() -> None:
    answers = {1: (RELEASE, "busy"), 2: (REJECT, "never")}
    world = InMemoryGroup(
        handler=lambda _topic, _partition, offset, _count: answers.get(offset, ACCEPT), output=True, loses_rows=True
    )
    world.produce(4)
    engine = world.engine()
    assert engine.sink is not None
    engine.sink.hook = killer("before journal")
    dies(engine)
    world.handler = lambda *_: ACCEPT
    recovers(world)
    assert world.deliveries == {(0, 0): 2, (0, 1): 2, (0, 2): 1, (0, 3): 2}
    assert [(letter.first_offset, letter.error) for letter in world.dead_letters.letters] == [(2, "never")]


def test_answers_of_an_attempt_that_the_state_has_absorbed_do_not_count_again() -> None:
    """Released, and acquired once more in the same commit; its engine died before the next delivery began."""
    world = InMemoryGroup(handler=lambda *_: RELEASE)
    world.produce(1)
    dies_in_second_commit(world, Moment.AFTER_APPEND)
    assert world.window() == "0-1: 0-0 Q2"
    world.handler = lambda *_: ACCEPT
    second = world.engine()
    second.run()
    assert world.window() == "0-1: 0-0 Q2"
    world.clock.advance(LOCK_MS)
    runs(second, 3)
    assert world.calls == [(0, 0, 1), (0, 0, 2)]


def test_the_calls_of_the_one_before_the_last_count_if_the_last_one_delivered_nothing() -> None:
    world = InMemoryGroup()
    world.produce(5)
    dies_in_second_commit(world, Moment.BEFORE_APPEND)
    dies(world.engine(interrupt=Interruption(Moment.BEFORE_APPEND, Death())))
    recovers(world)
    assert set(world.deliveries.values()) == {1}


def test_what_was_accepted_before_the_death_is_never_delivered_again() -> None:
    world = InMemoryGroup(handler=lambda _topic, _partition, offset, _count: RELEASE if offset == 3 else ACCEPT)
    world.produce(5)
    dies_in_second_commit(world, Moment.AFTER_APPEND)
    assert world.window() == "3-5: 3-3 Q2, 4-4 D1"
    world.handler = lambda *_: ACCEPT
    recovers(world)
    assert world.calls[5:] == [(0, 3, 2)], "the second acquisition had not come to the handler"


def test_locks_of_an_ended_engine_hold_until_their_deadline() -> None:
    """R55: no sooner, since the next engine cannot know that the other has ended."""
    world = InMemoryGroup()
    world.produce(5)
    dies(world.engine(interrupt=Interruption(Moment.AFTER_APPEND, Death())))
    world.produce(2)
    engine = world.engine()
    engine.run()
    assert world.calls == [(0, 5, 1), (0, 6, 1)]
    world.clock.advance(LOCK_MS)
    for _ in range(4):
        engine.run()
    assert world.calls[2:] == [(0, offset, 1) for offset in range(5)]


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_append_of_unknown_outcome_changes_nothing_for_the_records(moment: Moment, nth: int) -> None:
    """It happened or it did not: the log shows which, and each record is delivered as if nothing had been."""
    world = InMemoryGroup(
        handler=lambda _topic, _partition, offset, count: RELEASE if (offset, count) == (1, 1) else ACCEPT
    )
    world.produce(3)
    engine = world.engine(available_now=True, interrupt=Interruption(moment, OSError("timed out"), nth))
    engine.run_until_done()
    assert world.calls == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 1, 2)]
    assert world.window() == "3-3"


@pytest.mark.parametrize("nth", [1, 2])
def test_an_unknown_append_happens_at_most_once(nth: int) -> None:
    world = InMemoryGroup()
    world.produce(3)
    world.engine(
        available_now=True, interrupt=Interruption(Moment.AFTER_APPEND, OSError("timed out"), nth)
    ).run_until_done()
    assert [commit.batch_id for commit in world.state_log.commits] == [-1, 0, 1]


def test_a_log_that_refuses_every_append_stops_the_engine_and_keeps_the_state() -> None:
    world = InMemoryGroup()
    world.produce(3)

    def refuse(moment: Moment, _commit: StateCommit) -> None:
        if moment is Moment.BEFORE_APPEND:
            raise OSError("disk full")

    engine = world.engine(interrupt=refuse)
    with pytest.raises(StateError, match="refused micro-batch 0 3 times"):
        engine.run()
    assert world.calls == []
    recovers(world)
    assert world.calls == [(0, offset, 1) for offset in range(3)]


def test_a_second_engine_fences_the_first() -> None:
    world = InMemoryGroup()
    world.produce(3)
    first = world.engine()
    first.run()
    world.machine_is_lost()
    second = world.engine()
    with pytest.raises(FencedError, match="writer epoch 2"):
        first.run()
    world.clock.advance(LOCK_MS)
    second.run()
    assert world.window() == "0-3: 0-2 V1"
    second.run()
    assert world.window() == "0-3: 0-2 Q2"


def test_the_append_of_a_zombie_is_ignored() -> None:
    """It accepted the records after its successor had claimed: they are delivered again, with an exact count."""
    world = InMemoryGroup()
    world.produce(3)
    zombie = world.engine()
    zombie.run()
    world.machine_is_lost()
    second = world.engine()
    with pytest.raises(FencedError):
        zombie.run()
    assert world.state_log.commits[-1].run_id == "run1"
    assert world.window() == "0-3: 0-2 Q1"
    second.run()
    third = world.engine()
    assert third.engine.next_deadline_ms == world.clock() + LOCK_MS


def test_the_answers_of_a_zombie_count_once() -> None:
    """Its successor takes them over; its own append does not count."""
    world = InMemoryGroup()
    world.produce(3)
    zombie = world.engine()
    zombie.run()
    second = world.engine()
    with pytest.raises(FencedError):
        zombie.run()
    second.run()
    assert (world.window(), world.calls) == ("3-3", [(0, 0, 1), (0, 1, 1), (0, 2, 1)])


def test_a_fenced_engine_calls_no_handler_after_it_has_looked() -> None:
    world = InMemoryGroup()
    first = world.engine()
    world.engine()
    world.produce(3)
    with pytest.raises(FencedError):
        first.run()
    assert world.calls == []


def test_a_claim_between_the_append_and_the_look_fences() -> None:
    world = InMemoryGroup()
    world.produce(3)
    claims: list[Callable[[], object]] = [lambda: world.engine()]

    def overtaken(moment: Moment, _commit: StateCommit) -> None:
        if moment is Moment.AFTER_APPEND and claims:
            claims.pop()()

    engine = world.engine(interrupt=overtaken)
    with pytest.raises(FencedError):
        engine.run()
    assert world.calls == []
    assert world.window() == "0-3: 0-2 Q1"


def test_of_two_claims_of_one_epoch_the_first_wins() -> None:
    """Both engines have read the same log before either of them wrote."""
    world = InMemoryGroup()
    winners: list[EngineLife] = []
    late = world.engine()
    late.store.run_id = "late"

    def overtaken(moment: Moment, _commit: StateCommit) -> None:
        if moment is Moment.BEFORE_APPEND and not winners:
            winners.append(world.engine())

    late.store.interrupt = overtaken
    with pytest.raises(FencedError, match="writer epoch 2"):
        late.store.claim()
    assert [commit.writer_epoch for commit in world.state_log.commits] == [1, 2, 2]
    world.produce(1)
    winners[0].run()
    assert world.window() == "0-1: 0-0 Q1"


def test_stopping_commits_what_was_handled_and_acquires_nothing() -> None:
    world = InMemoryGroup(handler=lambda _topic, _partition, offset, _count: RELEASE if offset == 1 else ACCEPT)
    world.produce(3)
    engine = world.engine()
    engine.run()
    world.produce(5)
    engine.run(stopping=True)
    assert len(world.calls) == 3
    assert world.window() == "1-3: 1-1 V1, 2-2 D1"
    world.engine().run()
    assert (0, 1, 2) in world.calls


def test_stopping_leaves_the_locks_of_the_dead_alone() -> None:
    world = InMemoryGroup()
    world.produce(3)
    dies(world.engine(interrupt=Interruption(Moment.AFTER_APPEND, Death())))
    world.engine().run(stopping=True)
    assert world.window() == "0-3: 0-2 Q1"


def with_refused_letters(produced: int, **settings: object) -> tuple[InMemoryGroup, EngineLife]:
    """Return a group that rejects each record, and its engine, which could not write the first dead letters."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"), **settings)
    world.produce(produced)
    engine = world.engine()
    engine.run()
    world.dead_letters.refuse = DeadLetterError("no such topic")
    with pytest.raises(DeadLetterError):
        engine.run()
    return world, engine


def test_a_refused_dead_letter_stops_the_engine_and_is_written_by_the_next() -> None:
    world, _ = with_refused_letters(2)
    assert world.window() == "2-2"
    assert world.dead_letters.letters == []
    world.dead_letters.refuse = None
    recovers(world)
    assert [letter[1:4] for letter in world.dead_letters.letters] == [(0, 1, 1)]


@pytest.mark.parametrize("moment", [Moment.BEFORE_APPEND, Moment.AFTER_APPEND])
def test_a_dead_letter_is_there_exactly_if_its_record_was_archived(moment: Moment) -> None:
    """Announced before the commit, written after it: a crash on either side makes neither none nor two."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"))
    world.produce(1)
    dies_in_second_commit(world, moment)
    recovers(world)
    assert [(letter.delivery_count, letter.error) for letter in world.dead_letters.letters] == [(1, "never")]


def test_an_engine_that_wakes_after_another_took_over_leaves_what_that_one_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has claimed, and sleeps before it looks for dead letters; the other archives, and dies before it writes."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"))
    world.produce(1)
    start = InMemoryDelivery.start

    def late(delivery: InMemoryDelivery, claim: Claim) -> None:
        monkeypatch.setattr(InMemoryDelivery, "start", start)
        dies_in_second_commit(world, Moment.AFTER_APPEND)
        start(delivery, claim)

    monkeypatch.setattr(InMemoryDelivery, "start", late)
    with pytest.raises(FencedError):
        world.engine().run()
    recovers(world)
    assert (letters_of(world), world.window()) == ([(0, 0)], "1-1")


def letters_of(world: InMemoryGroup) -> list[tuple[int, int]]:
    return [letter[1:3] for letter in world.dead_letters.letters]


def test_dead_letters_that_could_not_be_written_come_before_later_ones() -> None:
    """A table takes no letters of an earlier micro-batch after those of a later one."""
    world, engine = with_refused_letters(3, max__records__per__trigger=1)
    engine.run()
    with pytest.raises(DeadLetterError):
        engine.run()
    assert (letters_of(world), len(world.dead_letters.table.announced)) == ([], 2)
    world.dead_letters.refuse = None
    world.produce(1)
    engine.run()
    engine.run()
    assert letters_of(world) == [(0, 0), (2, 2), (3, 3)]
    recovers(world)
    assert letters_of(world) == [(0, 0), (2, 2), (3, 3), (1, 1)]


def does_not_know(world: InMemoryGroup, monkeypatch: pytest.MonkeyPatch) -> tuple[EngineLife, list[StateCommit]]:
    """An engine whose append of a rejection failed, and that could not ask the log; and that append."""
    failed: list[StateCommit] = []
    engine = world.engine()
    engine.run()

    def fails(_moment: Moment, commit: StateCommit) -> None:
        failed.append(commit)
        raise OSError("timed out")

    def unreachable(*_: object) -> bool:
        raise StateError("out of reach")

    engine.store.interrupt = fails
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.store), "was_committed", unreachable)
        with pytest.raises(StateError):
            engine.run()
    return engine, failed


def test_what_was_announced_for_a_commit_that_did_not_happen_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next engine archives the record; the letter is there once."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"))
    world.produce(1)
    engine, _ = does_not_know(world, monkeypatch)
    with pytest.raises(StateError, match="may still land"):
        engine.run(stopping=True)
    recovers(world)
    assert letters_of(world) == [(0, 0)]


def test_a_commit_that_happens_after_all_has_its_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log said that it had not; it lands when its engine is dead."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"))
    world.produce(1)
    engine, failed = does_not_know(world, monkeypatch)
    with pytest.raises(StateError, match="may still land"):
        engine.run(stopping=True)
    world.state_log.commits += failed
    recovers(world)
    assert (letters_of(world), world.window()) == ([(0, 0)], "1-1")


def test_an_engine_that_wakes_up_in_its_start_leaves_the_letters_of_its_successor_alone() -> None:
    """It was frozen between its claim and its recovery. The successor has committed what it announced, and has died."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"))
    world.produce(1)
    frozen = world.make_store(world, "frozen")
    claim = frozen.claim()
    frozen.load()
    dies_in_second_commit(world, Moment.AFTER_APPEND)
    world.dead_letters.recover(claim, frozen.last_counted, {})
    recovers(world)
    assert letters_of(world) == [(0, 0)]


def run_without_target(world: InMemoryGroup) -> None:
    """A run from its claim to a commit that counts."""
    world.runs += 1
    engine = EngineLife(world, f"run{world.runs}", available_now=False)
    ports = replace(engine.engine.ports, dead_letters=InMemoryNoDeadLetters(world.dead_letters.table))
    engine.engine = replace(engine.engine, ports=ports)
    engine.engine.start()
    world.produce(1)
    engine.run()
    assert world.state_log.commits[-1].run_id == engine.store.run_id


@pytest.mark.parametrize(("moment", "written"), [(Moment.BEFORE_APPEND, []), (Moment.AFTER_APPEND, [(0, 0)])])
def test_letters_that_a_run_before_has_left_wait_while_there_is_no_target(
    moment: Moment, written: list[tuple[int, int]]
) -> None:
    """What was announced and not committed is dropped: its record is not archived."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"))
    world.produce(1)
    dies_in_second_commit(world, moment)
    for _ in range(2):
        run_without_target(world)
    assert (letters_of(world), len(world.dead_letters.table.announced)) == ([], 0)
    world.engine()
    assert letters_of(world) == written
    assert not world.dead_letters.table.waiting


def test_a_frozen_engine_takes_nothing_from_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its append landed though the log had said that it would not; a run without target has judged it since."""
    world = InMemoryGroup(handler=lambda *_: (REJECT, "never"))
    world.produce(1)
    _, failed = does_not_know(world, monkeypatch)
    stamp = BatchStamp(failed[0].writer_epoch, failed[0].batch_id)
    world.state_log.commits += failed
    run_without_target(world)
    world.dead_letters.withdraw(stamp)
    with pytest.raises(FencedError, match="has taken over the dead letters"):
        world.dead_letters.write(stamp)
    assert letters_of(world) == []
    world.engine()
    assert letters_of(world) == [(0, 0)]


def test_what_a_failing_dead_letter_target_held_up_is_given_back_uncharged() -> None:
    world, engine = with_refused_letters(2, max__records__per__trigger=1)
    assert world.window() == "1-2: 1-1 Q1"
    engine.run(stopping=True)
    assert world.window() == "1-2: 1-1 V0"


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_segments_roll_and_the_newest_one_is_the_whole_state(updates: int) -> None:
    """R74-R76: after so many updates a new segment begins with a snapshot of every live share-partition."""
    world = InMemoryGroup(
        partitions=2,
        handler=lambda *_: RELEASE,
        share__coordinator__snapshot__update__records__per__snapshot=updates,
        share__delivery__count__limit=25,
    )
    world.produce(1, 0)
    engine = world.engine()
    for _ in range(7):
        engine.run()
    own = [commit for commit in world.state_log.commits if commit.kind == "records"]
    sizes = [sum(c.segment == segment for c in own) for segment in dict.fromkeys(c.segment for c in own)]
    assert sizes[:-1] == [updates] * (len(sizes) - 1)
    firsts = [next(c for c in own if c.segment == segment) for segment in {c.segment for c in own}]
    assert all(len(first.records) == 2 for first in firsts)
    assert world.window(0) == "0-1: 0-0 Q7"
    assert world.window(1) == "0-0"


@pytest.mark.parametrize("moment", list(Moment))
def test_an_engine_that_cannot_learn_whether_it_has_appended_decides_nothing_on_what_it_believes(
    moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is away for the append and the load; then it is back for the closing micro-batch. What may still land
    is followed by nothing: the next engine takes over what was finished."""
    world = InMemoryGroup()
    world.produce(3)
    engine = world.engine(interrupt=Interruption(moment, OSError("gone"), nth=2))
    engine.run()
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.store), "load", lambda _self: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            engine.run()
    if moment is Moment.AFTER_APPEND:
        engine.run(stopping=True)
    else:
        with pytest.raises(StateError, match="may still land"):
            engine.run(stopping=True)
        recovers(world)
    assert world.window() == "3-3"
    assert world.deliveries == Counter({(0, offset): 1 for offset in range(3)})
