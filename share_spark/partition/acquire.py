"""Acquire records for a member: what all modes share, and the mode that counts offsets only.

``EXACT`` is for callers that read records after they have acquired them: redeliveries and new records in offset order,
up to the limit and the width of the window, in one sweep over the runs:

    window      SPSO [D1][V1---][A1---][V2--]|SPEO
    log              |-----------------------------------------|
    acquired             [A2---]       [A3--][A1----------]      as far as max_records and the window's width allow

The modes that do as Kafka does, by log batches and by what was fetched together, are in ``acquire_batches``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from share_spark.model.ids import OffsetRange
from share_spark.model.records import DeliveryState, Doubt, FetchedBatch, InFlightBatch
from share_spark.model.requests import (
    Acquire,
    AcquiredRange,
    AcquireMode,
    LogBatch,
    PartitionResponse,
)
from share_spark.partition.columns import Columns, as_columns, between, concatenated, in_best_form, is_columns, up_to
from share_spark.partition.draft import Draft
from share_spark.partition.kafka_modes.acquire_batches import BatchAcquisition
from share_spark.partition.lost import suspects
from share_spark.partition.release import archive_available, fetched_in_part
from share_spark.partition.request_effects import RequestEffects
from share_spark.partition.runs import Runs, is_locked, pieces
from share_spark.partition.state import PartitionLimits
from share_spark.partition.transitions import Event

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED
_NONE = Doubt.NONE


def acquire(draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """Give the member what the log read holds and the state allows (R36-R42)."""
    outcome = RequestEffects(limits.max_delivery_count)
    if not request.log_batches or request.max_records <= 0 or not draft.initialized:
        return outcome.response()
    acquired: Sequence[AcquiredRange]
    if request.suspects:  # these, and no other record: it would be lost with them
        acquired = _acquire_suspects(draft, request, limits, now_ms)
    elif request.mode is AcquireMode.EXACT:
        acquired = _acquire_exact(draft, request, limits, now_ms)
    else:
        acquired = _acquire_batches(draft, outcome, request, limits, now_ms)
    acquired = _without_aborted(draft, outcome, request.log_batches, acquired)
    return outcome.response(acquired=in_best_form(acquired))


def _acquire_batches(
    draft: Draft, outcome: RequestEffects, request: Acquire, limits: PartitionLimits, now_ms: int
) -> list[AcquiredRange]:
    """Kafka's modes. Records between the fetch offset and the first batch read are gone from the log (R21)."""
    _leave_read_gap_if_stuck(draft, limits)
    fetch_offset = draft.next_fetch_offset() if request.fetch_offset is None else request.fetch_offset
    if draft.runs and not draft.fetched:
        draft.put_fetched(draft.tracking()[0])
    acquisition = BatchAcquisition(draft, request, fetch_offset, limits, now_ms)
    if acquisition.remaining <= 0:
        return []
    base = request.log_batches[0].base_offset
    archive_available(draft, outcome, fetch_offset, base, Event.FOUND_MISSING)
    return acquisition.run()


def _leave_read_gap_if_stuck(draft: Draft, limits: PartitionLimits) -> None:
    """Close a read gap that Kafka 4.2 would never close: it does so only when something past the window is acquired,
    and until then the SPSO does not pass the final batches behind the gap. A full window acquires nothing past itself.
    """
    full = draft.end - draft.start >= limits.max_record_locks
    if full and draft.active_read_gap is not None and draft.next_fetch_offset() == draft.end:
        draft.read_gap = None
        draft.advance_start()


def _acquire_exact(draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int) -> Sequence[AcquiredRange]:
    deadline_ms = now_ms + limits.lock_duration_ms
    if is_columns(draft.runs) and draft.active_read_gap is None:
        return _acquire_columns(draft, draft.runs, request, limits, now_ms)
    remaining = request.max_records
    changes: list[InFlightBatch] = []
    for first, last, count, doubt in _exact_ranges(draft, request, limits, now_ms):
        taken_to = min(last, first + remaining - 1)
        changes.append(InFlightBatch(first, taken_to, _ACQUIRED, count + 1, request.member_id, deadline_ms, doubt))
        remaining -= taken_to - first + 1
        if remaining == 0:
            break
    _take_exact(draft, changes)
    return [AcquiredRange(run.first_offset, run.last_offset, run.delivery_count) for run in changes]


