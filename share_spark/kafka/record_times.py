"""Timestamps of records, one per partition. Nothing joins a group or commits."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import ConfigError, TopicUnreachableError

_SETTINGS = {
    "group.id": "share-spark-look",  # required by the client; it is never joined
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    # One batch of records of each partition is enough. With less than a batch the client asks again and again, with
    # pauses: 50 partitions took longer than 20 s, and take 0.1 s with the client's own limit of 1 MB.
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 10,
}


def times_at(options: KafkaOptions, topic: str, offsets: Mapping[int, int], timeout_ms: int) -> dict[int, int]:
    """Return by partition the timestamp (milliseconds) of the first record at or after its offset; a partition without
    one is left out. Raises ConfigError, TopicUnreachableError (no answer within ``timeout_ms``)."""
    if not offsets:
        return {}
    try:
        consumer = Consumer({**options.librdkafka(), **_SETTINGS})
    except KafkaException as fault:
        raise ConfigError(f"Kafka options: {options.without_secrets(fault.args[0].str())}") from None
    try:
        return _found(consumer, options, topic, offsets, time.monotonic() + timeout_ms / 1_000)
    finally:
        consumer.close()


def _found(
    consumer: Consumer, options: KafkaOptions, topic: str, offsets: Mapping[int, int], deadline: float
) -> dict[int, int]:
    found: dict[int, int] = {}
    waiting = set(offsets)
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
    while waiting:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        if message is None:
            raise TopicUnreachableError(f"Kafka at {options.bootstrap_servers} gave no record of {topic!r} in time")
        error, partition = message.error(), message.partition()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise TopicUnreachableError(f"topic {topic!r}: {options.without_secrets(error.str())}")
        if partition not in waiting:
            continue
        waiting.discard(partition)
        consumer.incremental_unassign([TopicPartition(topic, partition)])
        if error is None:
            found[partition] = message.timestamp()[1]
    return found
