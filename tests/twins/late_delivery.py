"""In-memory twin of a delivery whose calls outlast micro-batches. They end, and their answers come, in any order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from share_spark.engine.attempts import ErrorRun, MemberTrace
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    CallsLook,
    Delivered,
    DeliveryLimits,
    RunningCall,
)
from share_spark.engine.key_order import FINISHED, FREE, KeyOrder
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, AnsweredRange, Loss, RetryDelay, TracedRange
from tests.twins.memory_delivery import InMemoryDelivery, each, last_attempts

_Call = tuple[TopicPartition, int, int]
"""(where, offset, delivery count)."""

_Answer = tuple[AcknowledgeType | Loss, str, int | None]
"""(acknowledge type or loss, error, delay)."""


@dataclass(slots=True)
class LateDelivery(InMemoryDelivery):
    """Each time it is asked, some calls begin, some end, and some answers arrive. ``rng``: which. ``_ended``: their
    answers are on the way. ``most_calls``: those that were allowed, one number for each time. ``batch``: the most
    records of a call, which begin and end together.

    In order of keys, a key is held back while the answer for a record of it is on the way that has not finished it:
    what was acquired meanwhile took for granted that it comes before.

    A handler that raises anything but an Exception is the one that was running when the engine
    died; the others only waited."""

    rng: Random = field(default_factory=Random)
    batch: int = 1
    most_calls: list[int] = field(default_factory=list)
    _round_number: int = 0
    _rounds: dict[_Call, int] = field(default_factory=dict)
    _waiting: list[_Call] = field(default_factory=list)
    _running: list[list[_Call]] = field(default_factory=list)
    _ended: list[tuple[_Call, _Answer]] = field(default_factory=list)

    def room(self, limits: DeliveryLimits) -> int | None:
        return max(0, 2 * limits.most_calls * self.batch - self._in_flight)

    @property
    def running(self) -> list[_Call]:
        return [call for calls in self._running for call in calls]

    @property
    def calls(self) -> CallsLook | None:
        oldest = RunningCall(*self._running[0][0][:2], 0.0) if self._running else None
        return CallsLook(len(self._running), len(self._waiting), self.most_calls[-1] if self.most_calls else 0, oldest)

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        self.held = None
        most, batch = (1, 1) if in_turn else (limits.most_calls, self.batch)
        self.most_calls.append(limits.most_calls)
        self._round_number = limits.round_number
        calls = [(one.partition, offset, count) for one in acquired for offset, count in each(one.ranges)]
        waits = self._held_back(acquired) if self.ordered else {}
        for call in calls:
            if self.log.record(call[0], call[1]) is None:
                self._ended.append((call, (AcknowledgeType.GAP, "", None)))
            elif call in waits:
                self._ended.append((call, (Loss.NOT_ENTERED, "", waits[call] or None)))
            else:
                self._waiting.append(call)
        for _ in range(self.rng.randint(0, 2 * len(calls) + 4)):
            self._step(most, batch)
        self.rng.shuffle(self._ended)
        return self._arrived(self.rng.randint(0, len(self._ended)))

    def drain(self) -> Delivered:
        self._ended += [(call, (Loss.NOT_ENTERED, "", None)) for call in self._waiting]
        self._waiting = []
        while self._running:
            self._end(0)
        return self._arrived(len(self._ended))

    def traces(self) -> Sequence[MemberTrace]:
        return [
            MemberTrace(member, _entered(last_attempts(ledger), self.stepped.get(member, ())))
            for member, ledger in self.ledgers.items()
            if member != self._member_id
        ]

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        def is_gone(call: _Call) -> bool:
            return call[1] >= ends.get(call[0], call[1] + 1)

        self._waiting = [call for call in self._waiting if not is_gone(call)]
        self._running = [left for calls in self._running if (left := [call for call in calls if not is_gone(call)])]
        self._ended = [one for one in self._ended if not is_gone(one[0])]
        ledger = self.ledgers[self._member_id]
        self.ledgers[self._member_id] = {call: said for call, said in ledger.items() if not is_gone(call)}

    @property
    def _in_flight(self) -> int:
        return len(self._waiting) + len(self.running) + len(self._ended)

    def _step(self, most: int, batch: int) -> None:
        """A call begins, or one ends."""
        if len(self._running) < most and self.rng.random() < 0.6 and (call := self._next()) is not None:
            self._running.append([])
            for _ in range(batch):
                self._enter(call)
                if (call := self._next()) is None:
                    break
        elif self._running:
            self._end(self.rng.randrange(len(self._running)))

    def _enter(self, call: _Call) -> None:
        self._waiting.remove(call)
        self._running[-1].append(call)
        self._rounds[call] = self._round_number
        self.ledgers[self._member_id][call] = None

    def _end(self, number: int) -> None:
        calls = self._running.pop(number)
        self.stepped[self._member_id] = calls
        answers = [self._answer(*call) for call in calls]
        del self.stepped[self._member_id]
        for call, answer in zip(calls, answers, strict=True):
            self._end_of(call, *answer)

    def _end_of(self, call: _Call, kind: AcknowledgeType | Loss, error: str, delay_ms: int) -> None:
        self._ended.append((call, (kind, error, delay_ms if delay_ms >= 0 else None)))
        if self.ordered and kind not in FINISHED:
            place, wait = self._place(call), (Loss.NOT_ENTERED, "", delay_ms if delay_ms > 0 else None)
            behind = [one for one in self._waiting if place is not None and self._place(one) == place]
            self._ended += [(one, wait) for one in behind]
            self._waiting = [one for one in self._waiting if one not in behind]

    def _next(self) -> _Call | None:
        """Return the first that may begin: in order of keys, one of each key."""
        taken = {self._place(call) for call in self.running}
        for call in self._waiting:
            place = self._place(call) if self.ordered else None
            if place is None or place not in taken:
                return call
            taken.add(place)
        return None

    def _held_back(self, acquired: Sequence[AcquiredSpan]) -> dict[_Call, int]:
        """Return how long the calls of those wait that are held back."""
        order, found = KeyOrder(), {}
        for call, (kind, _, delay_ms) in self._ended:
            if kind not in FINISHED:
                order.hold_back(call[0], self._key(call), delay_ms or 0)
        for one in acquired:
            earlier = dict(each(one.earlier))
            for offset, number in sorted([*each(one.ranges), *earlier.items()]):
                call = (one.partition, offset, number)
                if offset in earlier:
                    order.hold_back(one.partition, self._key(call), number)
                elif (wait_ms := order.wait_ms(one.partition, self._key(call))) != FREE:
                    found[call] = wait_ms
        return found

    def _place(self, call: _Call) -> tuple[TopicPartition, bytes] | None:
        key = self._key(call)
        return None if key is None else (call[0], key)

    def _key(self, call: _Call) -> bytes | None:
        record = self.log.record(call[0], call[1])
        return None if record is None else record.key

    def _arrived(self, number: int) -> Delivered:
        arrived, self._ended = self._ended[:number], self._ended[number:]
        places = sorted({call[0] for call, _ in arrived})
        answers = [_span(at, sorted((call[1], said) for call, said in arrived if call[0] == at)) for at in places]
        throttled = [call for call, said in arrived if said[0] == Loss.THROTTLED]
        return Delivered(
            answers,
            entered=sum(said[0] not in (AcknowledgeType.GAP, Loss.NOT_ENTERED) for _, said in arrived),
            in_flight=self._in_flight,
            cost=self.cost_of(answers),
            throttled=sum(self._rounds[call] == self._round_number for call in throttled),
        )


def _span(at: TopicPartition, said: Sequence[tuple[int, _Answer]]) -> AcknowledgedSpan:
    ranges = tuple(AnsweredRange(offset, offset, kind) for offset, (kind, _, _) in said)
    errors = [ErrorRun(offset, offset, error) for offset, (_, error, _) in said if error]
    delays = [RetryDelay(offset, offset, delay) for offset, (_, _, delay) in said if delay is not None]
    return AcknowledgedSpan(at, ranges, errors, delays)


def _entered(ledger: Iterable[_Call], stepped: Collection[_Call]) -> dict[TopicPartition, tuple[TracedRange, ...]]:
    """Return a ledger as a trace: the records of one call were running, the others waited or were done."""
    rows: dict[TopicPartition, list[TracedRange]] = {}
    for at, offset, count in sorted(ledger):
        loss = Loss.IN_HANDLER if (at, offset, count) in stepped else Loss.FINISHED
        rows.setdefault(at, []).append(TracedRange(offset, offset, count, loss))
    return {at: tuple(found) for at, found in rows.items()}
