"""In-memory twin of the delivery: calls a handler for records of an ``InMemoryTopicLog``, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from share_spark.engine.attempts import AnsweredAttempt, ErrorRun, FinishedCalls, MemberTrace
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    Delivered,
    DeliveryAtOnce,
    DeliveryLimits,
)
from share_spark.engine.key_order import FREE, KeyOrder
from share_spark.engine.ports import Claim
from share_spark.engine.ranges import Ranges, ascending
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, AnsweredRange, Loss, RetryDelay, TracedRange
from tests.twins.memory import InMemoryTopicLog

_NO_DELAY = -1

_T = TypeVar("_T")

Kind = AcknowledgeType | Loss
"""The answer of a handler: a ``Loss`` is THROTTLED."""

Answer = Kind | tuple[Kind, str] | tuple[Kind, str, int]
RecordHandler = Callable[[str, int, int, int], Answer]
"""(topic, partition, offset, delivery count) -> acknowledgement, optionally with an error text, and a delay in ms."""

Ledgers = dict[str, dict[tuple[TopicPartition, int, int], tuple[Kind, str, int] | None]]
"""By member: what its last delivery has entered (where, offset, delivery count), and the answer (acknowledgement,
error, delay), None while it is in the handler."""

Ledger = Mapping[tuple[TopicPartition, int, int], tuple[Kind, str, int] | None]

_Said = tuple[int, int, str, int]
"""The result of a record: offset, acknowledge type or ``Loss``, error, delay."""


class WorkerLostError(Exception):
    """Raised by a handler to kill its worker, whose ledger stays: that record is lost, the others go on."""


class LedgerLostError(Exception):
    """Raised by a handler to take its machine down, and the ledger with it: nobody knows what has run."""


@dataclass(slots=True)
class InMemoryDelivery(DeliveryAtOnce):
    """A delivery that calls ``handler`` for each acquired record of the log. Its Exception is a release with its text.

    ``ledgers`` outlives the process: by member, what its last delivery has entered, and the answer, None while it is in
    the handler. ``ordered``: in the order of keys. ``has_output``: accepted records have rows, which
    outlive it unless ``loses_rows``. ``stepped``: by member, the records whose call was running when its process ended,
    where that is known; it outlives the process as well. ``costs``: what the record at an offset costs if it is
    accepted. ``held``: the records whose rows are held, of finished calls; None: those of its last answers.
    """

    log: InMemoryTopicLog
    handler: RecordHandler
    ledgers: Ledgers = field(default_factory=dict)
    ordered: bool = False
    has_output: bool = False
    loses_rows: bool = False
    stepped: dict[str, Collection[tuple[TopicPartition, int, int]]] = field(default_factory=dict)
    costs: Callable[[int], float] = lambda _: 0.0
    held: set[tuple[TopicPartition, int]] | None = None
    _member_id: str = ""
    _others: set[str] = field(default_factory=set)

    def start(self, claim: Claim) -> None:
        self._member_id = claim.member_id
        self._others = self.ledgers.keys() - {claim.member_id}
        self.ledgers[self._member_id] = {}

    def deliver(
        self,
        acquired: Sequence[AcquiredSpan],
        *,
        limits: DeliveryLimits,  # noqa: ARG002
        in_turn: bool = False,  # noqa: ARG002
    ) -> Delivered:
        self.ledgers[self._member_id], self.held = {}, None
        try:
            answers = [self._deliver(one) for one in acquired]
        except LedgerLostError:
            answers = [_all_lost(one) for one in acquired]
        return Delivered(answers, entered=len(self.ledgers[self._member_id]), cost=self.cost_of(answers))

    def cost_of(self, answers: Iterable[AcknowledgedSpan]) -> float:
        """Return what the accepted records have cost."""
        return sum(
            self.costs(offset)
            for span in answers
            for first, last, answer in span.ranges
            for offset in range(first, last + 1)
            if answer == AcknowledgeType.ACCEPT
        )

    def finished_calls(self) -> Sequence[FinishedCalls]:
        found = [
            _finished(member, last_attempts(ledger), has_output=self.has_output, loses_rows=self.loses_rows)
            for member, ledger in self.ledgers.items()
            if member != self._member_id and ledger
        ]
        return found[::-1]

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:
        self.held = {
            (span.partition, offset) for span in accepted for run in span.ranges for offset in range(run[0], run[1] + 1)
        }
        return self.has_output

    def traces(self) -> Sequence[MemberTrace]:
        return [
            MemberTrace(member, _entered(ledger))
            for member, ledger in self.ledgers.items()
            if member != self._member_id
        ]

    def forget_traces(self) -> None:
        for member in self._others:
            self.ledgers.pop(member, None)

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:  # noqa: ARG002
        self.ledgers[self._member_id] = {}

    def stop_waiting(self) -> None:
        """Do nothing: no request ever waits."""

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _deliver(self, acquired: AcquiredSpan) -> AcknowledgedSpan:
        at = acquired.partition
        said = self._in_order(acquired) if self.ordered else self._in_turn(acquired)
        ranges = tuple(AnsweredRange(*run) for run in _runs((offset, kind) for offset, kind, _, _ in said))
        errors = [ErrorRun(*run) for run in _runs((offset, error) for offset, _, error, _ in said) if run[2]]
        delays = [RetryDelay(*run) for run in _runs((offset, delay) for offset, *_, delay in said) if run[2] >= 0]
        return AcknowledgedSpan(at, ranges, errors, delays)

    def _in_turn(self, acquired: AcquiredSpan) -> list[_Said]:
        at = acquired.partition
        return [
            (offset, *self._answer(at, offset, count))
            for offset, count in each(acquired.ranges)
            if self.log.record(at, offset) is not None
        ]

    def _in_order(self, acquired: AcquiredSpan) -> list[_Said]:
        at, order = acquired.partition, KeyOrder()
        said: list[_Said] = []
        earlier = dict(each(acquired.earlier))
        for offset, count in sorted([*each(acquired.ranges), *earlier.items()]):
            record = self.log.record(at, offset)
            if record is None:
                continue
            if offset in earlier:
                order.hold_back(at, record.key, earlier[offset])
            elif (wait_ms := order.wait_ms(at, record.key)) != FREE:
                said.append((offset, Loss.NOT_ENTERED, "", wait_ms or _NO_DELAY))
            else:
                answer = self._answer(at, offset, count)
                said.append((offset, *answer))
                if answer[0] not in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT):
                    order.hold_back(at, record.key, max(answer[2], 0))
        return said

    def _answer(self, at: TopicPartition, offset: int, count: int) -> tuple[Kind, str, int]:
        ledger = self.ledgers.setdefault(self._member_id, {})
        ledger[at, offset, count] = None
        try:
            answer = self.handler(at.topic, at.partition, offset, count)
        except WorkerLostError:
            answer = AcknowledgeType.RELEASE, "worker lost"
        except LedgerLostError:
            raise
        except Exception as fault:  # noqa: BLE001 - whatever a handler raises is a release
            answer = AcknowledgeType.RELEASE, f"{type(fault).__name__}: {fault}"
        said = (*answer, _NO_DELAY)[:3] if isinstance(answer, tuple) else (answer, "", _NO_DELAY)
        ledger[at, offset, count] = said
        return said


def each(ranges: Ranges) -> list[tuple[int, int]]:
    """Return (offset, value of its range) for each offset, ascending."""
    return [(offset, said) for first, last, said in sorted(ranges.tolist()) for offset in range(first, last + 1)]


def last_attempts(ledger: Ledger) -> Ledger:
    """Return the entries of the last attempt at each record."""
    last = {call[:2]: call for call in sorted(ledger, key=lambda call: call[2])}
    return {call: ledger[call] for call in sorted(last.values())}


def _finished(member: str, ledger: Ledger, *, has_output: bool, loses_rows: bool) -> FinishedCalls:
    """Return the answers of a ledger, without accepted records whose rows are lost."""
    answered: dict[TopicPartition, list[AnsweredAttempt]] = {}
    put_out: dict[TopicPartition, list[AnsweredAttempt]] = {}
    errors: dict[TopicPartition, list[ErrorRun]] = {}
    delays: dict[TopicPartition, list[RetryDelay]] = {}
    for (at, offset, count), said in sorted(ledger.items(), key=lambda one: one[0]):
        has_rows = has_output and said is not None and said[0] is AcknowledgeType.ACCEPT
        if said is None or (has_rows and loses_rows):
            continue
        kind, error, delay_ms = said
        (put_out if has_rows else answered).setdefault(at, []).append(AnsweredAttempt(offset, offset, count, kind))
        if error:
            errors.setdefault(at, []).append(ErrorRun(offset, offset, error))
        if delay_ms != _NO_DELAY:
            delays.setdefault(at, []).append(RetryDelay(offset, offset, delay_ms))
    return FinishedCalls(member, _tuples(answered), _tuples(put_out), errors, delays)


def _tuples(found: Mapping[TopicPartition, list[AnsweredAttempt]]) -> dict[TopicPartition, tuple[AnsweredAttempt, ...]]:
    return {at: tuple(some) for at, some in found.items()}


def _entered(ledger: Ledger) -> dict[TopicPartition, tuple[TracedRange, ...]]:
    """Return a ledger as a trace: of each entered record, how its attempt ended."""
    in_handler = list(ledger.values()).count(None)
    losses = {
        True: Loss.FINISHED if in_handler else Loss.AFTER_HANDLER,
        False: Loss.IN_HANDLER if in_handler == 1 else Loss.AMONG_OTHERS,
    }
    rows: dict[TopicPartition, list[TracedRange]] = {}
    for (at, offset, count), said in sorted(ledger.items(), key=lambda one: one[0]):
        loss = said[0] if said is not None and isinstance(said[0], Loss) else losses[said is not None]
        rows.setdefault(at, []).append(TracedRange(offset, offset, count, loss))
    return {at: tuple(found) for at, found in rows.items()}


def _all_lost(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = tuple(AnsweredRange(first, last, Loss.UNKNOWN) for first, last, _ in ascending(acquired.ranges).tolist())
    whole = ErrorRun(ranges[0].first_offset, ranges[-1].last_offset, "worker lost")
    return AcknowledgedSpan(acquired.partition, ranges, [whole])


def _runs(said: Iterable[tuple[int, _T]]) -> list[tuple[int, int, _T]]:
    """Join ascending (offset, value) to runs (first, last, value)."""
    runs: list[tuple[int, int, _T]] = []
    for offset, what in said:
        if runs and runs[-1][1:] == (offset - 1, what):
            runs[-1] = (runs[-1][0], offset, what)
        else:
            runs.append((offset, offset, what))
    return runs
