"""The limits a share-partition is run under; an argument of ``decide``, never part of the state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """Defaults of Kafka 4.2.

    ``max_delivery_count``: attempts per record (R6). ``max_record_locks``: width of the in-flight window in offsets,
    SPSO to end, final ones included (R37). ``delivery_throttling``: often-delivered records come back in ever
    smaller parts, the last attempt alone, as Kafka 4.2 does (KAFKA-17541); without it they come back like any other.
    """

    max_delivery_count: int = 5
    max_record_locks: int = 2_000
    lock_duration_ms: int = 30_000
    delivery_throttling: bool = False

    def __post_init__(self) -> None:
        assert self.max_delivery_count >= 1, self.max_delivery_count
        assert self.max_record_locks >= 1, self.max_record_locks
        assert self.lock_duration_ms >= 1, self.lock_duration_ms
