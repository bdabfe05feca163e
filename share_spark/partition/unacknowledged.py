"""Attempts that end without an acknowledgement: lock expiry, session end, a crash, a move of the log start or of its
end (R25, R55-R58)."""

from __future__ import annotations

from collections.abc import Callable

from share_spark.model.ids import is_client
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import (
    ExpireLocks,
    LoseAttempts,
    Loss,
    MoveLogStart,
    PartitionResponse,
    ReleaseMember,
    TruncateLog,
)
from share_spark.partition.backoff import NO_BACKOFF, delayed
from share_spark.partition.columns import as_columns, is_columns
from share_spark.partition.draft import Draft
from share_spark.partition.lost import lose, traced
from share_spark.partition.request_effects import Ended, RequestEffects, both, ended_all, ended_inside, response_to
from share_spark.partition.runs import Runs, below_offset, chosen, from_offset, is_locked, pieces
from share_spark.partition.state import PartitionLimits
from share_spark.partition.transitions import Event

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED


HowEnded = Callable[[Runs], Ended]
"""A function from runs inside the window to how their attempts end; it may leave some out, and cut some."""


def expire_locks(draft: Draft, request: ExpireLocks, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """End the locks whose deadline is now or past: a lock ends *at* its deadline (R55)."""

    def is_due(run: InFlightBatch) -> bool:
        if run.member_id is None or is_locked(run, now_ms):
            return False
        return not (request.lost and is_client(run.member_id))

    due = chosen(draft.runs, is_due)

    def how_ended(inside: Runs) -> Ended:
        others = chosen(inside, lambda run: run.member_id != request.kept_by)
        return traced(others, request.traces) if request.lost else ended_all(others, Event.LOCK_EXPIRED)

    return _end_attempts(draft, due, how_ended, limits)


def lose_attempts(draft: Draft, request: LoseAttempts, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """End attempts of the running engine without an acknowledgement. What it does not hold is left as it is."""
    mine, ranges = chosen(draft.runs, lambda run: run.member_id == request.member_id), request.ranges
    if mine and ranges and (is_columns(mine) or is_columns(ranges)):
        mine, ranges = as_columns(mine), as_columns(ranges)
    held = ended_inside(mine, ranges)
    if is_columns(held):
        runs: Runs = held.recoded(InFlightBatch, [kind[:-1] for kind in held.kinds])
    else:
        runs = [run for run, _ in held]
    response = _end_attempts(draft, runs, lambda ended: ended_inside(ended, ranges), limits)
    if request.delays:
        draft.apply(delayed(response.ended, request.delays, NO_BACKOFF, draft.state.key, now_ms))
    return response


def release_member(draft: Draft, request: ReleaseMember, limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """Give back what the member still holds (R57). The delivery count stays, unless the attempt is not charged."""
    held = chosen(draft.runs, lambda run: run.member_id == request.member_id)
    how = Event.SESSION_CLOSED if request.charged else Loss.NOT_ENTERED
    return _end_attempts(draft, held, lambda ended: ended_all(ended, how), limits)


def _end_attempts(draft: Draft, ended: Runs, how_ended: HowEnded, limits: PartitionLimits) -> PartitionResponse:
    """End attempts, those at or above the SPSO as ``how_ended`` says.

    What fell below the log start meanwhile is archived whatever its count (R4): no read can bring it again, so it must
    not become Available whatever attempts are left.
    """
    if not ended:
        return PartitionResponse()
    below, inside = below_offset(ended, draft.start), from_offset(ended, draft.start)
    found = both(ended_all(below, Event.FELL_BELOW_LOG_START), how_ended(inside))
    response = response_to(found, _end, limits.max_delivery_count)
    if response.ended:
        draft.apply(response.ended)
        draft.advance_start()
    return response


def _end(outcome: RequestEffects, run: InFlightBatch, how: Event | Loss) -> None:
    if isinstance(how, Loss):
        lose(outcome, run, how)
    else:
        outcome.end_attempt(run, how)


def move_log_start(draft: Draft, request: MoveLogStart, limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """Move the SPSO up to the log start: Available records below it are archived, Acquired ones stay (R25).

    If asked, it moves on over final records (R15).
    """
    offset = request.log_start_offset
    if not draft.initialized or offset <= draft.start:
        return PartitionResponse()
    outcome = RequestEffects(limits.max_delivery_count)
    for run in pieces(draft.runs, draft.start, offset - 1):
        if run.delivery_state is _AVAILABLE:
            outcome.end_attempt(run, Event.FELL_BELOW_LOG_START)
    draft.apply(outcome.changes)
    draft.set_start(offset)
    if request.pass_finished:
        draft.advance_start()
    return outcome.response()


def truncate_log(draft: Draft, request: TruncateLog, _limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """Forget the state of the records at and above ``end_offset``: they are gone from the log."""
    end = request.end_offset
    assert end >= 0, request
    if not draft.initialized or end >= draft.end:
        return PartitionResponse()
    gone = tuple(run for run in pieces(draft.runs, end, draft.end - 1) if run.delivery_state is _ACQUIRED)
    draft.truncate(end)
    draft.advance_start()
    return PartitionResponse(ended=gone)
