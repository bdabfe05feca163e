"""A share group of millions of records, whose handler is called range by range, so that a life takes seconds.

Engine, store and dead letters are those of the plays; the topic has offsets and no records. Everything is accepted,
unless a blow falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from share_spark.engine.acquisition_limits import Pace
from share_spark.engine.attempts import FinishedCalls, MemberTrace
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    Delivered,
    DeliveryAtOnce,
    DeliveryLimits,
)
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.ports import Claim
from share_spark.engine.ranges import ascending
from share_spark.engine.topics import SubscribedTopics
from share_spark.engine.world import Ports
from share_spark.model.config import GroupConfig
from share_spark.model.errors import HandlerError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss, TracedRange
from tests.simulation.processes import Death
from tests.support.answers import answered
from tests.twins.memory import InMemoryShareStateStore, InMemoryStateLog, InMemoryTopicLog
from tests.twins.memory_output import InMemoryDeadLetters

TOPIC = "orders"
LOCK_MS = 30_000
_NO_LIMIT = 10**8

Rows = list[tuple[int, int, int, Loss]]


@dataclass(frozen=True, slots=True)
class Blow:
    """What ends a delivery: the engine dies when each of ``tasks`` tasks has handled ``after`` records, and is in the
    next one if ``inside``. ``fault``: it does not die, the delivery fails before any handler."""

    after: int = 0
    inside: bool = False
    tasks: int = 1
    fault: bool = False


@dataclass(slots=True)
class Holding:
    """What one micro-batch has acquired, in the order in which it is handled. ``in_turn``: by one task, one by one."""

    spans: Sequence[AcquiredSpan]
    in_turn: bool = False

    @property
    def records(self) -> int:
        return sum(int((span.ranges[:, 1] - span.ranges[:, 0] + 1).sum()) for span in self.spans)

    def position(self, partition: int, offset: int) -> int | None:
        """How many records come before this one; None if it is not here."""
        before = 0
        for at, first, last, _ in self.runs():
            if at.partition == partition and first <= offset <= last:
                return before + offset - first
            before += last - first + 1
        return None

    def runs(self) -> Iterator[tuple[TopicPartition, int, int, int]]:
        """(where, first, last, delivery count)."""
        for span in self.spans:
            for first, last, count in sorted(span.ranges.tolist()):
                yield span.partition, first, last, count

    def entered(self, blow: Blow) -> dict[TopicPartition, tuple[TracedRange, ...]]:
        """What ledgers say after this blow."""
        size = -(-self.records // blow.tasks)
        starts = range(0, self.records, size)
        in_handlers = sum(start + blow.after < min(start + size, self.records) for start in starts)
        inside = Loss.IN_HANDLER if in_handlers == 1 else Loss.AMONG_OTHERS
        done = Loss.FINISHED if blow.inside else Loss.AFTER_HANDLER
        rows: dict[TopicPartition, Rows] = {}
        for start in starts:
            self._cut(start, min(start + size, start + blow.after), done, rows)
            if blow.inside and blow.after < size:
                self._cut(start + blow.after, start + blow.after + 1, inside, rows)
        return {at: tuple(TracedRange(*row) for row in sorted(found)) for at, found in rows.items()}

    def _cut(self, start: int, end: int, loss: Loss, rows: dict[TopicPartition, Rows]) -> None:
        """The records at the positions ``start..end - 1``."""
        before = 0
        for at, first, last, count in self.runs():
            low, high = max(start - before, 0), min(end - before, last - first + 1)
            if low < high:
                rows.setdefault(at, []).append((first + low, first + high - 1, count, loss))
            before += last - first + 1


Strike = Callable[[Holding], Blow | None]
"""What befalls a delivery."""


def undisturbed(_holding: Holding) -> Blow | None:
    return None


@dataclass(slots=True)
class RangeDelivery(DeliveryAtOnce):
    """Of one engine; what outlives it is the group's."""

    group: GroupRanges
    member_id: str = ""

    def start(self, claim: Claim) -> None:
        self.member_id = claim.member_id
        self._note({})

    def finished_calls(self) -> Sequence[FinishedCalls]:
        """None: all answers have output, which is lost with the engine."""
        return ()

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:  # noqa: ARG002
        return False

    def traces(self) -> Sequence[MemberTrace]:
        found = self.group.traces.items()
        return [MemberTrace(member, entered) for member, entered in found if member != self.member_id]

    def forget_traces(self) -> None:
        for member in self.group.traces.keys() - {self.member_id}:
            del self.group.traces[member]

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        raise NotImplementedError  # no log is truncated here

    def close(self) -> None:
        """Nothing is kept."""

    def stop_waiting(self) -> None:
        """Nobody ever waits."""

    def deliver(
        self,
        acquired: Sequence[AcquiredSpan],
        *,
        limits: DeliveryLimits,  # noqa: ARG002
        in_turn: bool = False,
    ) -> Delivered:
        self._note({})
        holding = Holding(acquired, in_turn)
        self.group.highest_count = max([self.group.highest_count, *(count for _, _, _, count in holding.runs())])
        blow = self.group.strike(holding)
        if blow is None:
            self._accept(holding)
            answers = [_accepted(span) for span in acquired]
            return Delivered(answers, entered=holding.records, busy_s=1e-3)
        if blow.fault:
            return Delivered((), fault=HandlerError("cannot be loaded"))
        self._note(holding.entered(blow))
        raise Death

    def _accept(self, holding: Holding) -> None:
        for at, first, last, _ in holding.runs():
            self.group.accepted[at.partition, first : last + 1] += 1

    def _note(self, entered: dict[TopicPartition, tuple[TracedRange, ...]]) -> None:
        if self.group.leaves_traces:
            self.group.traces[self.member_id] = entered


