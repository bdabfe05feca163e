"""Twin of a companion process, and of its driver's side: calls that wait ahead, run, and end in any order, while the
driver does something else.

    driver     HandOver 1, 2      takes some answers      Forget 1
    process                  begins, ends, begins ...              what ran of 1 is cancelled, and may go on

The process goes on whenever somebody lets it ``step``. What a call does, and what is noted of it in a ledger, is said
by ``Calling``. The books of the driver, and its answers for a process that has died, are the real ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from share_spark.companion.answers import entered_in, spans_of
from share_spark.companion.calls_at_a_time import CallsAtATime
from share_spark.companion.hand_overs import HandOvers
from share_spark.companion.lost_calls import LedgerEntry, LostCalls
from share_spark.companion.messages import Limits, RecordAnswer
from share_spark.delivery.traces import WORKER_LOST
from share_spark.engine.delivery_port import AcquiredSpan, Delivered, DeliveryLimits
from share_spark.engine.key_order import FINISHED, FREE, KeyOrder
from share_spark.engine.ranges import offsets_in
from share_spark.model.errors import ShareError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss
from tests.twins.memory_delivery import each

AHEAD, AHEAD_BY_KEY = 2, 8
"""The records in flight for each call at a time, and the same in order of keys."""


class LateCall(NamedTuple):
    """A record of hand-over ``number``, as it was acquired. ``in_turn``: while no other call runs."""

    number: int
    at: TopicPartition
    offset: int
    count: int
    in_turn: bool = False


class LateAnswer(NamedTuple):
    """The end of a call. ``goes_on``: it was cancelled, as it is over its time limit."""

    kind: AcknowledgeType | Loss
    error: str | None = None
    delay_ms: int | None = None
    goes_on: bool = False


class Calling(Protocol):
    """What calls do, and what is noted of them in the ledger of their process."""

    def key(self, at: TopicPartition, offset: int) -> bytes | None: ...

    def has_record(self, at: TopicPartition, offset: int) -> bool: ...

    def begin(self, call: LateCall) -> None:
        """Enter the handler; the ledger says so before."""
        ...

    def end(self, call: LateCall) -> LateAnswer:
        """Leave the handler; the ledger has the answer. Raises what ends the process."""
        ...

    def end_cancelled(self, call: LateCall) -> None:
        """Leave the handler, after all; nobody hears of it."""
        ...

    def forget(self, number: int) -> None:
        """Drop what the ledger has of a hand-over."""
        ...

    def cut(self, ends: Mapping[TopicPartition, int], number: int) -> None:
        """Take records at and above ``ends`` that were handed over until ``number`` out of all that is read later."""
        ...

    def entries(self) -> Mapping[tuple[int, TopicPartition, int], LedgerEntry]:
        """Return what the ledger of the dead process says, as ``LostCalls`` reads it."""
        ...


class ProcessDeath(Exception):  # noqa: N818 - what happens to the process
    """Raised by the end of a call: its process has ended."""


class OnTheWay(NamedTuple):
    """An answer that its process has given, and the round in which the call began if it was throttled."""

    answer: RecordAnswer
    throttled_in: int | None = None


@dataclass(slots=True, kw_only=True)
class LateCalls:
    """One process. ``batch``: the most records of a call, which begin and end together: ``lists``. ``ended``: answers
    on their way to the driver. ``held``: places of throttled calls, until there are new limits. ``numbers``: of the
    hand-overs that its ledger has. ``is_closed``: it begins no more calls. ``fault``: after which it has ended."""

    calling: Calling
    rng: Random
    limits: Limits
    ordered: bool = False
    batch: int = 1
    waiting: list[LateCall] = field(default_factory=list)
    running: dict[LateCall, int] = field(default_factory=dict)
    lists: list[list[LateCall]] = field(default_factory=list)
    cancelled: list[LateCall] = field(default_factory=list)
    ended: list[OnTheWay] = field(default_factory=list)
    held: int = 0
    numbers: set[int] = field(default_factory=set)
    is_closed: bool = False
    is_dead: bool = False
    fault: ShareError | None = None

    def hand_over(
        self, number: int, acquired: Sequence[AcquiredSpan], unknown: Sequence[OnTheWay], *, in_turn: bool
    ) -> None:
        """Read the records. ``unknown``: answers that the driver did not know when it acquired them: what these have
        not finished comes before, and holds back its key."""
        held_back = self._held_back(acquired, [*unknown, *self.ended]) if self.ordered else {}
        self.numbers.add(number)
        for one in acquired:
            for offset, count in each(one.ranges):
                place = one.partition, offset
                if not self.calling.has_record(*place):
                    self._answer(number, place, LateAnswer(AcknowledgeType.GAP))
                elif self.is_closed:
                    self._answer(number, place, LateAnswer(Loss.NOT_ENTERED))
                elif place in held_back:
                    self._answer(number, place, LateAnswer(Loss.NOT_ENTERED, None, held_back[place] or None))
                else:
                    self.waiting.append(LateCall(number, *place, count, in_turn))

    def set_limits(self, limits: Limits) -> None:
        self.limits, self.held = limits, 0

    def step(self) -> None:
        """One call begins, or one ends."""
        has_room = len(self.lists) + self.held < self.limits.most_calls
        call = self._next() if has_room and self.rng.random() < 0.6 else None
        if call is not None:
            self._begin(call)
        elif self.cancelled and self.rng.random() < 0.3:
            self.calling.end_cancelled(self.cancelled.pop(self.rng.randrange(len(self.cancelled))))
        elif self.running:
            self.end(self.rng.choice([*self.running]))

    def end(self, call: LateCall) -> None:
        """A call ends by itself, with all of its records, or its process ends in it."""
        for one in self.together(call):
            self._end(one)
            if self.is_dead:
                return

    def together(self, call: LateCall) -> list[LateCall]:
        """Return the records of the call that has this one."""
        return next([*records] for records in self.lists if call in records)

    def _end(self, call: LateCall) -> None:
        try:
            said = self.calling.end(call)
        except ProcessDeath:
            self.die()
            return
        round_number = self.running.pop(call)
        self._leave(call)
        self.held += said.kind is Loss.THROTTLED
        if said.goes_on:
            self.cancelled.append(call)
        self._answer(call.number, call[1:3], said, round_number)
        if self.ordered and said.kind not in FINISHED:
            self._hold_back(call, said.delay_ms)

    def close(self) -> None:
        """Begin no more calls."""
        self.is_closed = True
        self.give_back()

    def give_back(self) -> None:
        """Answer what was not entered."""
        for call in self.waiting:
            self._answer(call.number, call[1:3], LateAnswer(Loss.NOT_ENTERED))
        self.waiting = []

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop hand-overs. What still runs of them is cancelled, and may go on."""
        for number in self.numbers.intersection(numbers):
            self.calling.forget(number)
            self.numbers.discard(number)
        self.waiting = [call for call in self.waiting if call.number not in numbers]
        for call in [call for call in self.running if call.number in numbers]:
            del self.running[call]
            self._leave(call)
            self.cancelled.append(call)

    def die(self) -> None:
        """End, whatever runs."""
        self.is_dead = True

    def _begin(self, first: LateCall) -> None:
        records: list[LateCall] = []
        self.lists.append(records)
        call: LateCall | None = first
        while call is not None and len(records) < (1 if first.in_turn else self.batch):
            self.waiting.remove(call)
            records.append(call)
            self.running[call] = self.limits.round_number
            self.calling.begin(call)
            call = self._next()

    def _leave(self, call: LateCall) -> None:
        """Take a record out of its call."""
        self.lists = [left for records in self.lists if (left := [one for one in records if one != call])]

    def _answer(
        self, number: int, place: tuple[TopicPartition, int], said: LateAnswer, round_number: int | None = None
    ) -> None:
        at, offset = place
        answer = RecordAnswer(number, at, offset, offset, said.kind, said.error, said.delay_ms)
        self.ended.append(OnTheWay(answer, round_number if said.kind is Loss.THROTTLED else None))

    def _next(self) -> LateCall | None:
        """Return the next that may begin: in order of keys the first of a key that none runs of."""
        taken = {self._place(call) for call in self.running} if self.ordered else set()
        for call in self.waiting:
            if self.running and (call.in_turn or next(iter(self.running)).in_turn):
                return None
            place = self._place(call) if self.ordered else None
            if place is None or place not in taken:
                return call
            taken.add(place)
        return None

    def _hold_back(self, call: LateCall, delay_ms: int | None) -> None:
        """Give back what waits behind a call that has not finished its record."""
        place = self._place(call)
        behind = [one for one in self.waiting if place is not None and self._place(one) == place]
        self.waiting = [one for one in self.waiting if one not in behind]
        for one in behind:
            self._answer(one.number, one[1:3], LateAnswer(Loss.NOT_ENTERED, None, delay_ms or None))

    def _held_back(
        self, acquired: Sequence[AcquiredSpan], unknown: Sequence[OnTheWay]
    ) -> dict[tuple[TopicPartition, int], int]:
        """Return how long records wait whose key is held back."""
        order, found = KeyOrder(), {}
        for answer, _ in unknown:
            if answer.answer not in FINISHED:
                for offset in range(answer.first_offset, answer.last_offset + 1):
                    order.hold_back(answer.at, self._key(answer.at, offset), answer.delay_ms or 0)
        for one in acquired:
            earlier = dict(each(one.earlier))
            for offset, number in sorted([*each(one.ranges), *earlier.items()]):
                key = self._key(one.partition, offset)
                if offset in earlier:
                    order.hold_back(one.partition, key, number)
                elif (wait_ms := order.wait_ms(one.partition, key)) != FREE:
                    found[one.partition, offset] = wait_ms
        return found

    def _key(self, at: TopicPartition, offset: int) -> bytes | None:
        return self.calling.key(at, offset) if self.calling.has_record(at, offset) else None

    def _place(self, call: LateCall) -> tuple[TopicPartition, bytes] | None:
        key = self.calling.key(call.at, call.offset)
        return None if key is None else (call.at, key)


