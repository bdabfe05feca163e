"""Records of a topic log as record batches in Kafka's format, for clients of its protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from share_spark.model.ids import TopicPartition

BATCH_RECORDS = 500
"""The records that a client of Kafka wants at a time by default."""


class RecordBatch(NamedTuple):
    """A record batch. ``last_offset``: inclusive, and of its last record. ``is_aborted``: it has only control records,
    or those of an aborted transaction, which clients by their isolation level do not get."""

    base_offset: int
    last_offset: int
    content: bytes
    is_aborted: bool = False


class BatchReader(Protocol):
    """Reads record batches of a topic log. Its calls may wait; from any thread."""

    def read(
        self, at: TopicPartition, offset: int, most_bytes: int, batch_records: int = BATCH_RECORDS
    ) -> Sequence[RecordBatch]:
        """Return batches from the one that holds ``offset`` on, ascending, as far as the log may be read, until they
        have ``most_bytes``; nothing at the end of the log. Between two of them there is no record. ``batch_records``:
        the most records of a batch, of a log that has rows and no batches. Raises TopicError, TopicUnreachableError."""
        ...
