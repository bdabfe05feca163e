"""Attempts that end without an acknowledgement: lock expiry, session end, a crash, a move of the log start or of its
end (R25, R55-R58)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from share_spark.model.records import DeliveryState, FetchedBatch, InFlightBatch
from share_spark.model.requests import (
    ExpireLocks,
    LoseAttempts,
    Loss,
    MoveLogStart,
    PartitionResponse,
    ReleaseMember,
    TruncateLog,
)
from share_spark.partition.draft import Draft
from share_spark.partition.lost import lose, traced
from share_spark.partition.request_effects import RequestEffects
from share_spark.partition.runs import pieces
from share_spark.partition.state import PartitionLimits
from share_spark.partition.transitions import Event

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED


EndAttempts = Callable[[RequestEffects, list[InFlightBatch]], None]


def expire_locks(draft: Draft, request: ExpireLocks, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """End the locks whose deadline is now or past: a lock ends *at* its deadline (R55)."""
    due = [run for run in draft.runs if run.lock_deadline_ms is not None and run.lock_deadline_ms <= now_ms]
    if not request.lost:
        return _end_attempts(draft, due, _each(Event.LOCK_EXPIRED), limits)
    return _end_attempts(draft, due, lambda outcome, ended: lose(outcome, list(traced(ended, request.traces))), limits)


def lose_attempts(draft: Draft, request: LoseAttempts, limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """Attempts of the running engine that ended without an acknowledgement. What it does not hold is left as it is."""
    held = [
        (run, loss)
        for first, last, loss in request.ranges
        for run in pieces(draft.runs, first, last)
        if run.member_id == request.member_id
    ]
    # By the last offset: what has fallen below the log start is cut off at the front, so the first offset may change.
    losses = {run.last_offset: loss for run, loss in held}
    return _end_attempts(
        draft,
        [run for run, _ in held],
        lambda outcome, ended: lose(outcome, [(run, losses[run.last_offset]) for run in ended]),
        limits,
    )


def release_member(draft: Draft, request: ReleaseMember, limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """Give back what the member still holds (R57). The delivery count stays, unless the attempt is not charged."""
    held = [run for run in draft.runs if run.member_id == request.member_id]
    return _end_attempts(draft, held, _each(Event.SESSION_CLOSED) if request.charged else _not_entered, limits)


def _each(event: Event) -> EndAttempts:
    def end(outcome: RequestEffects, ended: list[InFlightBatch]) -> None:
        for run in ended:
            outcome.end_attempt(run, event)

    return end


def _not_entered(outcome: RequestEffects, ended: list[InFlightBatch]) -> None:
    lose(outcome, [(run, Loss.NOT_ENTERED) for run in ended])


def _end_attempts(
    draft: Draft, ended: Iterable[InFlightBatch], end: EndAttempts, limits: PartitionLimits
) -> PartitionResponse:
    """``end`` gets what is still inside the window; what fell below the log start meanwhile is archived whatever its
    count (R4)."""
    outcome = RequestEffects(limits.max_delivery_count)
    inside: list[InFlightBatch] = []
    for run in ended:
        if run.first_offset >= draft.start:
            inside.append(run)
            continue
        # No read can bring it again, so it must not become Available whatever attempts are left.
        below = run._replace(last_offset=min(run.last_offset, draft.start - 1))
        outcome.end_attempt(below, Event.FELL_BELOW_LOG_START)
        if run.last_offset >= draft.start:
            inside.append(run._replace(first_offset=draft.start))
    end(outcome, inside)
    if not outcome.changes:
        return outcome.response()
    draft.track_by_offset(_straddling(draft, outcome.changes))
    draft.apply(outcome.changes)
    draft.advance_start()
    return outcome.response()


def _straddling(draft: Draft, changes: list[InFlightBatch]) -> list[FetchedBatch]:
    """Fetched batches that have the SPSO inside and that ``changes`` touch: their two parts have different states."""
    return [
        batch
        for batch in draft.fetched
        if batch.first_offset < draft.start <= batch.last_offset
        and any(pieces(changes, batch.first_offset, batch.last_offset))
    ]


def move_log_start(draft: Draft, request: MoveLogStart, limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """R25: the SPSO follows the log start; Available records below it are archived, Acquired ones stay. R15 if
    asked."""
    outcome = RequestEffects(limits.max_delivery_count)
    offset = request.log_start_offset
    if not draft.initialized or offset <= draft.start:
        return outcome.response()
    archive_available(draft, outcome, draft.start, offset, Event.FELL_BELOW_LOG_START)
    draft.set_start(offset)
    if request.pass_finished:
        draft.advance_start()
    return outcome.response()


def truncate_log(draft: Draft, request: TruncateLog, _limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """The records at and above ``end_offset`` are gone from the log, so their state is forgotten."""
    end = request.end_offset
    assert end >= 0, request
    if not draft.initialized or end >= draft.end:
        return PartitionResponse()
    gone = tuple(run for run in pieces(draft.runs, end, draft.end - 1) if run.delivery_state is _ACQUIRED)
    draft.truncate(end)
    draft.advance_start()
    return PartitionResponse(ended=gone)


def archive_available(draft: Draft, outcome: RequestEffects, first: int, end: int, event: Event) -> None:
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
