"""The ports of one engine. Every effect has a point before and after it, at which the world may kill the engine, put it
to sleep, or refuse the effect; and the ledger learns of everything that happens. The delivery is in
``delivery``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from share_spark.coordinator.group import GroupRecord
from share_spark.engine.ports import Claim, TopicDescription
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.engine.topics import SubscribedTopics
from share_spark.model.errors import StateError, TopicUnreachableError
from share_spark.model.ids import LogEnds, SharePartitionKey, TopicPartition
from share_spark.partition import PartitionLimits
from tests.twins.memory import InMemoryShareStateStore, InMemoryTopicLog, Moment, StateCommit

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine


@dataclass(slots=True)
class Clock:
    """The engine's own clock: the true time, and how far it is off. ``decides``: this is the one it decides by."""

    of: SimulatedEngine
    decides: bool = False

    def __call__(self) -> int:
        now = self.of.world.time_ms + self.of.skew_ms
        if self.decides:
            self.of.reads_clock(now)
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

    def stop_waiting(self) -> None:
        """Nobody ever waits."""

    def read(self, *_: object) -> object:
        raise NotImplementedError


class Subscribed(SubscribedTopics):
    """The topics of a group. What they say of the log is what the engine goes by, until they say something else."""

    of: SimulatedEngine

    def of_engine(self, of: SimulatedEngine) -> Subscribed:
        self.of = of
        return self

    def log_ends(self) -> dict[SharePartitionKey, LogEnds]:
        found = super().log_ends()
        names = self.names()
        self.of.looked = {TopicPartition(names[key.topic_id], key.partition): ends for key, ends in found.items()}
        return found


class Store(InMemoryShareStateStore):
    """The state store. An append that fails has happened, has not, or is still under way: then it lands later, unless
    another append takes its place (``World.land_before``)."""

    of: SimulatedEngine

    def of_engine(self, of: SimulatedEngine) -> Store:
        self.of = of
        self.interrupt = self._around_append
        return self

    def claim(self) -> Claim:
        self.of.point("claim", StateError)
        return super().claim()

    def load(self) -> Mapping[SharePartitionKey, PartitionSummary]:
        self.of.point("load", StateError)
        return super().load()

    def advance(
        self,
        partition_inputs: Mapping[SharePartitionKey, PartitionInput],
        *,
        limits: PartitionLimits,
        batch_id: int,
        now_ms: int,
        group_records: Sequence[GroupRecord] = (),
    ) -> Sequence[PartitionOutcome]:
        self.of.point("decide", StateError)
        self.of.decides(now_ms, partition_inputs)
        outcomes = super().advance(
            partition_inputs, limits=limits, batch_id=batch_id, now_ms=now_ms, group_records=group_records
        )
        self.of.has_decided(partition_inputs, outcomes)
        return outcomes

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
        of.world.land_before()
        if of.world.delays():
            of.note("append is slow to land:", commit.kind, commit.batch_id)
            of.world.late = of, commit, of.decided
            of.faulted, of.has_asked = True, False
            raise OSError("timed out")

    def _look_on(self) -> list[StateCommit]:
        self.of.looked_at = self.log.version
        return super()._look_on()
