"""Keys: who owns a piece of share-group state (R70)."""

from __future__ import annotations

from typing import NamedTuple


class SharePartitionKey(NamedTuple):
    """(group id, topic id, partition): the key of all share-partition state (R70).

    ``topic_id`` is the topic's UUID as Kafka's Java tools print it (22 characters of base64), or another identity that
    the topic log gives and that changes when the topic is created again. A tuple, because it is hashed and compared in
    every micro-batch.
    """

    group_id: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        """The coordinator key text, ``group:topicId:partition`` (R71)."""
        return f"{self.group_id}:{self.topic_id}:{self.partition}"


class TopicPartition(NamedTuple):
    """A partition of a topic, by the topic's name: the key of topic logs."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_BATCH_BITS = 32


class BatchStamp(NamedTuple):
    """Which micro-batch of which engine: later ones compare greater, whatever engine ran them."""

    writer_epoch: int
    batch_id: int

    @property
    def number(self) -> int:
        """As one number that only grows: Delta's ``txnVersion``. A claim has the number before its first one."""
        return (self.writer_epoch << _BATCH_BITS) + self.batch_id + 1

    @classmethod
    def of_number(cls, number: int) -> BatchStamp:
        """Undo ``number``."""
        return cls(number >> _BATCH_BITS, (number & ((1 << _BATCH_BITS) - 1)) - 1)


NO_STAMP = BatchStamp(0, -1)
"""Before any micro-batch of any engine."""
