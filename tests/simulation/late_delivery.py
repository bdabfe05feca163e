"""The delivery of an engine whose calls outlast it: a process beside the engine has them, and goes on while the engine
sleeps. It may die alone, or with the engine, or end its calls after the engine has died.

Idealized: a companion begins no call once another engine has claimed the group. In truth one whose engine only sleeps
does not know that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from share_spark.companion.lost_calls import LedgerEntry
from share_spark.companion.messages import Limits, RecordAnswer
from share_spark.delivery.ledger import STATUS_OF, CallStatus
from share_spark.engine.attempts import FinishedCalls
from share_spark.engine.delivery_port import AcquiredSpan, CallsLook, Delivered, DeliveryLimits
from share_spark.engine.key_order import FINISHED
from share_spark.model.errors import HandlerError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from share_spark.model.records import Doubt
from share_spark.model.requests import AcknowledgeType, Loss
from tests.simulation.delivery import said_of
from tests.simulation.facts import ACCEPT, DONE, THROTTLED, Acquisition, At, Course, Said, demand
from tests.simulation.ledger_files import Entry, SimulatedLedgers
from tests.simulation.processes import Death
from tests.twins.late_calls import LateAnswer, LateCall, LateCalls, LateDriver, ProcessDeath
from tests.twins.memory_delivery import each

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine

_REFUSALS: dict[str, type[Exception]] = {"before a hand-over": HandlerError, "reads records": TopicUnreachableError}

_UNWRITTEN = 0.01
"""How often a process dies between the end of a call and the moment at which its output rows are in the ledger."""

_LIVES_ON = 0.5
"""How often a companion outlives an engine that is killed."""


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedCompanion:
    """A companion process. ``cell``: the call whose code ran when it died, None if none did; ``took_engine``: it has
    ended its engine as well. ``has_no_driver``: that is gone, and it only ends what runs. ``was_replaced``: another
    engine has come before that. ``cuts``: what truncations have cut off, by number of the hand-over."""

    of: SimulatedEngine
    attempts: dict[int, dict[At, Acquisition]]
    calls: LateCalls = field(init=False)
    took_engine: bool = False
    has_no_driver: bool = False
    was_replaced: bool = False
    cuts: set[tuple[int, At]] = field(default_factory=set)

    def __post_init__(self) -> None:
        world = self.of.world
        self.calls = LateCalls(calling=self, rng=world.rng, limits=Limits(1, 0), ordered=world.is_ordered)

    def step(self) -> None:
        """Whoever lets it go on. Nothing happens once it has ended."""
        if self.calls.is_dead:
            return
        self.calls.step()
        if not self.calls.is_dead and self.of.world.strikes(20):
            self.dies(self._stepped())
        if self.has_no_driver and not self.calls.running:
            self.dies(None)

    def dies(self, cell: LateCall | None) -> None:
        """It is killed while the code of ``cell`` runs, or of none."""
        if self.calls.is_dead:
            return
        running = [*self.calls.running]
        self.of.note("companion dies, in", cell, "among", len(running))
        for call in running:
            attempt = self._attempt(call)
            attempt.course, attempt.was_alone = Course(entered=True, waits=call is not cell), len(running) == 1
            self._note(call, Entry(call.count, waits=call is not cell))
        self.calls.die()
        self.of.world.companions.remove(self)

    def loses_driver(self, *, dies: bool) -> None:
        """Its engine has ended. ``dies``: so does it, at once."""
        if self.calls.is_dead:
            return
        if dies or self.of.world.rng.random() >= _LIVES_ON:
            self.dies(self._stepped())
        else:
            self.of.note("companion lives on, with", len(self.calls.running), "calls")
            self.has_no_driver = True
            self.calls.close()

    def end_calls(self) -> None:
        """Somebody waits for it, but not for ever."""
        while not self.calls.is_dead and self.of.world.rng.random() < 0.95:
            self.step()
        if self.has_no_driver:
            self.dies(None)

    def see_owner(self) -> None:
        """Another engine may have claimed the group. One that has not died by then is not waited for."""
        if not self.has_no_driver and not self.of.owns_group:
            self.was_replaced = True
            self.calls.close()

    def _stepped(self) -> LateCall | None:
        """A call whose code may run at any moment, mostly none."""
        running, rng = [*self.calls.running], self.of.world.rng
        return rng.choice(running) if running and rng.random() < 0.3 else None

    # ---------------------------------------------------------------------------------------------- what calls do

    def key(self, at: TopicPartition, offset: int) -> bytes | None:
        return self.of.world.key((at, offset))

    def has_record(self, at: TopicPartition, offset: int) -> bool:
        return self.of.world.record((at, offset)) is not None

    def begin(self, call: LateCall) -> None:
        of, world = self.of, self.of.world
        world.ledger.enter(of.run_id, self._attempt(call), call[1:3], call.count)
        running, most = world.calls_at_a_time(), of.config.max_in_flight
        demand(running <= most, running, "calls run at a time, and at most", most, "may")
        is_by_itself = len(self.calls.running) == 1 or not any(one.in_turn for one in self.calls.running)
        demand(is_by_itself, "calls run beside one that is to run by itself:", call)
        self._note(call, Entry(call.count, waits=True))

    def end(self, call: LateCall) -> LateAnswer:
        of, world, one = self.of, self.of.world, call[1:3]
        kind = world.behaviour(one, call.count)
        if kind == "kill engine" or world.strikes(30):
            self.dies(call)
            self._take_engine()
        if kind == "kill worker" or world.strikes(10):
            self.dies(call)
        elif world.strikes(30):
            of.note("the handler is broken, as call of", *one, "shows")
            of.faulted, self.calls.fault = True, HandlerError("the handler returned something else")
            self.dies(None)
        if self.calls.is_dead:
            raise ProcessDeath
        return self._answered(call, said_of(world, one, call.count, kind), goes_on=kind == "hang")

    def end_cancelled(self, call: LateCall) -> None:
        self.of.note("a cancelled call ends:", *call[1:])

    def cut(self, ends: Mapping[TopicPartition, int], number: int) -> None:
        """Readers leave out what was handed over until then, and is noted at any time."""
        for known, attempts in self.attempts.items():
            gone = {one: attempt for one, attempt in attempts.items() if one[1] >= ends.get(one[0], one[1] + 1)}
            if known <= number and gone:
                self.cuts.update((known, one) for one in gone)
                self.of.world.ledger.forget_attempts(self.of.store.member_id, gone)
                for one in gone:
                    self._blocks.get(known, {}).pop(one, None)

    def forget(self, number: int) -> None:
        self._blocks.pop(number, None)
        self.of.world.ledger.forget_attempts(self.of.store.member_id, self.attempts[number])

    def entries(self) -> Mapping[tuple[int, TopicPartition, int], LedgerEntry]:
        """Also of what was cut: the driver knows that by itself."""
        running = {call[:3]: Entry(call.count, waits=self._attempt(call).course.waits) for call in self.calls.running}
        noted = {
            (number, *one): entry
            for number in self.calls.numbers
            for one, entry in self._blocks.get(number, {}).items()
        }
        return {key: _as_read(entry) for key, entry in {**noted, **running}.items()}

    def _answered(self, call: LateCall, said: Said, *, goes_on: bool) -> LateAnswer:
        attempt, world = self._attempt(call), self.of.world
        attempt.answer = said.kind
        left = THROTTLED if said.kind == Loss.THROTTLED else DONE
        attempt.course = Course(entered=True, left=left)
        has_rows = said.kind == ACCEPT and world.scenario.has_sink
        attempt.is_kept = not self.was_replaced
        self._note(call, Entry(call.count, left, said))
        if has_rows and world.rng.random() < _UNWRITTEN:
            attempt.is_kept = False
            self._note(call, Entry(call.count, left))
            self.dies(None)
            raise ProcessDeath
        kind = Loss(said.kind) if said.kind == Loss.THROTTLED else AcknowledgeType(said.kind)
        return LateAnswer(kind, said.error, said.delay_ms, goes_on)

    def _take_engine(self) -> None:
        """The engine dies as well: here and now, if it is the one that waits for this call."""
        self.took_engine = True
        if self.of.process.runs_here:
            raise Death

    def _attempt(self, call: LateCall) -> Acquisition:
        return self.attempts[call.number][call[1:3]]

    @property
    def _blocks(self) -> dict[int, dict[At, Entry]]:
        """Its ledger, or nothing where that is lost."""
        return self.of.world.files.get(self.of.store.member_id, {})

    def _note(self, call: LateCall, entry: Entry) -> None:
        is_cut = (call.number, call[1:3]) in self.cuts
        if self.of.store.member_id in self.of.world.files and not is_cut:
            self._blocks.setdefault(call.number, {})[call[1:3]] = entry


def _as_read(entry: Entry) -> LedgerEntry:
    """An accepted record without an answer has lost its rows."""
    if not entry.left:
        return LedgerEntry(CallStatus.WAITED if entry.waits else CallStatus.IN_HANDLER, None, None, False)
    if entry.said is None:
        return LedgerEntry(CallStatus.ACCEPTED_WITH_ROWS, None, None, False)
    return LedgerEntry(STATUS_OF[int(entry.said.kind)], entry.said.error, entry.said.delay_ms, True)


@dataclass(slots=True)
class SimulatedLateDelivery(SimulatedLedgers):
    """``attempts``: what was handed over, by the number of the hand-over."""

    driver: LateDriver = field(init=False)
    companion: SimulatedCompanion | None = None
    attempts: dict[int, dict[At, Acquisition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = self.of.world
        self.driver = LateDriver(
            start=self._start_companion,
            rng=world.rng,
            ordered=world.is_ordered,
            hook=self._hook,
            time_s=lambda: world.time_ms / 1_000,
        )

    def _start_companion(self, limits: Limits) -> LateCalls:
        self.companion = companion = SimulatedCompanion(of=self.of, attempts=self.attempts)
        companion.calls.set_limits(limits)
        companion.see_owner()
        self.of.world.companions.append(companion)
        return companion.calls

    def _hook(self, moment: str) -> None:
        self.of.point(moment, _REFUSALS.get(moment), rare=10 if moment.startswith("calls") else 1)

    def finished_calls(self) -> Iterator[FinishedCalls]:
        """Calls that run are waited for."""
        for companion in [one for one in self.of.world.companions if one.of is not self.of]:
            companion.end_calls()
        yield from SimulatedLedgers.finished_calls(self)

    def room(self, limits: DeliveryLimits) -> int | None:
        return self.driver.room(limits) if self.of.world.scenario.has_handlers else 0

    @property
    def calls(self) -> CallsLook | None:
        return CallsLook(0, 0, 0)

    def wait(self, seconds: float) -> None:
        """Nobody ever waits."""

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        of = self.of
        of.must_own("deliver")
        of.point("before delivery", HandlerError)
        places = [(one.partition, offset) for one in acquired for offset, _ in each(one.ranges)]
        accused = [one for one in places if of.held[one].doubt is Doubt.ACCUSED]
        demand(in_turn or not accused, "accused records run at the same time:", accused)
        of.held_rows = None
        self.attempts[self.driver.number + 1] = {one: of.held[one] for one in places}
        delivered = self.driver.deliver(acquired, limits, in_turn=in_turn)
        of.point("after delivery", None)
        self._hear(delivered)
        return delivered

    def drain(self) -> Delivered:
        self.of.held_rows = None
        delivered = self.driver.drain()
        self.of.point("after all calls", None)
        self._hear(delivered._replace(fault=None))  # an engine that stops looks at none
        self.of.has_drained = self.of.reads_time = True  # another micro-batch follows
        return delivered

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        self.of.point("forget the last delivery", OSError)
        self.driver.forget_last(ends)

    def _hear(self, delivered: Delivered) -> None:
        fault = delivered.fault
        assert fault is None or isinstance(fault, HandlerError | TopicUnreachableError)
        self.of.faulted |= fault is not None
        self.of.hears(dict(self._said(one) for one in self.driver.returned), fault)

    def _said(self, answer: RecordAnswer) -> tuple[At, tuple[Acquisition, Said]]:
        """As the judge has to know it; nobody is accused who only waited."""
        one = answer.at, answer.first_offset
        attempt = self.attempts[answer.number][one]
        if answer.answer in (Loss.IN_HANDLER, Loss.AMONG_OTHERS):
            demand(attempt.course.in_handler or attempt.was_alone, one, "is accused, and only waited")
        if answer.answer in FINISHED and attempt.answer is None:
            demand(False, one, "is answered by", answer, "which its handler did not say")
        kind = answer.answer
        return one, (attempt, Said(kind, answer.error, answer.delay_ms))