def _undisturbed(_moment: str) -> None:
    return


@dataclass(slots=True, kw_only=True)
class LateDriver:
    """The driver's side. ``start``: begins a process. ``hook`` is called at each of its steps, and may raise.
    ``time_s``: the time of which ``CallsAtATime`` wants to know. ``returned``: the last answers. ``news``: taken in,
    and not returned; ``_dead``:
    processes that have died, of which some of it is; ``_absorbed``: the same, once it was returned."""

    start: Callable[[Limits], LateCalls]
    rng: Random
    ordered: bool = False
    batch: int = 1
    hook: Callable[[str], None] = _undisturbed
    time_s: Callable[[], float] = lambda: 0.0
    calls: LateCalls | None = None
    hand_overs: HandOvers = field(default_factory=HandOvers)
    at_a_time: CallsAtATime = field(default_factory=CallsAtATime)
    news: list[OnTheWay] = field(default_factory=list)
    fault: ShareError | None = None
    number: int = 0
    returned: Sequence[RecordAnswer] = ()
    _returned: tuple[int, ...] = ()
    _dead: list[LateCalls] = field(default_factory=list)
    _absorbed: list[LateCalls] = field(default_factory=list)

    def room(self, limits: DeliveryLimits) -> int:
        ahead = (AHEAD_BY_KEY if self.ordered else AHEAD) * self.batch
        return max(0, ahead * self._limits(limits).most_calls - self.hand_overs.in_flight)

    def deliver(self, acquired: Sequence[AcquiredSpan], limits: DeliveryLimits, *, in_turn: bool) -> Delivered:
        self._forget_returned()
        self._take()
        terms = self._limits(limits)
        if self.calls is not None and (self.calls.held or self.calls.limits != terms):
            self.calls.set_limits(terms)
        if acquired:
            self._hand_over(acquired, terms, in_turn=in_turn)
        if self.calls is not None and not self.calls.is_dead:
            for _ in range(self.rng.randint(0, 4 + 2 * sum(offsets_in(one.ranges) for one in acquired))):
                self.hook("calls go on")
                self._step()
        self._take()
        return self._delivered(terms)

    def drain(self) -> Delivered:
        calls = self.calls
        terms = calls.limits if calls is not None else Limits(1, 0)
        if calls is not None:
            calls.give_back()
            while calls.running and not calls.is_dead:
                self._step(self.rng.choice([*calls.running]))
                self.hook("calls are waited for")
            self._take(everything=True)
        return self._delivered(terms)

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        self._forget_returned()
        self.hand_overs.forget(ends)
        if self.calls is not None:
            self.calls.calling.cut(ends, self.number)
            self.calls.forget(self.hand_overs.take_answered())

    def close(self) -> None:
        if self.calls is not None:
            self.calls.die()
            self.calls = None

    def _step(self, call: LateCall | None = None) -> None:
        calls = self.calls
        if calls is not None and not calls.is_dead:
            if call is None:
                calls.step()
            elif call in calls.running:
                calls.end(call)

    def _hand_over(self, acquired: Sequence[AcquiredSpan], terms: Limits, *, in_turn: bool) -> None:
        self.number += 1
        if self.ordered and self._dead:
            self.news += [OnTheWay(answer) for answer in _given_back(self.number, acquired)]
            return
        self.hook("before a hand-over")
        try:
            self.hook("reads records")
        except TopicUnreachableError as fault:
            self.fault = self.fault or fault
            self.news += [OnTheWay(answer) for answer in _given_back(self.number, acquired)]
            return
        if self.calls is None:
            self.calls = self.start(terms)
        self.hand_overs.add(self.number, acquired)
        self.calls.hand_over(self.number, acquired, self.news, in_turn=in_turn)
        self.hook("after a hand-over")

    def _forget_returned(self) -> None:
        """The state has all that was returned."""
        self.hook("before forgetting hand-overs")
        if self.calls is not None:
            self.calls.forget(self._returned)
        for dead in self._absorbed:
            dead.forget(tuple(dead.numbers))
        self._returned, self._absorbed = (), []

    def _take(self, *, everything: bool = False) -> None:
        calls = self.calls
        if calls is None:
            return
        self.rng.shuffle(calls.ended)
        arrived = len(calls.ended) if everything and not calls.is_dead else self.rng.randint(0, len(calls.ended))
        found, calls.ended = calls.ended[:arrived], calls.ended[arrived:]
        self._note(found)
        if calls.is_dead:
            self.calls = None
            self._bury(calls)

    def _note(self, found: Sequence[OnTheWay]) -> None:
        for one in found:
            self.news += [OnTheWay(answer, one.throttled_in) for answer in self.hand_overs.note([one.answer])]

    def _bury(self, calls: LateCalls) -> None:
        """Answer what a process that has died has not answered, from its ledger."""
        self.fault = self.fault or calls.fault
        lost = LostCalls((), dict(calls.calling.entries()), None)
        self._note([OnTheWay(answer) for answer in lost.answers(list(self.hand_overs.unanswered()), WORKER_LOST)])
        self.hand_overs.take_answered()
        self._dead.append(calls)
        if calls.fault is None and lost.killed_many:
            self.at_a_time.killed(calls.limits.most_calls, self.time_s())

    def _delivered(self, terms: Limits) -> Delivered:
        news, self.news = self.news, []
        if self.calls is not None:
            self._returned += self.hand_overs.take_answered()
        fault, self.fault = self.fault, None
        self._absorbed, self._dead = self._dead, []
        self.returned = answers = [one.answer for one in news]
        throttled = Counter(one.throttled_in for one in news)
        return Delivered(
            spans_of(answers),
            fault,
            entered_in(answers),
            is_explained=bool(self._absorbed),
            in_flight=self.hand_overs.in_flight,
            throttled=throttled[terms.round_number],
        )

    def _limits(self, limits: DeliveryLimits) -> Limits:
        return Limits(self.at_a_time.of(limits.most_calls, self.time_s()), limits.timeout_ms, limits.round_number)


def _given_back(number: int, acquired: Sequence[AcquiredSpan]) -> list[RecordAnswer]:
    return [
        RecordAnswer(number, one.partition, offset, offset, Loss.NOT_ENTERED)
        for one in acquired
        for offset, _ in each(one.ranges)
    ]
