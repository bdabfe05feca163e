"""The ports of one engine. Every effect has a point before and after it, at which the world may kill the engine, put it
to sleep, or refuse the effect; and everything that happens is told to the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from share_spark.engine.memory import InMemoryShareStateStore, InMemoryTopicLog, Moment, StateCommit
from share_spark.engine.ports import AcknowledgedSpan, AcquiredSpan, TopicDescription
from share_spark.engine.step import LOST, Control, Front, Outcome
from share_spark.model.errors import HandlerError, StateError, TopicUnreachableError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.offsets import LogEnds
from tests.simulation.ledger import ACCEPT, REJECT, RELEASE, At, Said
from tests.simulation.processes import Death

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine

WORKER_LOST = Said(LOST, "worker lost")


class WorkerDeath(Exception):  # noqa: N818 - what happens to the worker
    """The record has killed the worker that handles it."""


@dataclass(slots=True)
class Clock:
    """The engine's own clock: the true time, and how far it is off. ``decides``: this is the one it decides by."""

    of: SimulatedEngine
    decides: bool = False

    def __call__(self) -> int:
        now = self.of.world.time_ms + self.of.skew_ms
        if self.decides:
            self.of.clock_ms = max(self.of.clock_ms, now)
        return now


@dataclass(slots=True)
class Topics:
    """The topic log, which may be out of reach."""

    of: SimulatedEngine
    log: InMemoryTopicLog

    def describe(self, topic: str) -> TopicDescription:
        self.of.point("describe", TopicUnreachableError)
        return self.log.describe(topic)

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        self.of.point("log ends", TopicUnreachableError)
        found = self.log.log_ends(topic)
        for partition, ends in found.items():
            self.of.ends.setdefault(TopicPartition(topic, partition), set()).add(ends)
        return found

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        self.of.point("offsets at a time", TopicUnreachableError)
        return self.log.offsets_at(topic, timestamp_ms)

    def read(self, *_: object) -> object:
        raise NotImplementedError


class Store(InMemoryShareStateStore):
    """The state store. An append that fails has happened, has not, or is still under way: then it lands later, unless
    another append takes its place (``World.land_before``)."""

    of: SimulatedEngine

    def told(self, of: SimulatedEngine) -> Store:
        self.of = of
        self.interrupt = self._around_append
        return self

    def claim(self) -> int:
        self.of.point("claim", StateError)
        return super().claim()

    def load(self) -> Mapping[SharePartitionKey, Front]:
        self.of.point("load", StateError)
        return super().load()

    def advance(
        self, controls: Mapping[SharePartitionKey, Control], *, batch_id: int, now_ms: int
    ) -> Sequence[Outcome]:
        self.of.point("decide", StateError)
        self.of.decides(now_ms, controls)
        return super().advance(controls, batch_id=batch_id, now_ms=now_ms)

    def was_committed(self, batch_id: int) -> bool:
        for _ in range(5):  # appends fail seldom; what comes after one is to be played often
            self.of.point("ask the log", StateError)
        self.of.has_asked = True
        return super().was_committed(batch_id)

    def _around_append(self, moment: Moment, commit: StateCommit) -> None:
        of = self.of
        if moment is Moment.AFTER_APPEND:
            of.world.appended(of, commit, of.decided)
            of.point(f"after append of {commit.kind}", OSError)
            return
        of.point(f"before append of {commit.kind}", OSError)
        of.world.land_before(commit)
        if of.world.delays():
            of.note("append is slow to land:", commit.kind, commit.batch_id)
            of.world.late = of, commit, of.decided
            of.faulted, of.has_asked = True, False
            raise OSError("timed out")

    def _look_on(self) -> list[StateCommit]:
        self.of.looked_at = self.log.version
        return super()._look_on()


@dataclass(slots=True)
class Delivery:
    """Some workers share out what was acquired; each handles its part in order. One that dies has lost its part."""

    of: SimulatedEngine

    def died_in_handler(self) -> frozenset[str]:
        self.of.marks = frozenset(self.of.world.marks)
        return self.of.marks

    def deliver(self, acquired: Sequence[AcquiredSpan], *, alone: bool = False) -> Sequence[AcknowledgedSpan]:
        of = self.of
        of.must_own("deliver")
        of.charged = True
        of.point("before delivery", HandlerError)
        said: dict[At, Said] = {}
        for part in self._parts(acquired):
            self._work(part, said, alone=alone)
        of.world.marks.discard(of.store.member_id)
        of.point("after delivery", HandlerError)
        of.answers = {one: (of.held[one], answer) for one, answer in said.items()}
        spans = [_span(one.partition, said) for one in acquired]
        of.world.rng.shuffle(spans)
        return spans

    def _parts(self, acquired: Sequence[AcquiredSpan]) -> Iterator[list[tuple[At, int]]]:
        rng = self.of.world.rng
        everything = [
            ((one.partition, offset), count)
            for one in acquired
            for first, last, count in sorted(one.ranges.tolist())
            for offset in range(first, last + 1)
        ]
        size = -(-len(everything) // rng.randint(1, 4))
        return (everything[at : at + size] for at in range(0, len(everything), size))

    def _work(self, part: list[tuple[At, int]], said: dict[At, Said], *, alone: bool) -> None:
        of = self.of
        dies_at = of.world.worker_dies(len(part))
        for index, (one, count) in enumerate(part):
            of.point("between two records", None, rare=len(part))
            try:
                if index == dies_at:
                    raise WorkerDeath
                if of.world.record(one) is not None:
                    if alone:
                        of.world.marks.add(of.store.member_id)
                    said[one] = self._handle(one, count, rare=len(part))
                else:
                    said[one] = Said(0, None)
            except WorkerDeath:
                of.note("worker lost at", *one, "with", len(part), "records")
                said.update((lost, WORKER_LOST) for lost, _ in part)
                return

    def _handle(self, one: At, count: int, *, rare: int) -> Said:
        self.of.calls(one, count)
        self.of.point("in the handler", None, rare=rare)
        kind, times = self.of.world.behaviours[one]
        if count > times or kind == "accept":
            return Said(ACCEPT, None)
        if kind == "kill worker":
            raise WorkerDeath
        if kind == "kill engine":
            self.of.note("killed by", *one)
            raise Death
        text = f"{kind} {count} of {one[1]}"
        return Said(REJECT if kind == "reject" else RELEASE, text)


def _span(at: TopicPartition, said: Mapping[At, Said]) -> AcknowledgedSpan:
    """As the port promises it: ascending runs of one type; offsets without a record are left out."""
    rows = sorted((one[1], answer) for one, answer in said.items() if one[0] == at and answer.kind != 0)
    ranges = np.array([(offset, offset, answer.kind) for offset, answer in rows], np.int64).reshape(-1, 3)
    return AcknowledgedSpan(at, ranges, [(offset, offset, answer.error) for offset, answer in rows if answer.error])
