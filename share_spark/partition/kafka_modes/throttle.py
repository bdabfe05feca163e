"""The part of a fetched batch that one request may redeliver: the strict record limit, and Kafka 4.2's throttling.

Throttling (KAFKA-17541) isolates a bad record: from half of the delivery limit on a batch comes back in halves,
quarters, ..., and for limits above two the last attempt is one record alone.
"""

from __future__ import annotations

from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.state import FetchedBatch, KafkaLimits, may_be_acquired
from share_spark.partition.runs import pieces


class Allowance:
    """The records left to grant within one fetched batch. ``strict_limit``: records, None if the limit is soft."""

    __slots__ = ("_alone_at", "_batch", "_granted", "_limit", "_quota", "_threshold", "spent")

    def __init__(self, batch: FetchedBatch, limits: KafkaLimits, strict_limit: int | None) -> None:
        throttling, highest = limits.delivery_throttling, limits.max_delivery_count
        self._batch = batch
        self._limit = strict_limit
        self._threshold = max(2, (highest + 1) // 2) if throttling else highest + 1
        self._alone_at = highest - 1 if throttling and highest > 2 else highest + 1
        self._quota: int | None = None
        self._granted = 0
        self.spent = False

    def throttles(self, draft: KafkaDraft, first: int, last: int) -> bool:
        """Return whether the batch holds, in ``first..last``, a record delivered often enough to be throttled."""
        return any(
            run.delivery_count >= self._threshold and may_be_acquired(run, draft.now_ms)
            for run in pieces(draft.runs, first, last)
        )

    def grant(self, size: int, delivery_count: int) -> int:
        """Return how many of the next ``size`` records, delivered ``delivery_count`` times so far, may be taken."""
        if delivery_count >= self._alone_at and self._granted:
            self.spent = True
            return 0
        if delivery_count >= self._threshold and self._quota is None:
            whole = self._batch.last_offset - self._batch.first_offset + 1
            self._quota = max(1, whole >> (delivery_count - self._threshold + 1))
        left = self._left()
        if delivery_count >= self._alone_at:
            left, self.spent = 1, True
        granted = min(size, left)
        self._granted += granted
        if granted == left:
            self.spent = True
        return granted

    def _left(self) -> int:
        """Return what the strict limit and the quota leave. A quota already passed no longer binds, as in Kafka."""
        left = 2**63
        if self._limit is not None:
            left = min(left, self._limit - self._granted)
        if self._quota is not None and self._granted < self._quota:
            left = min(left, self._quota - self._granted)
        return left
