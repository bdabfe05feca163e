"""In-memory twin of the delivery: calls a handler for records of an ``InMemoryTopicLog``, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from share_spark.engine.memory import InMemoryTopicLog
from share_spark.engine.ports import AcknowledgedSpan, AcquiredSpan
from share_spark.engine.step import LOST
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType

_T = TypeVar("_T")

Answer = AcknowledgeType | tuple[AcknowledgeType, str]
RecordHandler = Callable[[str, int, int, int], Answer]
"""(topic, partition, offset, delivery count) -> acknowledgement, perhaps with an error text."""


class WorkerLostError(Exception):
    """What a handler raises that kills its worker: everything that was delivered together is lost."""


@dataclass(frozen=True, slots=True)
class InMemoryDelivery:
    """Calls ``handler`` for each acquired record that the log has. An Exception of it is a release with its text.

    ``marks`` outlives the process: the members inside whose handler is a record that runs alone.
    """

    log: InMemoryTopicLog
    handler: RecordHandler
    member_id: str = ""
    marks: set[str] = field(default_factory=set)

    def deliver(self, acquired: Sequence[AcquiredSpan], *, alone: bool = False) -> Sequence[AcknowledgedSpan]:
        if alone:
            self.marks.add(self.member_id)
        answers = self._deliver_all(acquired)
        self.marks.discard(self.member_id)
        return answers

    def died_in_handler(self) -> frozenset[str]:
        return frozenset(self.marks)

    def _deliver_all(self, acquired: Sequence[AcquiredSpan]) -> Sequence[AcknowledgedSpan]:
        try:
            return [self._deliver(one) for one in acquired]
        except WorkerLostError:
            return [_all_lost(one) for one in acquired]

    def _deliver(self, acquired: AcquiredSpan) -> AcknowledgedSpan:
        at = acquired.partition
        said = [
            (offset, *self._answer(at, offset, count))
            for first, last, count in sorted(acquired.ranges.tolist())
            for offset in range(first, last + 1)
            if self.log.record(at, offset) is not None
        ]
        ranges = np.array(_runs((offset, int(kind)) for offset, kind, _ in said), dtype=np.int64)
        errors = [run for run in _runs((offset, error) for offset, _, error in said) if run[2]]
        return AcknowledgedSpan(at, ranges.reshape(-1, 3), errors)

    def _answer(self, at: TopicPartition, offset: int, count: int) -> tuple[AcknowledgeType, str]:
        try:
            answer = self.handler(at.topic, at.partition, offset, count)
        except WorkerLostError:
            raise
        except Exception as fault:  # noqa: BLE001 - whatever a handler raises is a release
            return AcknowledgeType.RELEASE, f"{type(fault).__name__}: {fault}"
        return answer if isinstance(answer, tuple) else (answer, "")


def _all_lost(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = acquired.ranges[np.argsort(acquired.ranges[:, 0], kind="stable")].copy()
    ranges[:, 2] = LOST
    return AcknowledgedSpan(acquired.partition, ranges, [(int(ranges[0, 0]), int(ranges[-1, 1]), "worker lost")])


def _runs(said: Iterable[tuple[int, _T]]) -> list[tuple[int, int, _T]]:
    """Ascending (offset, what) as runs (first, last, what)."""
    runs: list[tuple[int, int, _T]] = []
    for offset, what in said:
        if runs and runs[-1][1:] == (offset - 1, what):
            runs[-1] = (runs[-1][0], offset, what)
        else:
            runs.append((offset, offset, what))
    return runs
