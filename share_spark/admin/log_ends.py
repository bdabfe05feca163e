"""The log ends of a group's topics: asked of Kafka, or read from the files of an embedded topic log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from share_spark.admin.table_files import log_without_spark
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import LogEnds, TopicPartition
from share_spark.topics.record_times import offsets_since, time_at
from share_spark.topics.topic_view import TopicView, view_of


class EndsOfTopics(Protocol):
    """The begin and end offsets of topics."""

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """Return the ends by partition. Raises TopicError, TopicUnreachableError."""
        ...

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """Return, by partition, the first offset that is not older, else the end. Raises as ``log_ends``."""
        ...

    def times_at(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Return, by partition, the timestamp (milliseconds) of the first record at or after its offset; a partition
        without one is left out. Raises as ``log_ends``."""
        ...


def ends_of(kafka: KafkaOptions | None, table: str | None, request_timeout_ms: int) -> EndsOfTopics | None:
    """Return the ends of the cluster or of the topic table; None where neither is known."""
    if kafka is not None:
        return AskedOnce(KafkaTopicLog(kafka, request_timeout_ms=request_timeout_ms))
    return EmbeddedEnds.of(table) if table is not None else None


_MOST_SILENT = 2
"""The number of silent topics, with no other answer, that mean a cluster is down. One topic may just have no leader."""


@dataclass(slots=True)
class AskedOnce:
    """The ends for one look at many groups: where ``ends`` gave no answer in time it is not asked again, so that a
    cluster that is down costs the time limit of a request twice, however many groups and topics there are."""

    ends: EndsOfTopics
    _has_answered: bool = False
    _silent: dict[str, TopicUnreachableError] = field(default_factory=dict)

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """Return the ends; see ``EndsOfTopics``."""
        self._refuse_if_silent(topic)
        try:
            found = self.ends.log_ends(topic)
        except TopicUnreachableError as fault:
            self._silent[topic] = fault
            raise
        self._has_answered = True
        return found

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """Return the offsets; see ``EndsOfTopics``."""
        self._refuse_if_silent(topic)
        return self.ends.offsets_at(topic, timestamp_ms)

    def times_at(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Return the timestamps; see ``EndsOfTopics``."""
        self._refuse_if_silent(topic)
        return self.ends.times_at(topic, offsets)

    def _refuse_if_silent(self, topic: str) -> None:
        fault = self._silent.get(topic)
        if fault is None and len(self._silent) >= _MOST_SILENT and not self._has_answered:
            fault = next(iter(self._silent.values()))
        if fault is not None:
            raise fault


@dataclass(slots=True)
class EmbeddedEnds:
    """The ends of the topics in a topic table, at one version."""

    view: TopicView
    log: TableLog

    @classmethod
    def of(cls, table: str) -> EmbeddedEnds:
        """Return the ends of a table. Raises ConfigError (not a path), TopicError (no topic table)."""
        try:
            log = log_without_spark(Location.parse(table))
            if log is None:
                raise TopicError(f"there is no topic table at {table}")
            return cls(view_of(log, table), log)
        except UnknownTableError as reason:
            raise TopicError(f"topic table {table} cannot be read without Spark: {reason}") from reason

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """Return the ends; see ``EndsOfTopics``."""
        found = self.view.state(topic)
        if found is None:
            raise TopicError(f"topic {topic!r} does not exist")
        return found.ends

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """Return the offsets; see ``EndsOfTopics``."""
        try:
            return offsets_since(self.log, topic, timestamp_ms, self.log_ends(topic))
        except UnknownTableError as reason:
            raise self._unreadable(topic, reason) from reason

    def times_at(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Return the timestamps; see ``EndsOfTopics``."""
        try:
            found = {
                partition: time_at(self.log, TopicPartition(topic, partition), offset)
                for partition, offset in offsets.items()
            }
        except UnknownTableError as reason:
            raise self._unreadable(topic, reason) from reason
        return {partition: at_ms for partition, at_ms in found.items() if at_ms is not None}

    def _unreadable(self, topic: str, reason: UnknownTableError) -> TopicError:
        return TopicError(f"topic {topic!r} cannot be read without Spark: {reason}")
