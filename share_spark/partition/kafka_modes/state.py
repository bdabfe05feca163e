"""The state of a share-partition that clients of Kafka read: the durable one, and what an engine remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from share_spark.model.ids import OffsetRange
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.partition import state as core
from share_spark.partition.runs import Runs, holes, is_locked, run_at
from share_spark.partition.state import PartitionLimits, SharePartition


class FetchedBatch(NamedTuple):
    """Offsets that one fetch acquired together; later fetches return them together (Kafka: a cached batch).

    ``by_offset``: its offsets have states of their own since a part of it was acknowledged; it is never joined again.
    """

    first_offset: int
    last_offset: int
    by_offset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaLimits(PartitionLimits):
    """The limits of the core, and ``delivery_throttling``: often-delivered records come back in ever smaller parts, the
    last attempt alone, as Kafka 4.2 does (KAFKA-17541); without it they come back like any other."""

    delivery_throttling: bool = False

    @classmethod
    def beside(cls, limits: PartitionLimits) -> Self:
        """Return the limits of a group as its clients meet them."""
        return cls(
            max_delivery_count=limits.max_delivery_count,
            max_record_locks=limits.max_record_locks,
            lock_duration_ms=limits.lock_duration_ms,
            backoff=limits.backoff,
            delivery_throttling=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPartition:
    """The durable ``state``, and what one engine remembers beside it: a new one begins with ``state`` alone.

    ``fetched`` are sorted and disjoint, and cover all runs if there are any; without them the window counts as one
    batch that is tracked by offset. ``read_gap``: Kafka's durable form does not state whether the holes in these
    offsets were fetched, so after a load they are fetched again (R22); all other holes hold no record. Where ``state``
    has changed otherwise than by ``decide`` of this package, both have to be left out.
    """

    state: SharePartition
    fetched: tuple[FetchedBatch, ...] = ()
    read_gap: OffsetRange | None = None

    @property
    def next_fetch_offset(self) -> int:
        """The offset to read the log from next: the lowest Available one, else the end of the window (R36). Delays are
        left out of account: Kafka has none."""
        return next_fetch_offset(self.state.in_flight, self.state.end_offset, self.read_gap, math.inf)

    def can_acquire(self, limits: PartitionLimits) -> bool:
        """Return whether a fetch may get records: the window may grow, or something inside it is Available (R37)."""
        width = self.state.end_offset - self.state.start_offset
        return width < limits.max_record_locks or self.next_fetch_offset < self.state.end_offset


def active(read_gap: OffsetRange | None, end_offset: int) -> OffsetRange | None:
    """Return ``read_gap`` while it counts: until something past the loaded window is acquired."""
    return read_gap if read_gap is not None and end_offset == read_gap.last + 1 else None


def may_be_acquired(run: InFlightBatch, now_ms: float) -> bool:
    """Return whether ``run`` is Available, and not delayed."""
    return run.delivery_state is DeliveryState.AVAILABLE and not is_locked(run, now_ms)


def next_fetch_offset(runs: Runs, end_offset: int, read_gap: OffsetRange | None, now_ms: float) -> int:
    """Return the first offset that may be acquired, or is an unread hole of the read gap; ``end_offset`` if there is
    none."""
    available = (run.first_offset for run in runs if may_be_acquired(run, now_ms))
    gap = active(read_gap, end_offset)
    hole = next(holes(runs, gap.first, runs[-1].last_offset), None) if gap is not None and runs else None
    return min(next(available, end_offset), end_offset if hole is None else hole[0])


def is_split(runs: Runs, batch: FetchedBatch) -> bool:
    """Return whether the last offset of ``batch`` is in a run that does not hold all of it."""
    run = run_at(runs, batch.last_offset)
    return run is not None and run.first_offset > batch.first_offset


def check_invariants(partition: KafkaPartition) -> None:
    """Raise AssertionError if ``partition`` is one that no sequence of requests may lead to."""
    core.check_invariants(partition.state)
    for batch in partition.fetched:
        assert batch.first_offset <= batch.last_offset, batch
    for one, other in pairwise(partition.fetched):
        assert one.last_offset < other.first_offset, ("fetched batches overlap", one, other)
    for run in partition.state.in_flight if partition.fetched else ():
        outside = list(holes(partition.fetched, run.first_offset, run.last_offset))
        assert not outside, ("run outside of fetched batches", run)
