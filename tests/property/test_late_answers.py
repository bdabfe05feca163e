"""Lives of a share group whose calls outlast micro-batches: engines die at any moment, with calls in every state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.model.errors import FencedError
from share_spark.model.records import Doubt
from share_spark.partition.runs import run_at
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, TOPIC, Death, EngineLife, InMemoryGroup, at
from tests.support.examples import examples
from tests.twins.late_delivery import LateDelivery
from tests.twins.memory import Moment, StateCommit
from tests.twins.memory_delivery import Answer

pytestmark = pytest.mark.usefixtures("window_form")

LIMIT, LOCK_MS = 4, 30_000


class Life:
    """A group, its random handler, and what that has seen. ``deaths``: how many engines may still die. ``accepted``:
    how often, by offset. ``failed``:
    (offset, delivery count) of calls that failed; ``unsaid``: those whose engine died before a commit had that.
    ``charged``: how often an engine died in a record that was accused of it before."""

    def __init__(self, seed: int, *, output: bool, deaths: int, **settings: object) -> None:
        self.rng, self.deaths, self.handled = Random(seed), deaths, 0
        self.accepted: Counter[int] = Counter()
        self.failed: set[tuple[int, int]] = set()
        self.unsaid: set[tuple[int, int]] = set()
        self.charged: Counter[int] = Counter()
        self.done: dict[int, Answer] = {}
        self.world = InMemoryGroup(
            handler=self.handle,
            output=output,
            loses_rows=output and self.rng.random() < 0.3,
            late=self.rng,
            share__delivery__count__limit=LIMIT,
            delivery__max__in__flight=self.rng.randint(1, 6),
            **settings,
        )

    def handle(self, _topic: str, _partition: int, offset: int, count: int) -> Answer:
        self.handled += 1
        if self.strikes(0.02):
            run = run_at(self.world.state().in_flight, offset)
            assert run is not None
            self.charged[offset] += run.doubt >= Doubt.ACCUSED
            raise Death
        said = self.rng.choices([ACCEPT, RELEASE, REJECT], [8, 3, 1])[0]
        if said is RELEASE:
            self.failed.add((offset, count))
        if said is RELEASE and self.rng.random() < 0.5:
            return RELEASE, "busy", self.rng.choice([0, 1_000, 40_000])
        if said is REJECT:
            return REJECT, "no"
        self.accepted[offset] += said is ACCEPT
        return said

    def strikes(self, rate: float) -> bool:
        if self.deaths and self.rng.random() < rate:
            self.deaths -= 1
            return True
        return False

    def interrupt(self, _moment: Moment, commit: StateCommit) -> None:
        if commit.kind == "records" and self.strikes(0.03):
            raise Death

    def run_slowly(self, engine: EngineLife) -> None:
        engine.run()
        self.world.clock.advance(45_000)

    def play(self, step: Callable[[EngineLife], None]) -> None:
        """One engine after another, until everything is finished."""
        for _ in range(200):
            engine = self.world.engine(available_now=True, interrupt=self.interrupt)
            try:
                for _ in range(2_000):
                    if engine.engine.done:
                        return
                    step(engine)
                raise AssertionError(f"not done: {self.world.window()}")
            except Death:
                self.has_died()
        raise AssertionError("engines never end")

    def go_on(self, step: Callable[[EngineLife], None], steps: int) -> None:
        """One engine after another, for so many steps."""
        engine = self.world.engine(interrupt=self.interrupt)
        for _ in range(steps):
            try:
                step(engine)
            except Death:
                self.has_died()
                engine = self.world.engine(interrupt=self.interrupt)

    def has_died(self) -> None:
        self.unsaid |= self.failed & self.held()
        self.world.clock.advance(self.rng.choice([0, 1_000, LOCK_MS]))

    def held(self) -> set[tuple[int, int]]:
        """The attempts of which the state has no end yet."""
        runs = [run for run in self.world.state().in_flight if run.member_id is not None] if self.failed else []
        return {(o, run.delivery_count) for run in runs for o in range(run.first_offset, run.last_offset + 1)}

    def failures(self, offset: int) -> tuple[int, int]:
        """How often a record has failed, at least and at most: what its engine has not said may be in a ledger, or in
        the journal of a sink, and counts then."""
        said, most = (sum(o == offset for o, _ in some) for some in (self.failed - self.unsaid, self.failed))
        return said + self.charged[offset], most + self.charged[offset]


@settings(max_examples=examples(150))
@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 5))
def test_everything_is_finished_whatever_dies_when(seed: int, output: bool, deaths: int) -> None:
    life = Life(seed, output=output, deaths=deaths)
    world, records = life.world, life.rng.randint(1, 40)
    world.produce(records)

    def step(engine: EngineLife) -> None:
        engine.run()
        world.clock.advance(life.rng.choice([10, 500, 45_000]))

    life.play(step)
    assert world.window() == f"{records}-{records}"
    letters = Counter(
        offset for letter in world.dead_letters.letters for offset in range(letter.first_offset, letter.last_offset + 1)
    )
    assert set(letters.values()) <= {1}
    for offset in letters:
        reason = next(one for one in world.dead_letters.letters if one.first_offset <= offset <= one.last_offset).reason
        least, most = life.failures(offset)
        assert (reason == "rejected") or least <= LIMIT <= most, (offset, reason)
    if world.output is not None:
        rows = Counter(row.offset for row in world.output.rows)
        assert rows == Counter(set(range(records)) - letters.keys())
    if not world.loses_rows:
        assert max(life.accepted.values(), default=0) <= 1, "a call that was accepted is made again"


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_without_deaths_each_call_counts_once(seed: int) -> None:
    """The counts that the handler sees are 1, 2, 3 ... for each record, and locks end for nobody."""
    life = Life(seed, output=False, deaths=0)
    world = life.world
    world.produce(30)

    def step(engine: EngineLife) -> None:
        engine.run()
        world.clock.advance(life.rng.choice([10, 45_000]))

    life.play(step)
    seen: dict[int, list[int]] = {}
    for _, offset, count in world.calls:
        seen.setdefault(offset, []).append(count)
    assert all(counts == list(range(1, len(counts) + 1)) for counts in seen.values())
    assert all(life.failures(at)[0] == len(counts) - 1 or len(counts) == LIMIT for at, counts in seen.items())


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32), st.booleans())
def test_an_engine_that_stops_waits_for_its_calls_and_gives_back_the_rest_uncharged(seed: int, output: bool) -> None:
    life = Life(seed, output=output, deaths=0)
    world = life.world
    world.produce(20)
    for _ in range(life.rng.randint(1, 6)):
        engine = world.engine()
        for _ in range(life.rng.randint(1, 4)):
            engine.run()
        engine.run(stopping=True)
        assert not [run for run in world.state().in_flight if run.member_id is not None]
    counts = dict.fromkeys(range(20), 0)
    for _, offset, count in world.calls:
        counts[offset] += 1
        assert count == counts[offset]
    life.play(life.run_slowly)
    assert world.window() == "20-20"


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32), st.integers(0, 5))
def test_logs_may_lose_what_is_in_flight(seed: int, deaths: int) -> None:
    """At their start and at their end. What is written at the same offsets later, once the group has seen that, are
    other records: no answer for a former one is theirs, so each of them is called."""
    life = Life(seed, output=False, deaths=deaths)
    world, rng = life.world, life.rng
    world.produce(20)
    changes = iter(range(6))
    cut_at: list[int] = []
    written: dict[int, int] = {}
    """By offset of a record that was written behind a truncation: how many calls there were before."""

    def change(start: int, end: int) -> None:
        place = rng.randint(start, end)
        is_cut = rng.random() < 0.6
        if is_cut:
            world.topics.truncate(at(), place)
            cut_at.append(place)
        else:
            world.topics.move_log_start(at(), place)
        for offset in [offset for offset in written if (offset >= place) == is_cut]:
            del written[offset]

    def step(engine: EngineLife) -> None:
        engine.run()
        start, end = world.topics.log_ends(TOPIC)[0].log_start_offset, world.topics.log_ends(TOPIC)[0].log_end
        if cut_at and world.state().end_offset <= end:
            records = rng.randint(0, 5)
            written.update(dict.fromkeys(range(end, end + records), len(world.calls)))
            world.produce(records)
            cut_at.clear()
        elif not cut_at and next(changes, None) is not None:
            change(start, end)
        if life.strikes(0.2):
            raise Death
        world.clock.advance(rng.choice([10, 45_000]))

    life.go_on(step, 40)
    life.play(life.run_slowly)
    assert world.state().start_offset >= world.topics.log_ends(TOPIC)[0].log_end
    called = {offset for offset, before in written.items() if offset in {call[1] for call in world.calls[before:]}}
    assert called == written.keys()


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(1, 5))
def test_keys_keep_their_order(seed: int, deaths: int, keys: int) -> None:
    """A handler is entered with a record once all before it that have its key are finished."""
    life = Life(seed, output=False, deaths=deaths, delivery__order="key")
    world, rng = life.world, life.rng
    letters = "".join(rng.choice("abcde"[:keys] + ".") for _ in range(rng.randint(2, 40)))
    world.produce_keys(letters)
    finished: set[int] = set()
    too_early: list[int] = []

    def is_finished(offset: int) -> bool:
        state = world.state()
        run = run_at(state.in_flight, offset)
        return offset in finished or offset < state.start_offset or (run is not None and run.delivery_state.is_final)

    def handle(topic: str, partition: int, offset: int, count: int) -> Answer:
        before = [at for at in range(offset) if letters[at] == letters[offset] != "."]
        if not all(map(is_finished, before)):  # what is raised here would be a release
            too_early.append(offset)
        said = life.handle(topic, partition, offset, count)
        if (said[0] if isinstance(said, tuple) else said) in (ACCEPT, REJECT):
            finished.add(offset)
        return said

    def step(engine: EngineLife) -> None:
        engine.run()
        assert isinstance(engine.delivery, LateDelivery)
        calls = engine.delivery.driver.calls
        running = [letters[one.offset] for one in (calls.running if calls else ()) if letters[one.offset] != "."]
        assert (too_early, len(running)) == ([], len(set(running)))
        world.clock.advance(rng.choice([10, 500, 45_000]))

    world.handler = handle
    life.play(step)
    assert world.window() == f"{len(letters)}-{len(letters)}"


def run_often(engine: EngineLife) -> None:
    for _ in range(50):
        engine.run()


def test_an_engine_that_was_replaced_commits_none_of_its_late_answers() -> None:
    life = Life(7, output=True, deaths=0)
    world = life.world
    world.produce(10)
    zombie = world.engine()
    zombie.run()
    life.play(life.run_slowly)
    assert zombie.engine._calls.in_flight
    with pytest.raises(FencedError):
        run_often(zombie)
    assert world.window() == "10-10"