def _acquire_columns(
    draft: Draft, runs: Columns[InFlightBatch], request: Acquire, limits: PartitionLimits, now_ms: int
) -> Sequence[AcquiredRange]:
    """The same, by operations on whole columns."""
    deadline_ms = now_ms + limits.lock_duration_ms
    window_last = _window_last(draft, request, limits)
    parts: list[Columns[InFlightBatch]] = []
    for batch in request.log_batches:
        read = between(runs, batch.base_offset, batch.last_offset)
        free = (_free_fields(run, request.searched, now_ms) for run in read.samples)
        taken = [
            None if one is None else (_ACQUIRED, one[0] + 1, request.member_id, deadline_ms, one[1]) for one in free
        ]
        parts.append(read.recoded(InFlightBatch, taken))
        first, last = max(batch.base_offset, draft.end), min(batch.last_offset, window_last)
        if first <= last:
            parts.append(as_columns([InFlightBatch(first, last, _ACQUIRED, 1, request.member_id, deadline_ms)]))
    changes = up_to(concatenated(*parts), request.max_records)
    _take_exact(draft, changes)
    return changes.recoded(AcquiredRange, [(run.delivery_count,) for run in changes.samples])


def _acquire_suspects(draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int) -> list[AcquiredRange]:
    """Some of the suspects: one of them brings engines down, and ``engine.planning`` looks for it."""
    assert request.mode is AcquireMode.EXACT, request
    deadline_ms = now_ms + limits.lock_duration_ms
    doubt = Doubt.ALONE if request.alone else request.searched
    changes = [
        InFlightBatch(
            run.first_offset, run.last_offset, _ACQUIRED, run.delivery_count + 1, request.member_id, deadline_ms, doubt
        )
        for run in suspects(draft.runs, request.searched, request.max_records)
    ]
    _take_exact(draft, changes)
    return [AcquiredRange(run.first_offset, run.last_offset, run.delivery_count) for run in changes]


def _take_exact(draft: Draft, changes: Runs) -> None:
    """Put an exact acquisition into the draft. If batches are remembered at all, new offsets join the last one."""
    if not changes:
        return
    end, last = draft.end, changes[-1].last_offset
    if draft.holds_nothing:
        # An empty window begins where the first record is: offsets before it are not in the log any more.
        draft.start = changes[0].first_offset
    elif draft.fetched:
        _cover(draft, changes)
    draft.apply(changes)
    if draft.read_gap is not None:
        draft.read_gap = None if last >= end else _rest_of_read_gap(draft, draft.read_gap)


def _rest_of_read_gap(draft: Draft, gap: OffsetRange) -> OffsetRange | None:
    """The gap from its first offset that no run covers yet; None once there is none."""
    hole = gap.first
    for run in pieces(draft.runs, gap.first, gap.last):
        if run.first_offset > hole:
            break
        hole = run.last_offset + 1
    return OffsetRange(hole, gap.last) if hole <= gap.last else None


def _cover(draft: Draft, changes: Runs) -> None:
    """Remember, as batches tracked by offset, what of ``changes`` no fetched batch covers yet."""
    known = list(draft.fetched)
    draft.track_by_offset(batch for batch in known if any(pieces(changes, batch.first_offset, batch.last_offset)))
    index = 0
    for run in changes:
        at = run.first_offset
        while at <= run.last_offset:
            while index < len(known) and known[index].last_offset < at:
                index += 1
            following = known[index] if index < len(known) else None
            if following is None or following.first_offset > at:
                end = run.last_offset + 1 if following is None else following.first_offset
                last = min(run.last_offset, end - 1)
                draft.put_fetched(FetchedBatch(at, last, by_offset=True))
                at = last + 1
            else:
                at = following.last_offset + 1


