"""Attempts that end without an acknowledgement: lock expiry, session end, a move of the log start (R25, R55-R58)."""

from __future__ import annotations

from collections.abc import Callable

from share_spark.model.records import DeliveryState, FetchedBatch, InFlightBatch
from share_spark.model.requests import ExpireLocks, MoveLogStart, PartitionResponse, ReleaseMember
from share_spark.partition.draft import Draft
from share_spark.partition.limits import PartitionLimits
from share_spark.partition.outcome import Outcome
from share_spark.partition.runs import pieces
from share_spark.partition.transitions import Event

_AVAILABLE = DeliveryState.AVAILABLE


def expire_locks(draft: Draft, _request: ExpireLocks, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """End the locks whose deadline is now or past: a lock ends *at* its deadline (R55)."""

    def due(run: InFlightBatch) -> bool:
        return run[5] is not None and run[5] <= now_ms

    return _end_attempts(draft, due, Event.LOCK_EXPIRED, limits)


def release_member(draft: Draft, request: ReleaseMember, limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """Give back what the member still holds (R57). The delivery count stays: the attempt was made."""
    member_id = request.member_id
    return _end_attempts(draft, lambda run: run[4] == member_id, Event.SESSION_CLOSED, limits)


def _end_attempts(
    draft: Draft, ends: Callable[[InFlightBatch], bool], event: Event, limits: PartitionLimits
) -> PartitionResponse:
    outcome = Outcome(limits.max_delivery_count)
    for run in draft.runs:
        if ends(run):
            _end_attempt(outcome, run, draft.start, event)
    if not outcome.changes:
        return outcome.response()
    draft.track_by_offset(_straddling(draft, outcome.changes))
    draft.apply(outcome.changes)
    draft.advance_start()
    return outcome.response()


def _end_attempt(outcome: Outcome, run: InFlightBatch, start: int, event: Event) -> None:
    """What fell below the log start meanwhile is archived whatever its count, the rest is released (R4)."""
    below = Event.FELL_BELOW_LOG_START
    if run.last_offset < start:
        outcome.end_attempt(run, below)
    elif run.first_offset >= start:
        outcome.end_attempt(run, event)
    else:
        outcome.end_attempt(run._replace(last_offset=start - 1), below)
        outcome.end_attempt(run._replace(first_offset=start), event)


def _straddling(draft: Draft, changes: list[InFlightBatch]) -> list[FetchedBatch]:
    """Fetched batches that the SPSO lies inside of and that ``changes`` touch."""
    return [
        batch
        for batch in draft.fetched
        if batch.first_offset < draft.start <= batch.last_offset
        and any(pieces(changes, batch.first_offset, batch.last_offset))
    ]


def move_log_start(draft: Draft, request: MoveLogStart, limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """R25: the SPSO follows the log start; Available records below it are archived, Acquired ones stay. R15 if
    asked."""
    outcome = Outcome(limits.max_delivery_count)
    offset = request.log_start_offset
    if not draft.initialized or offset <= draft.start:
        return outcome.response()
    archive_available(draft, outcome, draft.start, offset, Event.FELL_BELOW_LOG_START)
    draft.set_start(offset)
    if request.pass_finished:
        draft.advance_start()
    return outcome.response()


def archive_available(draft: Draft, outcome: Outcome, first: int, end: int, event: Event) -> None:
    """Archive the Available records of ``first..end - 1``: no read of the log will bring them again."""
    if first >= end:
        return
    for run in pieces(draft.runs, first, end - 1):
        if run.delivery_state is _AVAILABLE:
            outcome.end_attempt(run, event)
    if not outcome.changes:
        return
    draft.track_by_offset(fetched_in_part(draft, first, end, _AVAILABLE))
    draft.apply(outcome.changes)


def fetched_in_part(draft: Draft, first: int, end: int, state: DeliveryState) -> list[FetchedBatch]:
    """Fetched batches that ``first..end - 1`` touches in part while all their offsets are in ``state``."""
    cut = []
    for batch in draft.fetched:
        touched = batch.first_offset < end and batch.last_offset >= first
        inside = batch.first_offset >= first and batch.last_offset < end
        if touched and not inside and not batch.by_offset:
            run = draft.batch_run(batch)
            if run is not None and run.delivery_state is state:
                cut.append(batch)
    return cut
