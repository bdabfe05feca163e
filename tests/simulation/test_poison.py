"""Many records in one range, and crashes: one that a record causes each time, and some that none has caused.

The handler is called range by range, so that a hundred thousand records take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from share_spark.engine.memory import InMemoryShareStateStore, InMemoryStateLog, InMemoryTopicLog, MemoryRecord
from share_spark.engine.memory_output import InMemoryDeadLetters
from share_spark.engine.micro_batch import Ports, ShareGroupEngine
from share_spark.engine.ports import AcknowledgedSpan, AcquiredSpan
from share_spark.engine.step import LOST
from share_spark.engine.topics import SubscribedTopics
from share_spark.model.config import GroupConfig
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType
from share_spark.partition import PartitionLimits
from tests.simulation.processes import Death

RECORDS = 100_000
AT = TopicPartition("orders", 0)
LOCK_MS = 30_000

Strike = Callable[[str, int, int], bool]
"""(moment, first, last): does this range take the engine down now? Moments: before, inside, after the handler."""


@dataclass(slots=True)
class RangeDelivery:
    """Accepts everything. ``accepted``: how often, per offset. ``kills_worker``: a strike costs the worker only."""

    member_id: str
    strike: Strike
    marks: set[str]
    accepted: np.ndarray[tuple[int], np.dtype[np.int8]]
    kills_worker: bool = False

    def died_in_handler(self) -> frozenset[str]:
        return frozenset(self.marks)

    def deliver(self, acquired: Sequence[AcquiredSpan], *, alone: bool = False) -> Sequence[AcknowledgedSpan]:
        (span,) = acquired
        first, last = int(span.ranges[0, 0]), int(span.ranges[-1, 1])
        struck = self._happens("before", first, last)
        if alone:
            self.marks.add(self.member_id)
        struck = struck or self._happens("inside", first, last)
        self.marks.discard(self.member_id)
        struck = struck or self._happens("after", first, last)
        answers = span.ranges.copy()
        answers[:, 2] = LOST if struck else AcknowledgeType.ACCEPT
        if not struck:
            for low, high, _ in answers.tolist():
                self.accepted[low : high + 1] += 1
        return [AcknowledgedSpan(span.partition, answers, ())]

    def _happens(self, moment: str, first: int, last: int) -> bool:
        if not self.strike(moment, first, last):
            return False
        if self.kills_worker:
            return True
        raise Death


@dataclass(slots=True)
class Group:
    """One group whose engines die and are started again, until everything is finished."""

    limit: int
    strike: Strike
    records: int = RECORDS
    kills_worker: bool = False
    time_ms: int = 0
    engines: int = 0
    micro_batches: int = 0
    state_log: InMemoryStateLog = field(default_factory=InMemoryStateLog)
    letters: InMemoryDeadLetters = field(default_factory=InMemoryDeadLetters)
    topics: InMemoryTopicLog = field(default_factory=InMemoryTopicLog)
    marks: set[str] = field(default_factory=set)
    accepted: np.ndarray[tuple[int], np.dtype[np.int8]] = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = np.zeros(self.records, np.int8)
        self.topics.create_topic(AT.topic)
        self.topics.append(AT, [MemoryRecord(0)] * self.records)

    def work_off(self) -> None:
        while not self._live():
            self.time_ms += LOCK_MS

    def _live(self) -> bool:
        """One engine, until it is done (True) or dies."""
        engine = self._engine()
        try:
            engine.start()
            for batch_id in range(self.records + 100):
                if engine.done:
                    return True
                engine.run(batch_id)
                self.micro_batches += 1
        except Death:
            return False
        raise AssertionError("never done")

    def _engine(self) -> ShareGroupEngine:
        self.engines += 1
        run_id = f"run{self.engines}"
        config = GroupConfig.parse(
            {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": self.limit,
                "share.partition.max.record.locks": 10**6,
                "share.record.lock.duration.ms": LOCK_MS,
            }
        )
        limits = PartitionLimits(max_delivery_count=self.limit, max_record_locks=10**6, lock_duration_ms=LOCK_MS)
        store = InMemoryShareStateStore(log=self.state_log, group_id="group", run_id=run_id, limits=limits)
        delivery = RangeDelivery(store.member_id, self.strike, self.marks, self.accepted, self.kills_worker)
        clock = self._clock
        topics = SubscribedTopics(
            group_id="group", topics=[AT.topic], log=self.topics, reset=config.offset_reset, clock=clock
        )
        ports = Ports(topics=topics, store=store, delivery=delivery, dead_letters=self.letters, clock=clock)
        return ShareGroupEngine(config=config, ports=ports, available_now=True)

    def _clock(self) -> int:
        return self.time_ms

    @property
    def dead(self) -> list[tuple[int, int, int]]:
        """(first, last, delivery count) of the dead letters."""
        return [letter[1:4] for letter in self.letters.letters]


def poison(offset: int) -> Strike:
    """Kills whoever handles it, each time."""
    return lambda moment, first, last: moment == "inside" and first <= offset <= last


def strikes(at: str, times: int) -> Strike:
    """The first ``times`` deliveries end so, for no fault of a record."""
    left = [times]

    def strike(moment: str, _first: int, _last: int) -> bool:
        left[0] -= moment == at
        return moment == at and left[0] >= 0

    return strike


def dies_alone(group: Group, offset: int) -> None:
    """It is the only dead letter, and all others were accepted, once."""
    group.work_off()
    assert [(first, last) for first, last, _ in group.dead] == [(offset, offset)]
    assert group.accepted[offset] == 0
    assert (np.delete(group.accepted, offset) == 1).all()


@pytest.mark.parametrize("kills_worker", [False, True])
@pytest.mark.parametrize("offset", [0, 61_803, RECORDS - 1])
@pytest.mark.parametrize("limit", [3, 5])
def test_a_poison_record_dies_alone(limit: int, offset: int, kills_worker: bool) -> None:
    group = Group(limit, poison(offset), kills_worker=kills_worker)
    dies_alone(group, offset)
    assert group.micro_batches < 1_000


@pytest.mark.slow
def test_a_poison_record_dies_alone_at_the_smallest_limit() -> None:
    """One attempt is left after the first, so each of the others must run alone as well: a micro-batch per record."""
    dies_alone(Group(2, poison(61_803)), 61_803)


@pytest.mark.parametrize("kills_worker", [False, True])
@pytest.mark.parametrize("offset", [0, 618, 999])
def test_a_poison_record_among_a_thousand(offset: int, kills_worker: bool) -> None:
    dies_alone(Group(2, poison(offset), 1_000, kills_worker), offset)


def nothing_is_archived(group: Group) -> None:
    group.work_off()
    assert group.engines == 11
    assert group.dead == []
    assert (group.accepted >= 1).all()


@pytest.mark.parametrize("moment", ["before", "inside", "after"])
@pytest.mark.parametrize("limit", [3, 5])
def test_ten_crashes_that_no_record_caused_archive_nothing(limit: int, moment: str) -> None:
    nothing_is_archived(Group(limit, strikes(moment, 10)))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ten_crashes_at_the_smallest_limit_archive_nothing(moment: str) -> None:
    """Records run alone from the second crash on; what tells is that their engines did not die inside the handler."""
    nothing_is_archived(Group(2, strikes(moment, 10), 1_000))