def _accepted(span: AcquiredSpan) -> AcknowledgedSpan:
    rows = [(first, last, AcknowledgeType.ACCEPT) for first, last, _ in ascending(span.ranges).tolist()]
    return AcknowledgedSpan(span.partition, answered(rows), ())


@dataclass(slots=True, kw_only=True)
class GroupRanges:
    """One group whose engines die and are started again, until everything is finished.

    ``searches``: of each micro-batch that came to its end, whether it was for suspects. ``before_micro_batch``: what
    producers do. ``highest_count``: of all deliveries.
    """

    partitions: int
    records: int
    limit: int = 5
    strike: Strike = undisturbed
    leaves_traces: bool = True
    before_micro_batch: Callable[[GroupRanges], None] = lambda _group: None
    time_ms: int = 0
    engines: int = 0
    deaths: int = 0
    faults: int = 0
    highest_count: int = 0
    searches: list[bool] = field(default_factory=list)
    traces: dict[str, dict[TopicPartition, tuple[TracedRange, ...]]] = field(default_factory=dict)
    state_log: InMemoryStateLog = field(default_factory=InMemoryStateLog)
    letters: InMemoryDeadLetters = field(default_factory=InMemoryDeadLetters)
    topics: InMemoryTopicLog = field(default_factory=InMemoryTopicLog)
    accepted: NDArray[np.int8] = field(init=False)

    def __post_init__(self) -> None:
        self.topics.create_topic(TOPIC, self.partitions)
        self.accepted = np.zeros((self.partitions, 0), np.int8)
        self.produce(self.records)

    def produce(self, records: int) -> None:
        """So many to each share-partition."""
        self.accepted = np.concatenate([self.accepted, np.zeros((self.partitions, records), np.int8)], axis=1)
        for partition in range(self.partitions):
            self.topics.skip(TopicPartition(TOPIC, partition), records)

    def work_off(self, *, most_starts: int = 100) -> None:
        while not self._live():
            assert self.engines < most_starts, "never done"

    def _live(self) -> bool:
        """One engine, until it is done (True), has failed or dies."""
        engine = self._engine()
        engine.start()
        for batch_id in range(10_000):
            if self._is_done(engine):
                return True
            try:
                self._run(engine, batch_id)
            except Death:
                self.deaths += 1
                self.time_ms += LOCK_MS
                return False
            except HandlerError:
                self.faults += 1
                engine.run(batch_id + 1, stopping=True)
                return False
        raise AssertionError("never done")

    def _is_done(self, engine: ShareGroupEngine) -> bool:
        """All that producers have written so far is finished."""
        end, summaries = self.accepted.shape[1], engine._summaries
        done = all(summary.start_offset == end for summary in summaries.values())
        return done and len(summaries) == self.partitions and not engine._pending

    def _run(self, engine: ShareGroupEngine, batch_id: int) -> None:
        self.before_micro_batch(self)
        engine.run(batch_id)
        self.searches.append(not engine._search.comes_next)

    def _engine(self) -> ShareGroupEngine:
        """It is fast, and takes all that there is."""
        self.engines += 1
        store = InMemoryShareStateStore(
            log=self.state_log,
            group_id="group",
            run_id=f"run{self.engines}",
        )
        config = GroupConfig.parse(
            {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": self.limit,
                "share.partition.max.record.locks": _NO_LIMIT,
                "share.record.lock.duration.ms": LOCK_MS,
                "max.records.per.trigger": _NO_LIMIT,
            }
        )
        topics = SubscribedTopics(group_id="group", topics=[TOPIC], log=self.topics, clock=self._clock)
        delivery = RangeDelivery(self)
        ports = Ports(
            topics=topics,
            store=store,
            delivery=delivery,
            dead_letters=self.letters,
            clock=self._clock,
            config=lambda: config,
        )
        engine = ShareGroupEngine(ports=ports)
        engine._limits.pace = Pace(records_per_s=10.0 * _NO_LIMIT)
        return engine

    def _clock(self) -> int:
        return self.time_ms

    @property
    def dead(self) -> list[tuple[int, int, int, int]]:
        """(partition, first, last, delivery count) of the dead letters."""
        return [(letter.partition.partition, *letter[1:4]) for letter in self.letters.letters]
