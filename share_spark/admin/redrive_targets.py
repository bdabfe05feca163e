"""The targets of redriven letters: the topics of a Kafka cluster, or those of a topic table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from share_spark.admin.log_ends import ends_of
from share_spark.admin.redrive import Sent
from share_spark.admin.redriven_record import RedrivenRecord
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.errors import ConfigError, TopicError
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT_LOG = logging.getLogger(f"{__name__}.librdkafka")
_CLIENT_LOG.setLevel(logging.CRITICAL)
"""The log of the client, silent: we report a record's error once."""

_LARGEST_MESSAGE = "1000000000"
"""The limit of librdkafka. Its default would refuse records that the topic has taken; the broker's limit counts."""

_ANY_PARTITION = -1

_OF_ONE_RECORD = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD))
"""The errors of a single record. A broker then refuses all of the same request: they are sent once more, one by one."""


@dataclass(slots=True)
class KafkaTopics:
    """A RedriveTarget. ``request_timeout_ms``: the time after which a record counts as not sent."""

    options: KafkaOptions
    request_timeout_ms: int = 30_000
    _producer: Producer | None = field(default=None, repr=False)

    @classmethod
    def of(cls, bootstrap_servers: str, options: Mapping[str, str] | None = None) -> KafkaTopics:
        """Return a target. ``options``: settings of Kafka's client by their names there. Raises ConfigError."""
        return cls(KafkaOptions.parse({**(options or {}), "bootstrap.servers": bootstrap_servers}))

    def partitions(self, topic: str) -> Collection[int]:
        """Return the partitions; see ``RedriveTarget``."""
        return KafkaTopicLog(self.options, request_timeout_ms=self.request_timeout_ms).describe(topic).partitions

    def send(self, records: Sequence[RedrivenRecord]) -> Sent:
        """Send the records; see ``RedriveTarget``."""
        fates = self._fates(records, range(len(records)))
        refused = [at for at, error in fates.items() if error is not None and error.code() in _OF_ONE_RECORD]
        for at in refused if len(refused) > 1 else ():
            fates |= self._fates(records, [at])
        delivered = [at for at, error in sorted(fates.items()) if error is None]
        if len(delivered) == len(records):
            return Sent(delivered)
        errors = [error.str() for error in fates.values() if error is not None]
        return Sent(delivered, self.options.without_secrets(errors[0] if errors else "no answer in time"))

    def _fates(self, records: Sequence[RedrivenRecord], places: Iterable[int]) -> dict[int, KafkaError | None]:
        """Return the error by place, None for a record in its topic. Unknown outcomes are left out."""
        producer = self._producer = self._producer or self._connected()
        fates: dict[int, KafkaError | None] = {}
        for at in places:
            try:
                _produce(producer, records[at], partial(_note, fates, at))
            except KafkaException as fault:
                fates[at] = fault.args[0]
        producer.flush(self.request_timeout_ms / 1_000 + 1)
        return dict(fates)

    def _connected(self) -> Producer:
        """Return a producer that partitions as Java's does, in order, and writes each record once during its life."""
        config: dict[str, Any] = {
            **self.options.librdkafka(),
            "enable.idempotence": True,
            "message.max.bytes": _LARGEST_MESSAGE,
            "message.timeout.ms": self.request_timeout_ms,
            "partitioner": "murmur2_random",
        }
        try:
            return Producer(config, logger=_CLIENT_LOG)
        except KafkaException as fault:
            raise ConfigError(f"Kafka options: {self.options.without_secrets(fault.args[0].str())}") from None


def _produce(producer: Producer, record: RedrivenRecord, note: Callable[..., None]) -> None:
    partition = _ANY_PARTITION if record.partition is None else record.partition
    headers: list[tuple[str, str | bytes | None]] = list(record.headers)
    producer.produce(record.topic, record.value, record.key, partition, on_delivery=note, headers=headers)


def _note(fates: dict[int, KafkaError | None], at: int, error: KafkaError | None, _message: object) -> None:
    fates[at] = error


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
