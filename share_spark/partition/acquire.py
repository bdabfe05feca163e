"""Acquire records for a member: redeliveries and new ones in offset order, in one sweep over the runs (R36-R38).

    window      SPSO [D1][V1---][A1---][V2--]|SPEO
    readable         |-----------------------------------------|
    acquired             [A2---]       [A3--][A1----------]      as far as max_records and the window's width allow

A caller reads the records after it has acquired them. Where a client gets records and log batches together, see
``kafka_modes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from share_spark.model.ids import OffsetRange
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch
from share_spark.model.requests import Acquire, AcquiredRange, PartitionResponse
from share_spark.partition.columns import Columns, as_columns, between, concatenated, in_best_form, is_columns, up_to
from share_spark.partition.draft import Draft
from share_spark.partition.lost import suspects
from share_spark.partition.runs import Runs, is_locked, pieces
from share_spark.partition.state import PartitionLimits

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED
_NONE = Doubt.NONE


def acquire(draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """Give the member what can be read and the state allows (R36-R38, R42)."""
    if not request.readable or request.max_records <= 0 or not draft.initialized:
        return PartitionResponse()
    if request.suspects:  # these, and no other record: it would be lost with them
        changes = _acquired_suspects(draft, request, limits, now_ms)
    elif is_columns(draft.runs):
        changes = _acquired_in_columns(draft, draft.runs, request, limits, now_ms)
    else:
        changes = _acquired_by_run(draft, request, limits, now_ms)
    if not changes:
        return PartitionResponse()
    if not draft.runs:
        # An empty window begins where the first record is: offsets before it are not in the log any more.
        draft.start = changes[0].first_offset
    draft.apply(changes)
    return PartitionResponse(acquired=in_best_form(_ranges(changes)))


def _ranges(acquired: Runs) -> Sequence[AcquiredRange]:
    if is_columns(acquired):
        return acquired.recoded(AcquiredRange, [(run.delivery_count,) for run in acquired.samples])
    return [AcquiredRange(run.first_offset, run.last_offset, run.delivery_count) for run in acquired]


def _acquired_by_run(draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int) -> Runs:
    remaining, member_id, deadline_ms = request.max_records, request.member_id, now_ms + limits.lock_duration_ms
    changes: list[InFlightBatch] = []
    for first, last, count, doubt, excused in _free_ranges(draft, request, limits, now_ms):
        taken_to = min(last, first + remaining - 1)
        changes.append(InFlightBatch(first, taken_to, _ACQUIRED, count + 1, member_id, deadline_ms, doubt, excused))
        remaining -= taken_to - first + 1
        if remaining == 0:
            break
    return changes


def _acquired_in_columns(
    draft: Draft, runs: Columns[InFlightBatch], request: Acquire, limits: PartitionLimits, now_ms: int
) -> Runs:
    """Do as ``_acquired_by_run``, by operations on whole columns."""
    member_id, deadline_ms = request.member_id, now_ms + limits.lock_duration_ms
    read = between(runs, *request.readable)
    free = (_free_fields(run, request.searched, now_ms) for run in read.samples)
    taken = [None if one is None else (_ACQUIRED, one[0] + 1, member_id, deadline_ms, *one[1:]) for one in free]
    acquired = read.recoded(InFlightBatch, taken)
    if new := _new_offsets(draft, request, limits):
        acquired = concatenated(acquired, as_columns([InFlightBatch(*new, _ACQUIRED, 1, member_id, deadline_ms)]))
    return up_to(acquired, request.max_records)


def _acquired_suspects(draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int) -> Runs:
    """Take some of the suspects: one of them brings engines down, and ``engine.planning`` looks for it."""
    owner = request.member_id, now_ms + limits.lock_duration_ms
    doubt = Doubt.ALONE if request.alone else request.searched
    return [
        InFlightBatch(run.first_offset, run.last_offset, _ACQUIRED, run.delivery_count + 1, *owner, doubt, run.excused)
        for run in suspects(draft.runs, request.searched, request.max_records)
    ]


def _free_ranges(
    draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int
) -> Iterator[tuple[int, int, int, Doubt, int]]:
    """Yield (first, last, delivery count so far, doubt, excused) of what may be acquired, ascending."""
    for run in pieces(draft.runs, *request.readable):
        free = _free_fields(run, request.searched, now_ms)
        if free is not None:
            yield run.first_offset, run.last_offset, *free
    if new := _new_offsets(draft, request, limits):
        yield *new, 0, _NONE, 0


def _new_offsets(draft: Draft, request: Acquire, limits: PartitionLimits) -> OffsetRange:
    """Return what may be acquired for the first time: past the window, as far as its width allows (R37)."""
    first, last = request.readable
    start = draft.start if draft.runs else max(draft.start, first)
    return OffsetRange(max(first, draft.end), min(last, start + limits.max_record_locks - 1))


def _free_fields(run: InFlightBatch, searched: Doubt, now_ms: int) -> tuple[int, Doubt, int] | None:
    """Return (delivery count so far, doubt, excused) of a run that may be acquired, else None.

    One that is delayed may not, and neither may the suspects that are being searched. Once the search has come to
    smaller pieces, the other suspects are no longer in it, and come with all other records.
    """
    if run.delivery_state is not _AVAILABLE or is_locked(run, now_ms):
        return None
    if run.doubt is _NONE or run.doubt < max(searched, Doubt.LOST_TWICE):
        return run.delivery_count, min(run.doubt, Doubt.LOST_ONCE), run.excused
    return None
