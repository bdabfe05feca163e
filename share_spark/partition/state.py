"""The state of a share-partition as a value, the questions it answers, and its invariants; the limits it runs under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from share_spark.model.config import BackoffPolicy, GroupConfig
from share_spark.model.ids import OffsetRange, SharePartitionKey
from share_spark.model.records import UNINITIALIZED_START_OFFSET, DeliveryState, Doubt, FetchedBatch, InFlightBatch
from share_spark.partition.backoff import NO_BACKOFF, Backoff
from share_spark.partition.columns import in_best_form
from share_spark.partition.runs import offsets_by_kind, samples

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """The limits a share-partition is run under; an argument of ``decide``, never part of the state. The defaults are
    those of Kafka 4.2.

    ``max_delivery_count``: attempts per record (R6). ``max_record_locks``: width of the in-flight window in offsets,
    SPSO to end, final ones included (R37). ``delivery_throttling``: often-delivered records come back in ever
    smaller parts, the last attempt alone, as Kafka 4.2 does (KAFKA-17541); without it they come back like any other.
    ``backoff``: of released records whose member asks for no delay; Kafka has none.
    """

    max_delivery_count: int = 5
    max_record_locks: int = 2_000
    lock_duration_ms: int = 30_000
    delivery_throttling: bool = False
    backoff: Backoff = NO_BACKOFF

    def __post_init__(self) -> None:
        assert self.max_delivery_count >= 1, self.max_delivery_count
        assert self.max_record_locks >= 1, self.max_record_locks
        assert self.lock_duration_ms >= 1, self.lock_duration_ms

    @classmethod
    def of(cls, config: GroupConfig) -> Self:
        """Those of a group that the Spark-native engine runs."""
        return cls(
            max_delivery_count=config.max_delivery_count,
            max_record_locks=config.max_record_locks,
            lock_duration_ms=config.lock_duration_ms,
            backoff=Backoff(
                policy=BackoffPolicy(config.backoff_policy),
                delay_ms=config.backoff_ms,
                max_delay_ms=config.backoff_max_ms,
                jitter=config.backoff_jitter,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartition:
    """One topic-partition as one group sees it.

    ``start_offset`` is the SPSO, -1 until chosen (R26). ``in_flight`` are the runs of the window, sorted, disjoint
    and canonical, in the form that ``window_form`` chooses; below the SPSO there are only Acquired ones, left behind by
    a move of the log start (R25), and they hold up the SPSO. Offsets of the window without a run hold no record, except
    those inside ``read_gap``: Kafka's durable form does not state whether they were fetched, so after a load they are
    fetched again (R22).

    ``fetched`` are Kafka's cached batches, sorted and disjoint: which offsets one fetch acquired together. Empty
    while no member acquires in a Kafka mode; the window then counts as one batch tracked by offset.
    """

    key: SharePartitionKey
    state_epoch: int = 0
    leader_epoch: int = 0
    snapshot_epoch: int = -1
    start_offset: int = UNINITIALIZED_START_OFFSET
    in_flight: Sequence[InFlightBatch] = ()
    fetched: tuple[FetchedBatch, ...] = ()
    read_gap: OffsetRange | None = None

    @property
    def end_offset(self) -> int:
        """The SPEO, exclusive: the first offset never acquired yet."""
        if not self.in_flight:
            return self.start_offset
        return max(self.start_offset, self.in_flight[-1].last_offset + 1)

    @property
    def active_read_gap(self) -> OffsetRange | None:
        """``read_gap`` while it counts: until something past the loaded window is acquired."""
        gap = self.read_gap
        return gap if gap is not None and self.end_offset == gap.last + 1 else None


def window_form(
    runs: Sequence[InFlightBatch], fetched: Sequence[FetchedBatch], read_gap: OffsetRange | None
) -> Sequence[InFlightBatch]:
    """The form of the runs of a window. With batches or a gap to go by, the code goes from run to run: tuples."""
    return tuple(runs) if fetched or read_gap is not None else in_best_form(runs)


def available_ranges(state: SharePartition) -> Iterator[tuple[int, int, int]]:
    """(first, last, delivery count) of what a fetch inside the window can give, ascending.

    in flight   [V1--]      [A1---]    [V2--]
    read gap          |---------------------|
    yielded     [V1--][ 0  ]       [ 0][V2--]     holes inside the read gap have count 0
    """
    gap = state.active_read_gap
    hole = state.end_offset if gap is None else gap.first
    for run in state.in_flight:
        if hole < run.first_offset:
            yield hole, run.first_offset - 1, 0
        hole = max(hole, run.last_offset + 1)
        if run.delivery_state is _AVAILABLE:
            yield run.first_offset, run.last_offset, run.delivery_count


class Waiting(NamedTuple):
    """How many records wait to be delivered with all others; how many are to be searched for the one that brings
    engines down (Available ones of doubt LOST_TWICE, LOST_IN_PIECE and ACCUSED); and when how many are delivered with
    all others that are delayed until then, (milliseconds since the epoch, records) in order."""

    available: int
    suspected: tuple[int, int, int]
    delayed: tuple[tuple[int, int], ...] = ()


def waiting(state: SharePartition) -> Waiting:
    """Of the window, by what they wait for."""
    available, found, delayed = 0, [0, 0, 0], list[tuple[int, int]]()
    for run, offsets in offsets_by_kind(state.in_flight):
        if run.delivery_state is _AVAILABLE:
            if run.lock_deadline_ms is not None:
                delayed.append((run.lock_deadline_ms, offsets))
            elif run.doubt >= Doubt.LOST_TWICE:
                found[run.doubt - Doubt.LOST_TWICE] += offsets
            else:
                available += offsets
    if state.active_read_gap is not None:
        others = sum(found) + sum(offsets for _, offsets in delayed)
        available = sum(last - first + 1 for first, last, _ in available_ranges(state)) - others
    return Waiting(available, (found[0], found[1], found[2]), _by_time(delayed) if delayed else ())


def _by_time(delayed: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    totals = dict[int, int]()
    for until_ms, offsets in delayed:
        totals[until_ms] = totals.get(until_ms, 0) + offsets
    return tuple(sorted(totals.items()))


def offsets_by_state(state: SharePartition) -> dict[DeliveryState, int]:
    """How many offsets are in each state, those below the SPSO that are still Acquired among them."""
    found = dict.fromkeys(DeliveryState, 0)
    for run, offsets in offsets_by_kind(state.in_flight):
        found[run.delivery_state] += offsets
    return found


def highest_delivery_count(state: SharePartition) -> int:
    """In the window, 0 if it is empty."""
    return max((run.delivery_count for run in samples(state.in_flight)), default=0)


def has_available(state: SharePartition) -> bool:
    """Whether something inside the window can be acquired."""
    return next(available_ranges(state), None) is not None


def next_fetch_offset(state: SharePartition) -> int:
    """Where to read the log next: the lowest available offset, else the end of the window (R36)."""
    found = next(available_ranges(state), None)
    return state.end_offset if found is None else found[0]


def can_acquire(state: SharePartition, limits: PartitionLimits) -> bool:
    """Whether a fetch may get records: the window may grow, or something inside it is available (R37)."""
    width = state.end_offset - state.start_offset
    return width < limits.max_record_locks or has_available(state)


def deadlines_ms(state: SharePartition) -> tuple[int | None, int | None]:
    """When the first and the last lock of a member ends, milliseconds since the epoch; None while nothing is locked."""
    runs = samples(state.in_flight)
    deadlines = [run.lock_deadline_ms for run in runs if run.lock_deadline_ms is not None and run.member_id is not None]
    return min(deadlines, default=None), max(deadlines, default=None)


def next_deadline_ms(state: SharePartition) -> int | None:
    """When the first lock of a member ends, milliseconds since the epoch; None while nothing is locked."""
    return deadlines_ms(state)[0]


def check_invariants(state: SharePartition) -> None:
    """Raise AssertionError if ``state`` is one that no sequence of requests may lead to."""
    for run in state.in_flight:
        _check_run(state, run)
    for left, right in pairwise(state.in_flight):
        assert left.last_offset < right.first_offset, ("runs overlap", left, right)
        touching = left.last_offset + 1 == right.first_offset
        assert not (touching and left[2:] == right[2:]), ("runs not joined", left, right)
    for batch in state.fetched:
        assert batch.first_offset <= batch.last_offset, batch
    for one, other in pairwise(state.fetched):
        assert one.last_offset < other.first_offset, ("fetched batches overlap", one, other)
    _check_fetched_cover(state)


def _check_run(state: SharePartition, run: InFlightBatch) -> None:
    """One run is well formed, and lies where a run of its state may lie."""
    assert run.first_offset <= run.last_offset, run
    owned = run.member_id is not None
    assert owned == (run.delivery_state is _ACQUIRED), ("owner and state disagree", run)
    assert not owned or run.lock_deadline_ms is not None, ("a lock without an end", run)
    is_delayed = not owned and run.lock_deadline_ms is not None
    may_wait = run.delivery_state is _AVAILABLE and run.doubt < Doubt.LOST_TWICE
    assert not is_delayed or may_wait, ("delayed, and not just so", run)
    below = run.first_offset < state.start_offset
    assert not below or run.delivery_state is _ACQUIRED, ("below the SPSO", run)
    assert run.delivery_count >= 0, run
    assert not (run.doubt and run.delivery_state.is_final), ("a suspect that is finished", run)
    assert run.doubt is not Doubt.ALONE or run.delivery_state is _ACQUIRED, ("alone, but not acquired", run)


def _check_fetched_cover(state: SharePartition) -> None:
    """Every run lies inside fetched batches, if there are any."""
    if not state.fetched:
        return
    covered = iter(state.fetched)
    batch = next(covered)
    for run in state.in_flight:
        at = run.first_offset
        while at <= run.last_offset:
            while batch.last_offset < at:
                following = next(covered, None)
                assert following is not None, ("run outside of fetched batches", run)
                batch = following
            assert batch.first_offset <= at, ("run outside of fetched batches", run)
            at = batch.last_offset + 1
