"""Acknowledgements of one member: request checks (R48), state checks (R49), all or nothing (R50).

    runs               [A1 mine--------][A1 other][D1][A2 mine-----]
    acknowledgements      [ok---]  [refused--]    [refused]  [ok--]     an error undoes all of the request

Nothing is changed before the last check has passed. Of few ranges, runs and acknowledgements are gone through once,
side by side. Many ranges of which nothing is refused, the frequent case, are intersected as whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from share_spark.model.errors import ErrorCode
from share_spark.model.records import InFlightBatch
from share_spark.model.requests import (
    Acknowledge,
    AcknowledgeType,
    AnsweredRange,
    PartitionResponse,
    RetryDelay,
)
from share_spark.partition.backoff import delayed
from share_spark.partition.columns import Columns, as_columns, from_offset, intersection, is_columns
from share_spark.partition.draft import Draft
from share_spark.partition.request_effects import Ended, RequestEffects, ending, response_to
from share_spark.partition.runs import from_offset as runs_from
from share_spark.partition.state import PartitionLimits

_LOWEST, _HIGHEST = int(AcknowledgeType.GAP), int(AcknowledgeType.REJECT)
_NONE = ErrorCode.NONE
_INVALID_REQUEST = ErrorCode.INVALID_REQUEST
_INVALID_RECORD_STATE = ErrorCode.INVALID_RECORD_STATE


def acknowledge(draft: Draft, request: Acknowledge, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """End attempts as their owner says; an empty list is answered with NONE (R53)."""
    ended = _ended_in_columns(draft, request)
    if ended is not None:
        response = response_to(ended, _end, limits.max_delivery_count)
    else:
        outcome = RequestEffects(limits.max_delivery_count)
        error = _check_request(request) or _end_by_run(draft, request, outcome)
        response = PartitionResponse(error=error) if error else outcome.response()
    return put_ended(draft, response, request.delays, limits, now_ms)


def put_ended(
    draft: Draft, response: PartitionResponse, delays: Sequence[RetryDelay], limits: PartitionLimits, now_ms: int
) -> PartitionResponse:
    """Put the attempts that ended into the draft; those of an error are none."""
    if response.ended:
        draft.apply(delayed(response.ended, delays, limits.backoff, draft.state.key, now_ms))
        draft.advance_start()
    return response


def _check_request(request: Acknowledge) -> ErrorCode:
    """Check what needs no state (R48). As in Kafka 4.2, one shared offset of two batches passes here."""
    previous_last = -1
    for first, last, ack_type in request.batches:
        if first > last or first < previous_last or not _LOWEST <= ack_type <= _HIGHEST:
            return _INVALID_REQUEST
        previous_last = last
    return _NONE


def _end_by_run(draft: Draft, request: Acknowledge, outcome: RequestEffects) -> ErrorCode:
    """Note what ``request`` ends, up to the first batch that is refused (R49)."""
    window, start = draft.runs, draft.start
    if not window:
        return _INVALID_RECORD_STATE if any(batch.last_offset >= start for batch in request.batches) else _NONE
    begin, end = window[0].first_offset, window[-1].last_offset
    runs, at, ended_to = tuple(runs_from(window, start)), 0, -1
    member_id, note = request.member_id, outcome.acknowledge
    for first, last, ack_type in request.batches:
        if last < start:
            continue
        if start <= first < begin:
            return _INVALID_RECORD_STATE
        if last > end:
            return _INVALID_REQUEST
        while runs[at].last_offset < first:
            at += 1
        for index in range(at, len(runs)):
            low, run_last, _, count, held_by, _, _, excused = runs[index]
            if low > last:
                break
            low = first if low < first else low  # max() and min() take three times as long
            # An offset that two batches share was ended by the first one already.
            if held_by != member_id or low <= ended_to:
                return _INVALID_RECORD_STATE
            ended_to = run_last if run_last < last else last
            note(low, ended_to, count, excused, ack_type)
    return _NONE


def _end(outcome: RequestEffects, run: InFlightBatch, ack_type: int) -> None:
    outcome.acknowledge(run.first_offset, run.last_offset, run.delivery_count, run.excused, ack_type)


def _ended_in_columns(draft: Draft, request: Acknowledge) -> Ended | None:
    """Return what ``request`` ends. None if there are few ranges, or something may have to be refused."""
    many = is_columns(draft.runs) or is_columns(request.batches)
    if not many or not draft.runs or not request.batches:
        return None
    runs, batches = as_columns(draft.runs), as_columns(request.batches)
    if not _is_well_formed(batches) or not _is_inside(batches, runs, draft.start):
        return None
    ended = intersection(ending, runs, from_offset(batches, draft.start))
    return ended if all(run.member_id == request.member_id for run, _ in ended.samples) else None


def _is_well_formed(batches: Columns[AnsweredRange]) -> bool:
    """Return whether the checks without state pass (R48), and no two batches share an offset."""
    if any(not _LOWEST <= batch.answer <= _HIGHEST for batch in batches.samples):
        return False
    ascend = bool((batches.first[1:] > batches.last[:-1]).all())
    return ascend and batches.first[0] >= 0 and bool((batches.first <= batches.last).all())


def _is_inside(batches: Columns[AnsweredRange], runs: Columns[InFlightBatch], start: int) -> bool:
    """Return whether what counts of ``batches``, at or above the SPSO, begins and ends inside the window."""
    counted = len(from_offset(batches, start))
    begins_before = counted and start <= batches.first[-counted] < runs.first[0]
    return not counted or bool(not begins_before and batches.last[-1] <= runs.last[-1])
