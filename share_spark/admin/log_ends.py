"""How far the topics of a group go: asked of Kafka, or read from the files of an embedded topic log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from share_spark.admin.table_files import log_without_spark
from share_spark.delta.location import Location
from share_spark.delta.table_log import UnknownTableError
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.errors import ConfigError, TopicError
from share_spark.model.ids import LogEnds
from share_spark.topics.topic_view import TopicView, view_of


class EndsOfTopics(Protocol):
    """Where the logs of topics begin and end."""

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """By partition. Raises TopicError, TopicUnreachableError."""
        ...

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """By partition, the first offset that is not older, else the end. Raises as ``log_ends``, and ConfigError where
        only Spark can say."""
        ...


def ends_of(kafka: KafkaOptions | None, table: str | None, request_timeout_ms: int) -> EndsOfTopics | None:
    """Of the cluster or of the topic table; None where neither is known."""
    if kafka is not None:
        return KafkaTopicLog(kafka, request_timeout_ms=request_timeout_ms)
    return EmbeddedEnds.of(table) if table is not None else None


@dataclass(slots=True)
class EmbeddedEnds:
    """Of the topics in a topic table, as of one version."""

    view: TopicView

    @classmethod
    def of(cls, table: str) -> EmbeddedEnds:
        """Raises ConfigError (not a path), TopicError (no topic table)."""
        try:
            log = log_without_spark(Location.parse(table))
            if log is None:
                raise TopicError(f"there is no topic table at {table}")
            return cls(view_of(log, table))
        except UnknownTableError as reason:
            raise TopicError(f"topic table {table} cannot be read without Spark: {reason}") from reason

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """See ``EndsOfTopics``."""
        found = self.view.state(topic)
        if found is None:
            raise TopicError(f"topic {topic!r} does not exist")
        return found.ends

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:  # noqa: ARG002 - Kafka needs it
        """Raises ConfigError."""
        raise ConfigError(f"topic {topic!r} is in a Delta table, where a time is not looked up: give an offset")
