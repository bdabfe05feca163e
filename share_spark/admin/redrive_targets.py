"""The targets of redriven letters: the topics of a Kafka cluster, or those of a topic table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from share_spark.admin.log_ends import ends_of
from share_spark.admin.redrive import Sent
from share_spark.admin.redriven_record import RedrivenRecord
from share_spark.kafka.message_sender import KafkaMessage, MessageSender
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.errors import TopicError
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class KafkaTopics:
    """A RedriveTarget. ``request_timeout_ms``: the time after which a record counts as not sent."""

    options: KafkaOptions
    request_timeout_ms: int = 30_000
    _sender: MessageSender | None = field(default=None, repr=False)

    @classmethod
    def of(cls, bootstrap_servers: str, options: Mapping[str, str] | None = None) -> KafkaTopics:
        """Return a target. ``options``: settings of Kafka's client by their names there. Raises ConfigError."""
        return cls(KafkaOptions.parse({**(options or {}), "bootstrap.servers": bootstrap_servers}))

    def partitions(self, topic: str) -> Collection[int]:
        """Return the partitions; see ``RedriveTarget``."""
        return KafkaTopicLog(self.options, request_timeout_ms=self.request_timeout_ms).describe(topic).partitions

    def send(self, records: Sequence[RedrivenRecord]) -> Sent:
        """Send the records; see ``RedriveTarget``."""
        self._sender = self._sender or MessageSender(self.options, self.request_timeout_ms)
        messages = [KafkaMessage(one.topic, one.partition, one.key, one.value, one.headers) for one in records]
        found = self._sender.send(messages)
        return Sent(found.delivered, next(iter(found.refused.values()), found.fault))


@dataclass(slots=True)
class TableTopics:
    """A RedriveTarget: the topics of a topic table. ``spark`` is needed for a name of the catalog, for a storage
    that is not of this machine, and for tables to which only Spark can append."""

    table: str
    spark: SparkSession | None = None
    _log: EmbeddedTopicLog | None = field(default=None, repr=False)

    def partitions(self, topic: str) -> Collection[int]:
        """Return the partitions; see ``RedriveTarget``."""
        if self.spark is not None:
            return self._opened().describe(topic).partitions
        ends = ends_of(None, self.table, 0)  # makes no table
        assert ends is not None
        return list(ends.log_ends(topic))

    def send(self, records: Sequence[RedrivenRecord]) -> Sent:
        """Send the records; see ``RedriveTarget``. One append per topic."""
        by_topic: dict[str, list[int]] = {}
        for at, record in enumerate(records):
            by_topic.setdefault(record.topic, []).append(at)
        delivered: list[int] = []
        for topic, places in by_topic.items():
            try:
                self._opened().append(topic, [_message_of(records[at]) for at in places])
            except TopicError as fault:
                return Sent(sorted(delivered), str(fault))
            delivered += places
        return Sent(sorted(delivered))

    def _opened(self) -> EmbeddedTopicLog:
        self._log = self._log or EmbeddedTopicLog(self.spark, self.table)
        return self._log


def _message_of(record: RedrivenRecord) -> Message:
    return Message(record.value, record.key, record.partition, headers=record.headers)
