"""The names of things in share-group state: keys (R70), stamps of micro-batches, and ranges of offsets.

Ranges are inclusive on both ends everywhere (R165); an end offset on its own is exclusive, and documented so.
"""

from __future__ import annotations

from typing import NamedTuple

from share_spark.model.errors import ConfigError


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
        """Return the coordinator key text, ``group:topicId:partition`` (R71)."""
        return f"{self.group_id}:{self.topic_id}:{self.partition}"


class TopicPartition(NamedTuple):
    """A partition of a topic, by the topic's name: the key of topic logs."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_BATCH_BITS = 32


class BatchStamp(NamedTuple):
    """A micro-batch of an engine: later ones compare greater, whatever engine ran them."""

    writer_epoch: int
    batch_id: int

    @property
    def number(self) -> int:
        """One number that only grows: Delta's ``txnVersion``. A claim has the number before its first one."""
        return (self.writer_epoch << _BATCH_BITS) + self.batch_id + 1

    @classmethod
    def of_number(cls, number: int) -> BatchStamp:
        """Undo ``number``."""
        return cls(number >> _BATCH_BITS, (number & ((1 << _BATCH_BITS) - 1)) - 1)


NO_STAMP = BatchStamp(0, -1)
"""The stamp before any micro-batch of any engine."""


class OffsetRange(NamedTuple):
    """Offsets ``first`` to ``last``, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """The number of offsets. Not ``len``: that counts the fields of a tuple, and ``_replace`` depends on it."""
        return self.last - self.first + 1

    def __bool__(self) -> bool:
        return self.last >= self.first


class LogEnds(NamedTuple):
    """The begin and the end of the log of a topic-partition, read once per micro-batch.

    ``end_offset`` is exclusive: the high watermark, or the last stable offset for ``read_committed`` (R23, R45).
    ``high_watermark``: given where it can differ from that.
    """

    log_start_offset: int
    end_offset: int
    high_watermark: int | None = None

    def unfinished(self, start_offset: int, finished: int) -> int:
        """Return the lag of a share-partition: the offsets from its SPSO on, less the finished ones of its window.

        0 while it has no SPSO.
        """
        if start_offset < 0:
            return 0
        return max(0, self.end_offset - max(start_offset, self.log_start_offset) - finished)

    @property
    def log_end(self) -> int:
        """The end of the log itself, exclusive, however much of it may be read yet. Never below its start: the three
        are not read in one instant."""
        return max(self.log_start_offset, self.end_offset, self.high_watermark or 0)


_CLIENT = "kafka-"


def client_owner(member_id: str) -> str:
    """Return the name under which a client of Kafka's protocol holds records, by the id that it has given itself. An
    engine holds them under another name, so what a lock that runs out means can be seen from its owner."""
    return f"{_CLIENT}{member_id}"


def is_client(owner: str) -> bool:
    """Return whether a client of Kafka's protocol holds records under this name, and not an engine for its handlers."""
    return owner.startswith(_CLIENT)


def check_group_id(group_id: str) -> None:
    """Refuse an id that names nothing, or that no file and no message can hold. Raises ConfigError."""
    if not group_id.strip():
        raise ConfigError("group id is empty")
    try:
        group_id.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"group id {group_id!a} is no text: it has half of a character") from None