def _window_last(draft: Draft, request: Acquire, limits: PartitionLimits) -> int:
    """The last offset that the window may reach."""
    start = draft.start
    if draft.holds_nothing:
        start = max(start, request.log_batches[0].base_offset)
    return start + limits.max_record_locks - 1


def _exact_ranges(
    draft: Draft, request: Acquire, limits: PartitionLimits, now_ms: int
) -> Iterator[tuple[int, int, int, Doubt]]:
    """(first, last, delivery count so far, doubt) of what may be acquired, ascending; new offsets have count 0."""
    window_last, end = _window_last(draft, request, limits), draft.end
    for batch in request.log_batches:
        yield from _inside_window(draft, batch, request.searched, now_ms)
        first, last = max(batch.base_offset, end), min(batch.last_offset, window_last)
        if first <= last:
            yield first, last, 0, _NONE


def _inside_window(
    draft: Draft, batch: LogBatch, searched: Doubt, now_ms: int
) -> Iterator[tuple[int, int, int, Doubt]]:
    """Available runs of one log batch, and holes of the read gap."""
    gap = draft.active_read_gap or OffsetRange(batch.last_offset + 1, -1)
    hole = max(batch.base_offset, gap.first, draft.start)
    for run in pieces(draft.runs, batch.base_offset, batch.last_offset):
        if gap and hole < run.first_offset:
            yield hole, run.first_offset - 1, 0, _NONE
        hole = max(hole, run.last_offset + 1)
        free = _free_fields(run, searched, now_ms)
        if free is not None:
            yield run.first_offset, run.last_offset, *free
    if gap and hole <= min(gap.last, batch.last_offset):
        yield hole, min(gap.last, batch.last_offset), 0, _NONE


def _free_fields(run: InFlightBatch, searched: Doubt, now_ms: int) -> tuple[int, Doubt] | None:
    """(delivery count so far, doubt) of a run that may be acquired, else None. One that is delayed may not, and neither
    may the suspects that are being searched. Once the search has come to smaller pieces, the other suspects are no
    longer in it, and come with all other records."""
    if run.delivery_state is not _AVAILABLE or is_locked(run, now_ms):
        return None
    if run.doubt is _NONE or run.doubt < max(searched, Doubt.LOST_TWICE):
        return run.delivery_count, min(run.doubt, Doubt.LOST_ONCE)
    return None


def _without_aborted(
    draft: Draft,
    outcome: RequestEffects,
    log_batches: tuple[LogBatch, ...],
    acquired: Sequence[AcquiredRange],
) -> Sequence[AcquiredRange]:
    """Archive what aborted batches hold, and take it from what the member gets (R19, R23).

    acquired   [-------------------------]
    aborted        [----]      [---]
    kept       [--]      [----]     [----]
    """
    aborted = [batch for batch in log_batches if batch.aborted]
    if not aborted or not acquired:
        return acquired
    kept: list[AcquiredRange] = []
    for batch in aborted:
        end = batch.last_offset + 1
        draft.track_by_offset(fetched_in_part(draft, batch.base_offset, end, _ACQUIRED))
    changes_from = len(outcome.changes)
    for found in acquired:
        kept += _cut_aborted(draft, outcome, found, aborted)
    draft.apply(outcome.changes[changes_from:])
    return kept


def _cut_aborted(
    draft: Draft, outcome: RequestEffects, found: AcquiredRange, aborted: list[LogBatch]
) -> Iterator[AcquiredRange]:
    at = found.first_offset
    for batch in aborted:
        first, last = max(batch.base_offset, at), min(batch.last_offset, found.last_offset)
        if first > last:
            continue
        for run in pieces(draft.runs, first, last):
            outcome.end_attempt(run, Event.FOUND_ABORTED)
        if at < first:
            yield AcquiredRange(at, first - 1, found.delivery_count)
        at = last + 1
    if at <= found.last_offset:
        yield AcquiredRange(at, found.last_offset, found.delivery_count)
