"""The topics that a gateway serves: of a Kafka cluster, or of a Delta table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from share_spark.delta.location import Location
from share_spark.engine.batch_reader import BatchReader
from share_spark.engine.ports import TopicLog
from share_spark.gateway.topic_catalog import ListedTopicLog
from share_spark.kafka.batch_reader import KafkaBatchReader
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.config import GroupConfig
from share_spark.spark.on_demand import AnySpark
from share_spark.topics.topic_batches import TopicBatchReader
from share_spark.topics.topic_table import EmbeddedTopicLog


class ServedTopicLog(TopicLog, ListedTopicLog, Protocol):
    """A topic log of engines that can tell which topics it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """The place of topics, and the reader of their records. ``kafka``: the servers of the cluster, or ``table``: the
    directory of the table."""

    log: ServedTopicLog
    reader: BatchReader
    kafka: str | None = None
    table: str | None = None

    @classmethod
    def of_cluster(cls, options: KafkaOptions, config: GroupConfig) -> TopicSource:
        """Return the topics of a cluster. All groups have one isolation level. Raises ConfigError."""
        leveled = options.with_isolation_level(config.isolation_level)
        return cls(
            log=KafkaTopicLog(leveled, request_timeout_ms=config.request_timeout_ms),
            reader=KafkaBatchReader(leveled, config.request_timeout_ms),
            kafka=options.bootstrap_servers,
        )

    @classmethod
    def of_table(cls, spark: AnySpark, table: Location) -> TopicSource:
        """Return the topics of a table."""
        log = EmbeddedTopicLog(spark, table)
        return cls(log=log, reader=TopicBatchReader(log), table=str(table))
