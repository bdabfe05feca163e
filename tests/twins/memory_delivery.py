"""In-memory twin of the delivery: calls a handler for records of an ``InMemoryTopicLog``, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from share_spark.engine.attempts import ErrorRun
from share_spark.engine.key_order import FREE, KeyOrder
from share_spark.engine.ports import (
    AcknowledgedSpan,
    AcquiredSpan,
    Claim,
    Delivered,
    DeliveryLimits,
    MemberTrace,
)
from share_spark.engine.ranges import ANSWER, AcknowledgedRanges, Ranges, ascending
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss, RetryDelay
from tests.twins.memory import InMemoryTopicLog

_NO_DELAY = -1

_T = TypeVar("_T")

Answer = AcknowledgeType | tuple[AcknowledgeType, str] | tuple[AcknowledgeType, str, int]
RecordHandler = Callable[[str, int, int, int], Answer]
"""(topic, partition, offset, delivery count) -> acknowledgement, perhaps with an error text, and a delay in ms."""

_Said = tuple[int, int, str, int]
"""Of a record: offset, acknowledge type or ``Loss``, error, delay."""


class WorkerLostError(Exception):
    """What a handler raises that kills its worker, which leaves its ledger: that record is lost, the others go on."""


class LedgerLostError(Exception):
    """What a handler raises that takes its machine down, and the ledger with it: it is not known what has run."""


@dataclass(slots=True)
class InMemoryDelivery:
    """Calls ``handler`` for each acquired record that the log has. An Exception of it is a release with its text.

    ``ledgers`` outlives the process: by member, what its last delivery has entered, and whether the handler was done.
    ``ordered``: in order of keys.
    """

    log: InMemoryTopicLog
    handler: RecordHandler
    ledgers: dict[str, dict[tuple[TopicPartition, int, int], bool]] = field(default_factory=dict)
    ordered: bool = False
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
        self.ledgers[self._member_id] = {}
        try:
            answers = [self._deliver(one) for one in acquired]
        except LedgerLostError:
            answers = [_all_lost(one) for one in acquired]
        return Delivered(answers, entered=len(self.ledgers[self._member_id]))

    def traces(self) -> Sequence[MemberTrace]:
        return [
            MemberTrace(member, _entered(ledger))
            for member, ledger in self.ledgers.items()
            if member != self._member_id
        ]

    def forget_traces(self) -> None:
        for member in self._others:
            self.ledgers.pop(member, None)

    def forget_last(self) -> None:
        self.ledgers[self._member_id] = {}

    def stop_waiting(self) -> None:
        """Nobody ever waits."""

    def close(self) -> None:
        """Nothing is kept."""

    def _deliver(self, acquired: AcquiredSpan) -> AcknowledgedSpan:
        at = acquired.partition
        said = self._in_order(acquired) if self.ordered else self._in_turn(acquired)
        ranges = np.array(_runs((offset, int(kind)) for offset, kind, _, _ in said), dtype=np.int64)
        errors = [ErrorRun(*run) for run in _runs((offset, error) for offset, _, error, _ in said) if run[2]]
        delays = [RetryDelay(*run) for run in _runs((offset, delay) for offset, *_, delay in said) if run[2] >= 0]
        return AcknowledgedSpan(at, AcknowledgedRanges(ranges.reshape(-1, 3)), errors, delays)

    def _in_turn(self, acquired: AcquiredSpan) -> list[_Said]:
        at = acquired.partition
        return [
            (offset, *self._answer(at, offset, count))
            for offset, count in _each(acquired.ranges)
            if self.log.record(at, offset) is not None
        ]

    def _in_order(self, acquired: AcquiredSpan) -> list[_Said]:
        at, order = acquired.partition, KeyOrder()
        said: list[_Said] = []
        earlier = dict(_each(acquired.earlier))
        for offset, count in sorted([*_each(acquired.ranges), *earlier.items()]):
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

    def _answer(self, at: TopicPartition, offset: int, count: int) -> tuple[AcknowledgeType, str, int]:
        ledger = self.ledgers.setdefault(self._member_id, {})
        ledger[at, offset, count] = False
        try:
            answer = self.handler(at.topic, at.partition, offset, count)
        except WorkerLostError:
            answer = AcknowledgeType.RELEASE, "worker lost"
        except LedgerLostError:
            raise
        except Exception as fault:  # noqa: BLE001 - whatever a handler raises is a release
            answer = AcknowledgeType.RELEASE, f"{type(fault).__name__}: {fault}"
        ledger[at, offset, count] = True
        if not isinstance(answer, tuple):
            return answer, "", _NO_DELAY
        return answer if len(answer) == 3 else (*answer, _NO_DELAY)


def _each(ranges: Ranges) -> list[tuple[int, int]]:
    """(offset, what is said of it), ascending."""
    return [(offset, said) for first, last, said in sorted(ranges.tolist()) for offset in range(first, last + 1)]


def _entered(ledger: Mapping[tuple[TopicPartition, int, int], bool]) -> dict[TopicPartition, NDArray[np.int64]]:
    """A ledger as a trace: of each record that was entered, how its attempt ended."""
    in_handler = list(ledger.values()).count(False)
    losses = {
        True: Loss.FINISHED if in_handler else Loss.AFTER_HANDLER,
        False: Loss.IN_HANDLER if in_handler == 1 else Loss.AMONG_OTHERS,
    }
    rows: dict[TopicPartition, list[tuple[int, int, int, int]]] = {}
    for (at, offset, count), is_done in sorted(ledger.items()):
        rows.setdefault(at, []).append((offset, offset, count, losses[is_done]))
    return {at: np.array(found, np.int64) for at, found in rows.items()}


def _all_lost(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = AcknowledgedRanges(ascending(acquired.ranges))
    ranges[:, ANSWER] = Loss.UNKNOWN
    return AcknowledgedSpan(
        acquired.partition, ranges, [ErrorRun(int(ranges[0, 0]), int(ranges[-1, 1]), "worker lost")]
    )


def _runs(said: Iterable[tuple[int, _T]]) -> list[tuple[int, int, _T]]:
    """Ascending (offset, what) as runs (first, last, what)."""
    runs: list[tuple[int, int, _T]] = []
    for offset, what in said:
        if runs and runs[-1][1:] == (offset - 1, what):
            runs[-1] = (runs[-1][0], offset, what)
        else:
            runs.append((offset, offset, what))
    return runs
