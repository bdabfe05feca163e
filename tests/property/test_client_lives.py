"""Lives of clients of Kafka's protocol: they fetch, acknowledge late, twice and what is not theirs, vanish, and see
their engine die around any append. Books that know nothing of the engine's state judge each answer."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.model.errors import ErrorCode
from share_spark.model.ids import client_owner
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import AcknowledgeType
from tests.support.client_world import ClientWorld
from tests.support.engine_world import GROUP, Death, EngineLife
from tests.support.examples import examples
from tests.twins.memory import Moment, StateCommit

LIMIT, LOCK_MS, LOCKS = 3, 30_000, 100
OWNERS = [client_owner(name) for name in "abc"]
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class Known(NamedTuple):
    """What the books have of a record. ``owner``: who holds it, until ``until_ms``. ``count``: its deliveries."""

    count: int = 0
    owner: str | None = None
    until_ms: int = 0
    is_finished: bool = False


class Asked(NamedTuple):
    """An acknowledgement or, with ``answer`` None, a fetch; ``last`` -1: the end of a session."""

    number: int
    owner: str
    first: int = 0
    last: int = 0
    answer: AcknowledgeType | None = None


class Books:
    """The records by offset, and what is known of them. ``start``: below it all is finished."""

    def __init__(self) -> None:
        self.records: list[Known] = []

    @property
    def start(self) -> int:
        unfinished = (offset for offset, known in enumerate(self.records) if not known.is_finished)
        return min(unfinished, default=len(self.records))

    @property
    def end(self) -> int:
        """Behind the last record that was ever acquired."""
        return max((offset + 1 for offset, known in enumerate(self.records) if known.count), default=0)

    def expire(self, now_ms: int) -> None:
        for offset, known in enumerate(self.records):
            if known.owner is not None and known.until_ms <= now_ms:
                self.give_back(offset)

    def give_back(self, offset: int) -> None:
        known = self.records[offset]
        self.records[offset] = known._replace(owner=None, is_finished=known.count >= LIMIT)

    def release(self, owner: str) -> None:
        for offset, known in enumerate(self.records):
            if known.owner == owner:
                self.give_back(offset)

    def acknowledge(self, asked: Asked) -> bool:
        """Note an acknowledgement; return whether it is to be taken: all of it, or nothing."""
        start = self.start
        offsets = range(max(asked.first, start), asked.last + 1)
        if any(offset >= self.end or self.records[offset].owner != asked.owner for offset in offsets):
            return False
        for offset in offsets:
            if asked.answer is RELEASE:
                self.give_back(offset)
            else:
                self.records[offset] = self.records[offset]._replace(owner=None, is_finished=True)
        return True

    def acquire(self, asked: Asked, acquired: list[tuple[int, int, int]], now_ms: int) -> None:
        """Note what a fetch got: nobody held it, and each count is the next one."""
        for first, last, count in acquired:
            for offset in range(first, last + 1):
                known = self.records[offset]
                assert (known.owner, known.is_finished, known.count + 1) == (None, False, count), (offset, known, count)
                self.records[offset] = Known(count, asked.owner, now_ms + LOCK_MS)

    def may_acquire(self) -> bool:
        """Whether a fetch of the whole log has to get something."""
        waiting = [at for at, known in enumerate(self.records) if known.owner is None and not known.is_finished]
        return bool(waiting) and (waiting[0] < self.end or self.end - self.start < LOCKS)


class Life:
    """A group and its clients, by one seed."""

    def __init__(self, seed: int) -> None:
        self.rng, self.books = Random(seed), Books()
        self.world = ClientWorld(share__delivery__count__limit=LIMIT, share__partition__max__record__locks=LOCKS)
        self.batch = self.rng.randint(1, 7)
        self.engine = self.begun()

    def begun(self) -> EngineLife:
        return self.world.engine(interrupt=self.interrupt)

    def interrupt(self, _moment: Moment, commit: StateCommit) -> None:
        if commit.kind == "records" and self.rng.random() < 0.06:
            raise Death

    def step(self) -> None:
        if self.rng.random() < 0.4 and len(self.books.records) < 200:
            more = self.rng.randint(1, 20)
            self.world.produce(more)
            self.books.records += [Known()] * more
        self.world.clock.advance(self.rng.choice([0, 0, 10, 5_000, LOCK_MS]))
        asked = list(self.asks(self.rng.randint(0, 4)))
        try:
            self.engine.run()
        except Death:
            self.after_death(asked)
        else:
            self.judge(asked)
        self.compare()

    def asks(self, many: int) -> Iterator[Asked]:
        for _ in range(many):
            owner, kind = self.rng.choice(OWNERS), self.rng.random()
            if kind < 0.45 or not self.books.records:
                yield Asked(self.world.fetch(owner, most=self.rng.randint(1, 30), batch=self.batch), owner)
            elif kind < 0.52:
                yield Asked(self.world.release(owner), owner, last=-1)
            else:
                yield self.acknowledgement(owner)

    def acknowledgement(self, owner: str) -> Asked:
        """Of what the owner holds as a rule, else of anything."""
        held = [offset for offset, known in enumerate(self.books.records) if known.owner == owner]
        first = (
            self.rng.choice(held) if held and self.rng.random() < 0.8 else self.rng.randrange(len(self.books.records))
        )
        last = first
        while self.rng.random() < 0.7 and (last + 1 in held or self.rng.random() < 0.05):
            last += 1
        answer = self.rng.choice([ACCEPT, ACCEPT, RELEASE, REJECT])
        return Asked(self.world.acknowledge(owner, first, last, answer), owner, first, last, answer)

    def judge(self, asked: list[Asked]) -> None:
        """Compare the answers with the books, ask by ask: the engine decides them in this order."""
        now_ms = self.world.clock()
        self.books.expire(now_ms)
        for one in asked:
            if one.last < 0:
                self.books.release(one.owner)
            elif one.answer is None:
                acquired, has_to = self.world.acquired(one.number), self.books.may_acquire()
                assert acquired or not has_to, "a fetch that finds records gets some"
                self.books.acquire(one, acquired, now_ms)
            else:
                is_taken = self.world.answer(one.number).error is ErrorCode.NONE
                assert is_taken == self.books.acknowledge(one), one

    def after_death(self, asked: list[Asked]) -> None:
        """Nobody is answered by a dead engine. What it has appended counts: the next state shows whether it has."""
        assert self.world.clients is not None
        assert not any(one.number in self.world.clients.answers for one in asked)
        fetches = sum(one.answer is None and one.last >= 0 for one in asked)
        self.engine = self.begun_at_last()
        states, start = self.states(), self.start()
        for offset, (known, run) in enumerate(zip(self.books.records, states, strict=True)):
            if run is None:
                is_finished = known.is_finished or offset < start
                assert is_finished or not known.count
                self.books.records[offset] = known._replace(owner=None, is_finished=is_finished)
                continue
            assert known.count <= run.delivery_count <= known.count + fetches
            assert not known.is_finished or run.delivery_state.is_final
            self.books.records[offset] = Known(
                run.delivery_count, run.member_id, run.lock_deadline_ms or 0, run.delivery_state.is_final
            )

    def begun_at_last(self) -> EngineLife:
        while True:
            try:
                return self.begun()
            except Death:
                continue

    def start(self) -> int:
        """Below it all is finished; 0 while the log has no state."""
        found = self.world.state_log.state(GROUP).get(self.world.key())
        return 0 if found is None else found[1].start_offset

    def states(self) -> list[InFlightBatch | None]:
        """The state of each record; None: below the window, or not acquired yet."""
        found: list[InFlightBatch | None] = [None] * len(self.books.records)
        if self.world.key() in self.world.state_log.state(GROUP):
            for run in self.world.state().in_flight:
                found[run.first_offset : run.last_offset + 1] = [run] * (run.last_offset - run.first_offset + 1)
        return found

    def compare(self) -> None:
        """Compare the state in the log with the books."""
        for offset, (known, run) in enumerate(zip(self.books.records, self.states(), strict=True)):
            if run is None:
                assert known.is_finished or not known.count, (offset, known)
            else:
                held = run.member_id, run.delivery_count, run.delivery_state.is_final
                assert held == (known.owner, known.count, known.is_finished), (offset, known, run)
                assert run.delivery_state is not DeliveryState.ACQUIRED or run.doubt == 0

    def work_off(self) -> None:
        """At the end nothing is left: each record is accepted, rejected, or was delivered as often as the limit."""
        for _ in range(300):
            if self.books.start == len(self.books.records):
                return
            self.step()
            self.world.clock.advance(LOCK_MS)
        raise AssertionError(f"not finished: {self.world.window()}")


@given(st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_each_answer_is_that_of_the_books(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.twins.memory_delivery.InMemoryDelivery.room", lambda *_: 0)
        life = Life(seed)
        for _ in range(40):
            life.step()
        life.work_off()
