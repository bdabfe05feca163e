"""Random lives of a share group, against an oracle that knows records only.

A script produces, compacts, moves the log start, adds partitions, lets time pass, runs micro-batches with faults of
every kind, stops engines, kills them (with their machine, at times) and fences them. The oracle applies each
micro-batch that was committed, record by record; after each one, the state folded from the log must be the oracle's.
In the end everything must be finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.model.errors import FencedError
from share_spark.model.records import DeliveryState
from share_spark.partition import SharePartition
from tests.property.oracle import (
    ACCUSED,
    AFTER_HANDLER,
    ALONE,
    AVAILABLE,
    FINISHED,
    IN_HANDLER,
    LOST_TWICE,
    NO_DOUBT,
    NOT_ENTERED,
    PartitionOracle,
)
from tests.support.engine_world import ACCEPT, GROUP, REJECT, RELEASE, TOPIC, Death, EngineLife, InMemoryGroup, at
from tests.support.examples import examples
from tests.twins.memory import Moment, StateCommit
from tests.twins.memory_delivery import Answer, WorkerLostError

pytestmark = pytest.mark.usefixtures("window_form")

LIMIT, LOCKS, LOCK_MS = 3, 100, 30_000
PER_TRIGGER = 40
BACKOFF_MS, ASKED_MS = 7_000, (0, 20_000)


class Disagreement(BaseException):
    """Oracle and engine differ. Not an Exception: to the engine that would be a fault to recover from."""


_F = TypeVar("_F", bound=Callable[..., Any])


def passed_on(check: _F) -> _F:
    """Failed assertions of ``check`` go through the engine to the test."""

    @wraps(check)
    def checked(*given: Any) -> Any:
        try:
            return check(*given)
        except (AssertionError, KeyError) as fault:
            raise Disagreement(str(fault)) from fault

    return checked  # type: ignore[return-value]


Said = dict[int, dict[int, int]]
"""Partition -> offset -> acknowledge type."""


@dataclass
class Life:
    """An engine, what its handler has said and is not committed yet, and the fault that waits for it. ``asked``: the
    delays in ms that it has asked for. ``entered``:
    (partition, offset) -> the delivery count that its handler was entered with, and whether it was done. ``answers``:
    of those, with the delay that was asked for. ``heir_of``: the dead engine whose answers its first commit takes over,
    and for which records."""

    engine: EngineLife
    said: Said = field(default_factory=dict)
    asked: Said = field(default_factory=dict)
    entered: dict[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)
    answers: dict[tuple[int, int], tuple[int, int | None]] = field(default_factory=dict)
    heir_of: tuple[Life, set[tuple[int, int]]] | None = None
    fault: str = ""
    stopping: bool = False

    @property
    def member(self) -> str:
        return self.engine.store.member_id

    def trace(self, partition: int) -> dict[int, tuple[int, int]]:
        """How its attempts ended, if it is dead: by offset (delivery count, loss)."""
        in_handler = any(not is_done for _, is_done in self.entered.values())
        done = FINISHED if in_handler else AFTER_HANDLER
        return {
            offset: (count, done if is_done else IN_HANDLER)
            for (at, offset), (count, is_done) in self.entered.items()
            if at == partition
        }


class Group:
    """The world, the oracle of each partition, and the engines alive."""

    def __init__(self, answers: list[int], backoff: str = "none") -> None:
        self.answers, self.backoff = answers, backoff
        self.world = InMemoryGroup(
            handler=self.handle,
            share__delivery__count__limit=LIMIT,
            share__partition__max__record__locks=LOCKS,
            max__records__per__trigger=PER_TRIGGER,
            share__coordinator__snapshot__update__records__per__snapshot=3,
            share__record__redelivery__backoff__policy=backoff,
            share__record__redelivery__backoff__ms=BACKOFF_MS,
        )
        self.oracles: dict[int, PartitionOracle] = {}
        self.accepted: set[tuple[int, int]] = set()
        self.entered: Counter[tuple[int, int]] = Counter()
        self.lives: list[Life] = []
        self.lost_machines: set[str] = set()
        self.life = self.born()

    def born(self, *, available_now: bool = False) -> Life:
        life = Life(self.world.engine(available_now=available_now))
        found = (
            (dead, self.unabsorbed(dead)) for dead in reversed(self.lives) if dead.member not in self.lost_machines
        )
        life.heir_of = next(((dead, left) for dead, left in found if left), None)
        self.lives.append(life)
        life.engine.store.interrupt = lambda moment, commit: self.interrupt(life, moment, commit)
        return life

    def unabsorbed(self, dead: Life) -> set[tuple[int, int]]:
        """The records of whose last attempt it has the answer, and no commit has it."""
        return {
            (partition, offset)
            for (partition, offset), (count, is_done) in dead.entered.items()
            if is_done and partition in self.oracles
            if (record := self.oracles[partition].records.get(offset)) is not None
            if (record.member, record.count) == (dead.member, count) and offset >= self.oracles[partition].start
        }

    # ------------------------------------------------------------------------------------------- what the engine does

    @passed_on
    def handle(self, _topic: str, partition: int, offset: int, count: int) -> Answer:
        """Never for what was accepted. The count is the oracle's, and the number of times that the handler was entered;
        it may be more for each machine that was lost."""
        life = self.life
        assert (partition, offset) not in self.accepted
        record = self.oracles[partition].records[offset]
        assert (record.state, record.count) == (DeliveryState.ACQUIRED, count)
        self.entered[partition, offset] += 1
        assert 0 <= count - self.entered[partition, offset] <= len(self.lost_machines)
        life.entered[partition, offset] = count, False
        if life.fault == "die in delivery" and hash((offset, count)) % 3 == 0:
            raise Death
        life.entered[partition, offset] = count, True
        if self.answers[(offset * 5 + count) % len(self.answers)] == 4:
            life.said.setdefault(partition, {})[offset] = RELEASE
            life.answers[partition, offset] = RELEASE, None
            raise WorkerLostError
        answer = (ACCEPT, ACCEPT, RELEASE, REJECT, ACCEPT)[self.answers[(offset * 7 + count) % len(self.answers)]]
        life.said.setdefault(partition, {})[offset] = answer
        life.answers[partition, offset] = answer, None
        if answer is not RELEASE or offset % 3:
            return answer
        delay_ms = life.asked.setdefault(partition, {})[offset] = ASKED_MS[offset % 2]
        life.answers[partition, offset] = answer, delay_ms
        return answer, "later", delay_ms

    def interrupt(self, life: Life, moment: Moment, commit: StateCommit) -> None:
        if commit.kind == "claim":
            return
        if moment is Moment.AFTER_APPEND:
            self.committed(life, commit)
        if life.fault == f"die {moment}":
            raise Death
        if life.fault == f"fail {moment}":
            life.fault = ""
            raise OSError("timed out")

    @passed_on
    def committed(self, life: Life, commit: StateCommit) -> None:
        """The oracle follows, if the commit counts."""
        if commit not in self.world.state_log.that_count(GROUP, self.world.state_log.version):
            return
        searched = self.searched()
        states = [state for _, state in self.world.state_log.state(GROUP).values()]
        won = [self.follow(life, state, searched) for state in states]
        is_alone = any(
            run.doubt == ALONE and run.member_id == life.member for state in states for run in state.in_flight
        )
        assert sum(won) == 1 or not is_alone
        life.said.clear()
        life.asked.clear()
        life.heir_of = None

    def searched(self) -> int:
        """The deepest doubt of what waits."""
        waiting = (r.doubt for oracle in self.oracles.values() for r in oracle.records.values() if r.state == AVAILABLE)
        return max((doubt for doubt in waiting if doubt >= LOST_TWICE), default=NO_DOUBT)

    def follow(self, life: Life, state: SharePartition, searched: int) -> int:
        """One share-partition; returns how many records were acquired."""
        now, partition = self.world.clock(), state.key.partition
        ends = self.world.topics.log_ends(TOPIC)[partition]
        oracle = self.oracles.setdefault(partition, fresh_oracle(ends.log_start_offset))
        oracle.backoff = lambda _: BACKOFF_MS if self.backoff == "fixed" else 0
        self.inherit(oracle, partition, life)
        self.settle(oracle, partition, life.member, life.said.pop(partition, {}), life.asked.pop(partition, {}))
        if life.stopping:
            held = [offset for offset, record in oracle.records.items() if record.member == life.member]
            oracle.lose(dict.fromkeys(held, NOT_ENTERED))
        oracle.expire(now, lost=True, traces=self.traces(partition))
        if ends.log_start_offset > oracle.start:
            oracle.move_log_start(ends.log_start_offset)
            oracle.advance()
        taken = [run for run in state.in_flight if run[4:6] == (life.member, now + LOCK_MS)]
        won = sum(run.last_offset - run.first_offset + 1 for run in taken)
        if any(run.doubt >= LOST_TWICE for run in taken):
            assert {min(run.doubt, ACCUSED) for run in taken} == {searched}
            is_alone = taken[0].doubt == ALONE
            assert len(oracle.acquire_suspects(life.member, searched, won, now, alone=is_alone)) == won
        else:
            assert len(oracle.acquire(life.member, ends.end_offset - 1, won, now, searched)) == won
        assert facts(state) == oracle_facts(oracle)
        return won

    def traces(self, partition: int) -> dict[str, dict[int, tuple[int, int]]]:
        """Of all that have died, as far as their machines are there."""
        return {life.member: life.trace(partition) for life in self.lives if life.member not in self.lost_machines}

    def inherit(self, oracle: PartitionOracle, partition: int, life: Life) -> None:
        """The answers of a dead engine, in the first commit of the next."""
        dead, left = life.heir_of or (life, set())
        answers = {offset: dead.answers[at, offset] for at, offset in sorted(left) if at == partition}
        asked = {offset: delay_ms for offset, (_, delay_ms) in answers.items() if delay_ms is not None}
        batches = [(offset, offset, [int(kind)]) for offset, (kind, _) in answers.items()]
        assert oracle.acknowledge(dead.member, batches, self.world.clock(), asked) is None
        self.accepted |= {(partition, offset) for offset, (kind, _) in answers.items() if kind == ACCEPT}

    def settle(
        self, oracle: PartitionOracle, partition: int, member: str, said: dict[int, int], asked: dict[int, int]
    ) -> None:
        """The answers; acquired offsets without an answer hold no record (R19)."""
        mine = [offset for offset, record in oracle.records.items() if record.member == member]
        batches = [(offset, offset, [int(said.get(offset, 0))]) for offset in sorted(mine)]
        assert set(said) <= set(mine)
        assert oracle.acknowledge(member, batches, self.world.clock(), asked) is None
        self.accepted |= {(partition, offset) for offset, kind in said.items() if kind == ACCEPT}

    # ------------------------------------------------------------------------------------------- what the script does

    def run(self, fault: str) -> None:
        life = self.life
        life.fault = fault
        try:
            life.engine.run()
        except Death:
            self.kill(with_machine=False)
        life.fault = ""

    def kill(self, *, with_machine: bool) -> None:
        """Without a word. The machine takes along what it and all before it have left."""
        if with_machine:
            self.lost_machines |= {life.member for life in self.lives}
            self.world.machine_is_lost()
        self.life = self.born()

    def stop(self) -> None:
        self.life.stopping = True
        self.life.engine.run(stopping=True)
        self.life = self.born()

    def fence(self) -> None:
        """A successor starts, then the zombie goes on: it may write, but is stopped before it can do more."""
        zombie, self.life = self.life, self.born()
        version = self.world.state_log.version
        try:
            zombie.engine.run()
        except FencedError:
            version += 1
        assert self.world.state_log.version == version

    def finish(self) -> None:
        """An available-now run ends, and every offset has come to its end."""
        self.life = self.born(available_now=True)
        for _ in range(1_000):
            if self.life.engine.engine.done:
                break
            self.life.engine.run()
            self.world.clock.advance(LOCK_MS // 2)
        for partition, ends in self.world.topics.log_ends(TOPIC).items():
            start, end, left = facts(self.world.state(partition))
            assert (start, end) == (ends.end_offset, ends.end_offset)
            assert all(offset < ends.log_start_offset for offset in left), "only what the log has lost may be held"


def fresh_oracle(start: int) -> PartitionOracle:
    return PartitionOracle(max_count=LIMIT, max_locks=LOCKS, lock_ms=LOCK_MS, start=start, end=start)


Facts = tuple[int, int, dict[int, tuple[int, int, str | None, int | None, int, int]]]


def facts(state: SharePartition) -> Facts:
    """SPSO, SPEO, and (state, count, member, deadline, doubt, excused) of each offset."""
    records = {
        offset: tuple(run[2:]) for run in state.in_flight for offset in range(run.first_offset, run.last_offset + 1)
    }
    return state.start_offset, state.end_offset, records  # type: ignore[return-value]


def oracle_facts(oracle: PartitionOracle) -> Facts:
    records = {o: r.facts() for o, r in sorted(oracle.records.items())}
    return oracle.start, oracle.end, records


FAULTS = ["", "", "", "", "die in delivery", *(f"{end} {moment}" for end in ("die", "fail") for moment in Moment)]


NO_NUMBER = st.just(0)


def step(name: str, numbers: st.SearchStrategy[int] = NO_NUMBER) -> st.SearchStrategy[tuple[str, int, int]]:
    return st.tuples(st.just(name), st.integers(0, 2), numbers)


STEPS = st.one_of(
    step("produce", st.integers(1, 60)),
    step("skip", st.integers(1, 3)),
    step("compact", st.integers(0, 60)),
    step("trim", st.integers(0, 80)),
    step("wait", st.sampled_from([1_000, 15_000, 30_000])),
    *(step(name) for name in ("grow", "stop", "kill", "lose", "fence")),
    *[step("run", st.integers(0, len(FAULTS) - 1))] * 6,
)


def play(group: Group, name: str, partition: int, number: int) -> None:
    """One step of a script; ``partition`` and ``number`` where it needs them."""
    if name in ("run", "stop", "kill", "lose", "fence"):
        play_engine(group, name, number)
    else:
        play_log(group, name, partition, number)


def play_engine(group: Group, name: str, number: int) -> None:
    match name:
        case "run":
            group.run(FAULTS[number])
        case "stop":
            group.stop()
        case "kill" | "lose":
            group.kill(with_machine=name == "lose")
        case "fence":
            group.fence()


def play_log(group: Group, name: str, partition: int, number: int) -> None:
    topics = group.world.topics
    count = len(topics.log_ends(TOPIC))
    where = at(partition % count)
    end = topics.log_ends(TOPIC)[where.partition].end_offset
    match name:
        case "produce":
            group.world.produce(number, where.partition)
        case "skip":
            topics.skip(where, number)
        case "compact":
            topics.compact(where, range(max(0, end - number), end, 2))
        case "trim":
            topics.move_log_start(where, min(end, number))
        case "grow":
            topics.add_partitions(TOPIC, int(count < 3))
        case "wait":
            group.world.clock.advance(number)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(STEPS, min_size=5, max_size=60),
    st.lists(st.integers(0, 4), min_size=1, max_size=11),
    st.sampled_from(["none", "none", "fixed"]),
)
def test_whatever_happens_every_record_is_accounted_for(
    script: list[tuple[str, int, int]], answers: list[int], backoff: str
) -> None:
    """Promises 1 to 3: nothing lost, nothing accepted delivered again, counts exact; none before its time."""
    group = Group(answers, backoff)
    for step in script:
        play(group, *step)
    group.finish()


def test_the_oracle_would_notice_a_wrong_count() -> None:
    """The test above is worth something only if it can fail."""
    group = Group([0])
    group.world.produce(3)
    group.oracles[0] = fresh_oracle(0)
    group.oracles[0].acquire("another", 0, 1, group.world.clock())
    with pytest.raises(Disagreement):
        group.run("")
