"""Acknowledgements of one client of Kafka, checked by what was fetched together (R48, R49), and renewed locks.

Two changes, as in Kafka 4.2, stay when a later entry fails: renewed locks, and that a batch is tracked by offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from share_spark.model.errors import ErrorCode
from share_spark.model.records import InFlightBatch
from share_spark.model.requests import AcknowledgeType, PartitionResponse
from share_spark.partition.acknowledge import put_ended
from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.requests import RENEW, AcknowledgeOrRenew, TypedBatch
from share_spark.partition.kafka_modes.state import FetchedBatch, KafkaLimits
from share_spark.partition.request_effects import RequestEffects
from share_spark.partition.runs import pieces, run_at

_first = itemgetter(0)
_NONE = ErrorCode.NONE
_INVALID_REQUEST = ErrorCode.INVALID_REQUEST
_INVALID_RECORD_STATE = ErrorCode.INVALID_RECORD_STATE


def acknowledge_or_renew(
    draft: KafkaDraft, request: AcknowledgeOrRenew, limits: KafkaLimits, now_ms: int
) -> PartitionResponse:
    """End attempts, or restart their locks, as their owner says; an empty list is answered with NONE (R53)."""
    error = check_request(request)
    if error:
        return PartitionResponse(error=error)
    outcome = RequestEffects(limits.max_delivery_count)
    work = _Acknowledgement(draft, request.member_id, now_ms + limits.lock_duration_ms, outcome)
    error = work.go(request.batches)
    draft.track_by_offset(work.split)
    draft.apply(work.renewed)
    response = PartitionResponse(error=error) if error else outcome.response()
    return put_ended(draft, response, (), limits, now_ms)


def check_request(request: AcknowledgeOrRenew) -> ErrorCode:
    """Check what needs no state (R48). As in Kafka 4.2, one shared offset of two batches passes here."""
    previous_last = -1
    highest = RENEW if request.is_renew_ack else AcknowledgeType.REJECT
    for first, last, types in request.batches:
        if first > last or first < previous_last:
            return _INVALID_REQUEST
        if len(types) != 1 and len(types) != last - first + 1:
            return _INVALID_REQUEST
        if min(types) < AcknowledgeType.GAP or max(types) > highest:
            return _INVALID_REQUEST
        previous_last = last
    return _NONE


class _Acknowledgement:
    """One request on its way through the window: what has been found so far.

    ``renewed`` are runs with a new deadline, ``split`` batches that are tracked by offset from now on.
    """

    def __init__(self, draft: KafkaDraft, member_id: str, deadline_ms: int, outcome: RequestEffects) -> None:
        self._draft, self._member_id, self._deadline_ms, self._outcome = draft, member_id, deadline_ms, outcome
        self._batches = draft.tracking()
        self._ended_to = -1
        self.renewed: list[InFlightBatch] = []
        self.split: list[FetchedBatch] = []

    def go(self, batches: tuple[TypedBatch, ...]) -> ErrorCode:
        """Check all batches against the state (R49), and note what they end and renew, up to the first error."""
        counted = (batch for batch in batches if batch.last_offset >= self._draft.start)
        return next((error for error in map(self._end, counted) if error), _NONE)

    def _end(self, batch: TypedBatch) -> ErrorCode:
        """End what ``batch`` names, which must begin and end inside of fetched batches."""
        first, last, _ = batch
        start = self._draft.start
        begin = max(bisect_right(self._batches, first, key=_first) - 1, 0)
        touched = self._batches[begin : bisect_right(self._batches, last, key=_first)]
        if not touched or touched[0].first_offset > first >= start:
            return _INVALID_RECORD_STATE
        if touched[-1].last_offset < last:
            return _INVALID_REQUEST
        for fetched in touched:
            if fetched.last_offset < start:
                continue
            low, high = max(first, fetched.first_offset, start), min(last, fetched.last_offset)
            error = self._check_fetched(batch, fetched) or self._end_range(batch, low, high)
            if error:
                return error
        return _NONE

    def _check_fetched(self, batch: TypedBatch, fetched: FetchedBatch) -> ErrorCode:
        """Check a batch with one state as a whole; it is tracked by offset once a part of it is acknowledged."""
        if fetched.by_offset:
            return _NONE
        run = run_at(self._draft.runs, fetched.last_offset)
        if run is None or run.member_id != self._member_id:
            return _INVALID_RECORD_STATE
        inside = fetched.first_offset >= batch.first_offset and fetched.last_offset <= batch.last_offset
        whole = inside and len(batch.types) == 1 and fetched.first_offset >= self._draft.start
        if not whole:
            self.split.append(fetched)
        return _NONE

    def _end_range(self, batch: TypedBatch, low: int, high: int) -> ErrorCode:
        """End or renew ``low..high`` of ``batch``: all of it this member's, and not ended by this request already."""
        for first, last, ack_type in _type_ranges(batch, low, high):
            for run in pieces(self._draft.runs, first, last):
                if run.member_id != self._member_id or run.first_offset <= self._ended_to:
                    return _INVALID_RECORD_STATE
                if ack_type == RENEW:
                    self._renew(run)
                else:
                    self._ended_to = run.last_offset
                    first_offset, last_offset, count = run.first_offset, run.last_offset, run.delivery_count
                    self._outcome.acknowledge(first_offset, last_offset, count, run.excused, ack_type)
        return _NONE

    def _renew(self, run: InFlightBatch) -> None:
        """Set a new deadline for the same attempt (KIP-1222). Two batches may share an offset; it is renewed once."""
        done_to = self.renewed[-1].last_offset if self.renewed else -1
        if run.last_offset > done_to:
            first = max(run.first_offset, done_to + 1)
            self.renewed.append(run._replace(first_offset=first, lock_deadline_ms=self._deadline_ms))


def _type_ranges(batch: TypedBatch, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, type) of ``low..high``, neighbours of one type together."""
    first, _, types = batch
    if len(types) == 1:
        yield low, high, types[0]
        return
    at = low
    for ack_type, same in groupby(types[low - first : max(high - first + 1, 0)]):
        following = at + sum(1 for _ in same)
        yield at, following - 1, ack_type
        at = following
