"""In-memory twin of a delivery whose calls outlast micro-batches. They end, and their answers come, in any order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from share_spark.companion.lost_calls import LedgerEntry
from share_spark.companion.messages import Limits
from share_spark.engine.attempts import MemberTrace
from share_spark.engine.delivery_port import AcquiredSpan, CallsLook, Delivered, DeliveryLimits, RunningCall
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss, TracedRange
from tests.twins.late_calls import LateAnswer, LateCall, LateCalls, LateDriver
from tests.twins.memory_delivery import InMemoryDelivery, Kind, last_attempts

_Attempt = tuple[TopicPartition, int, int]
"""(where, offset, delivery count)."""


@dataclass(slots=True)
class LateDelivery(InMemoryDelivery):
    """Each time it is asked, some calls begin, some end, and some answers arrive. ``rng``: which. ``batch``: the most
    records of a call. ``most_calls``: those that were allowed, one number for each time. ``_numbers``: the hand-over
    that each entry of the ledger is of; ``_cuts``: logs were truncated to these ends, after these hand-overs.

    A handler that raises anything but an Exception is the one that was running when the engine died; the others only
    waited."""

    rng: Random = field(default_factory=Random)
    batch: int = 1
    most_calls: list[int] = field(default_factory=list)
    driver: LateDriver = field(init=False)
    _numbers: dict[_Attempt, int] = field(default_factory=dict)
    _cuts: list[tuple[Mapping[TopicPartition, int], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = LateDriver(start=self._start, rng=self.rng, ordered=self.ordered, batch=self.batch)

    def _start(self, limits: Limits) -> LateCalls:
        return LateCalls(calling=self, rng=self.rng, limits=limits, ordered=self.ordered, batch=self.batch)

    def room(self, limits: DeliveryLimits) -> int | None:
        return self.driver.room(limits)

    @property
    def calls(self) -> CallsLook | None:
        calls, limit = self.driver.calls, self.most_calls[-1] if self.most_calls else 0
        if calls is None:
            return CallsLook(0, 0, limit)
        oldest = next((RunningCall(call.at, call.offset, 0.0) for call in calls.running), None)
        return CallsLook(len(calls.lists), len(calls.waiting), limit, oldest)

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        self.held = None
        self.most_calls.append(limits.most_calls)
        return self._with_cost(self.driver.deliver(acquired, limits, in_turn=in_turn))

    def drain(self) -> Delivered:
        return self._with_cost(self.driver.drain())

    def traces(self) -> Sequence[MemberTrace]:
        return [
            MemberTrace(member, _entered(last_attempts(ledger), self.stepped.get(member, ())))
            for member, ledger in self.ledgers.items()
            if member != self._member_id
        ]

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        self.driver.forget_last(ends)

    # ---------------------------------------------------------------------------------------------- what calls do

    @property
    def _ledger(self) -> dict[_Attempt, tuple[Kind, str, int] | None]:
        """Its own; a new one if a successor has forgotten it."""
        return self.ledgers.setdefault(self._member_id, {})

    def key(self, at: TopicPartition, offset: int) -> bytes | None:
        record = self.log.record(at, offset)
        return None if record is None else record.key

    def has_record(self, at: TopicPartition, offset: int) -> bool:
        return self.log.record(at, offset) is not None

    def cut(self, ends: Mapping[TopicPartition, int], number: int) -> None:
        self._cuts.append((ends, number))
        for attempt, of in [*self._numbers.items()]:
            if self._is_cut(LateCall(of, *attempt)):
                del self._numbers[attempt]
                self._ledger.pop(attempt, None)

    def _is_cut(self, call: LateCall) -> bool:
        return any(
            call.number <= number and call.offset >= ends.get(call.at, call.offset + 1) for ends, number in self._cuts
        )

    def begin(self, call: LateCall) -> None:
        if self._is_cut(call):
            return
        self._ledger[call[1:4]] = None
        self._numbers[call[1:4]] = call.number

    def end(self, call: LateCall) -> LateAnswer:
        assert self.driver.calls is not None, "a call ends in a process"
        self.stepped[self._member_id] = [one[1:4] for one in self.driver.calls.together(call)]
        before = dict(self._ledger)
        kind, error, delay_ms = self._answer(call.at, call.offset, call.count)
        if self._is_cut(call):
            self.ledgers[self._member_id] = before
        del self.stepped[self._member_id]
        return LateAnswer(kind, error or None, delay_ms if delay_ms >= 0 else None)

    def end_cancelled(self, call: LateCall) -> None:
        """Do nothing: no handler here leaves a trace outside of its answer."""

    def forget(self, number: int) -> None:
        for attempt in [attempt for attempt, of in self._numbers.items() if of == number]:
            del self._numbers[attempt]
            self._ledger.pop(attempt, None)

    def entries(self) -> Mapping[tuple[int, TopicPartition, int], LedgerEntry]:
        raise NotImplementedError("no process dies alone")

    def _with_cost(self, delivered: Delivered) -> Delivered:
        return delivered._replace(cost=self.cost_of(delivered.answers))


def _entered(
    ledger: Iterable[_Attempt], stepped: Collection[_Attempt]
) -> dict[TopicPartition, tuple[TracedRange, ...]]:
    """Return a ledger as a trace: the records of one call were running, the others waited or were done."""
    rows: dict[TopicPartition, list[TracedRange]] = {}
    for at, offset, count in sorted(ledger):
        loss = Loss.IN_HANDLER if (at, offset, count) in stepped else Loss.FINISHED
        rows.setdefault(at, []).append(TracedRange(offset, offset, count, loss))
    return {at: tuple(found) for at, found in rows.items()}
