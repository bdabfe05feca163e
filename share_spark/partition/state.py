"""The state of a share-partition as a value, the questions it answers, and its invariants; the limits it runs under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from share_spark.model.config import BackoffPolicy, GroupConfig
from share_spark.model.ids import SharePartitionKey, is_client
from share_spark.model.records import UNINITIALIZED_START_OFFSET, DeliveryState, Doubt, InFlightBatch
from share_spark.partition.backoff import NO_BACKOFF, Backoff
from share_spark.partition.runs import below_offset, chosen, from_offset, offsets_by_kind, samples

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """The limits of a share-partition; an argument of ``decide``, never part of the state. The defaults are Kafka's.

    ``max_delivery_count``: attempts per record (R6). ``max_record_locks``: width of the in-flight window in offsets,
    SPSO to end, final ones included (R37). ``backoff``: of released records whose member asks for no delay; Kafka has
    none.
    """

    max_delivery_count: int = 5
    max_record_locks: int = 2_000
    lock_duration_ms: int = 30_000
    backoff: Backoff = NO_BACKOFF

    def __post_init__(self) -> None:
        assert self.max_delivery_count >= 1, self.max_delivery_count
        assert self.max_record_locks >= 1, self.max_record_locks
        assert self.lock_duration_ms >= 1, self.lock_duration_ms

    @classmethod
    def of(cls, config: GroupConfig) -> Self:
        """Return the limits of a group with these settings."""
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
    """A topic-partition as one group sees it.

    ``start_offset`` is the SPSO, -1 until chosen (R26). ``in_flight`` are the runs of the window, sorted, disjoint
    and canonical, in the form that ``in_best_form`` chooses; below the SPSO there are only Acquired ones, left behind
    by a move of the log start (R25), and they hold up the SPSO. Offsets of the window without a run hold no record.
    """

    key: SharePartitionKey
    state_epoch: int = 0
    leader_epoch: int = 0
    snapshot_epoch: int = -1
    start_offset: int = UNINITIALIZED_START_OFFSET
    in_flight: Sequence[InFlightBatch] = ()

    @property
    def end_offset(self) -> int:
        """The SPEO, exclusive: the first offset never acquired yet."""
        if not self.in_flight:
            return self.start_offset
        return max(self.start_offset, self.in_flight[-1].last_offset + 1)


class Waiting(NamedTuple):
    """Numbers of records that wait.

    ``available``: to be delivered with all others. ``suspected``: to be searched for the one that brings engines down
    (Available ones of doubt LOST_TWICE, LOST_IN_PIECE and ACCUSED). ``delayed``: (until when, in milliseconds since the
    epoch; number), in order; after that they are delivered with all others.
    """

    available: int
    suspected: tuple[int, int, int]
    delayed: tuple[tuple[int, int], ...] = ()


def waiting(state: SharePartition) -> Waiting:
    """Count the records of the window by what they wait for."""
    available, found, delayed = 0, [0, 0, 0], list[tuple[int, int]]()
    for run, offsets in offsets_by_kind(state.in_flight):
        if run.delivery_state is _AVAILABLE:
            if run.lock_deadline_ms is not None:
                delayed.append((run.lock_deadline_ms, offsets))
            elif run.doubt >= Doubt.LOST_TWICE:
                found[run.doubt - Doubt.LOST_TWICE] += offsets
            else:
                available += offsets
    return Waiting(available, (found[0], found[1], found[2]), _by_time(delayed) if delayed else ())


def _by_time(delayed: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    totals = dict[int, int]()
    for until_ms, offsets in delayed:
        totals[until_ms] = totals.get(until_ms, 0) + offsets
    return tuple(sorted(totals.items()))


def offsets_by_state(state: SharePartition) -> dict[DeliveryState, int]:
    """Count the offsets in each state, those below the SPSO that are still Acquired among them."""
    found = dict.fromkeys(DeliveryState, 0)
    for run, offsets in offsets_by_kind(state.in_flight):
        found[run.delivery_state] += offsets
    return found


def highest_delivery_count(state: SharePartition) -> int:
    """Return the highest delivery count in the window, 0 if it is empty."""
    return max((run.delivery_count for run in samples(state.in_flight)), default=0)


def held_by(state: SharePartition, member_id: str) -> Sequence[InFlightBatch]:
    """Return the ranges that this member holds, and that its answers count for: not those below the SPSO (R25)."""
    return chosen(from_offset(state.in_flight, state.start_offset), lambda run: run.member_id == member_id)


class Deadlines(NamedTuple):
    """The times at which locks end, in milliseconds since the epoch; None where there is no such lock. ``first`` and
    ``last``: of engines; ``first_client``: of clients of Kafka's protocol."""

    first: int | None = None
    last: int | None = None
    first_client: int | None = None


def deadlines_ms(state: SharePartition, kept_by: str | None = None) -> Deadlines:
    """Return when locks end. ``kept_by`` as in ``ExpireLocks``."""
    locked = [run for run in samples(state.in_flight) if run.lock_deadline_ms is not None and run.member_id is not None]
    if not locked:
        return _NO_DEADLINES
    ending = [run for run in locked if run.member_id != kept_by]
    if len(ending) < len(locked):
        below = samples(below_offset(state.in_flight, state.start_offset))
        ending += [run for run in below if run.member_id == kept_by]
    clients, engines = list[int](), list[int]()
    for run in ending:
        if run.lock_deadline_ms is not None and run.member_id is not None:
            (clients if is_client(run.member_id) else engines).append(run.lock_deadline_ms)
    return Deadlines(min(engines, default=None), max(engines, default=None), min(clients, default=None))


_NO_DEADLINES = Deadlines()


def next_deadline_ms(state: SharePartition) -> int | None:
    """Return when the first lock of a member ends, milliseconds since the epoch; None if there is none."""
    found = deadlines_ms(state)
    return min((at for at in (found.first, found.first_client) if at is not None), default=None)


def check_invariants(state: SharePartition) -> None:
    """Raise AssertionError if ``state`` is one that no sequence of requests may lead to."""
    for run in state.in_flight:
        _check_run(state, run)
    for left, right in pairwise(state.in_flight):
        assert left.last_offset < right.first_offset, ("runs overlap", left, right)
        touching = left.last_offset + 1 == right.first_offset
        assert not (touching and left[2:] == right[2:]), ("runs not joined", left, right)


def _check_run(state: SharePartition, run: InFlightBatch) -> None:
    """Check that a run is well formed, and lies where a run of its state may lie."""
    assert run.first_offset <= run.last_offset, run
    owned = run.member_id is not None
    assert owned == (run.delivery_state is _ACQUIRED), ("owner and state disagree", run)
    assert not owned or run.lock_deadline_ms is not None, ("a lock without an end", run)
    is_delayed = not owned and run.lock_deadline_ms is not None
    may_wait = run.delivery_state is _AVAILABLE and run.doubt < Doubt.LOST_TWICE
    assert not is_delayed or may_wait, ("delayed, and not just so", run)
    below = run.first_offset < state.start_offset
    assert not below or run.delivery_state is _ACQUIRED, ("below the SPSO", run)
    assert run.delivery_count >= run.excused + owned >= owned, ("more deliveries are excused than were made", run)
    assert not (run.excused and run.delivery_state.is_final), ("excused, and finished", run)
    assert not (run.doubt and run.delivery_state.is_final), ("a suspect that is finished", run)
    assert run.doubt is not Doubt.ALONE or run.delivery_state is _ACQUIRED, ("alone, but not acquired", run)
