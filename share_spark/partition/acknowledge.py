"""Acknowledgements of one member: request checks (R48), state checks (R49), all or nothing (R50).

One cursor walks the runs and one the fetched batches while the acknowledgement batches, which must ascend, are gone
through once; so the cost is the sum of the three. Nothing is changed before the last check has passed. Two exceptions,
as in Kafka 4.2, stay when a later entry fails: renewed locks, and that a batch is tracked by offset.

    runs               [A1 mine--------][A1 other][D1][A2 mine-----]
    acknowledgements      [ok---]  [refused--]    [refused]  [ok--]     an error undoes all of the request
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from share_spark.model.errors import ErrorCode
from share_spark.model.records import DeliveryState, FetchedBatch, InFlightBatch
from share_spark.model.requests import Acknowledge, AcknowledgementBatch, PartitionResponse
from share_spark.partition.acknowledge_columns import end_acknowledged, ended_in_columns
from share_spark.partition.backoff import delayed
from share_spark.partition.columns import is_columns
from share_spark.partition.draft import Draft
from share_spark.partition.request_effects import Ended, RequestEffects, response_to
from share_spark.partition.state import PartitionLimits
from share_spark.partition.transitions import Event

_ACQUIRED = DeliveryState.ACQUIRED
_NONE = ErrorCode.NONE
_RENEW = int(Event.RENEW)
_INVALID_REQUEST = ErrorCode.INVALID_REQUEST
_INVALID_RECORD_STATE = ErrorCode.INVALID_RECORD_STATE


def acknowledge(draft: Draft, request: Acknowledge, limits: PartitionLimits, now_ms: int) -> PartitionResponse:
    """End attempts as their owner says; an empty list is answered with NONE (R53)."""
    ended = ended_in_columns(draft, request)
    if ended is not None:
        return _end_columns(draft, ended, request, limits, now_ms)
    error = check_request(request)
    if error is not _NONE:
        return PartitionResponse(error=error)
    if is_columns(draft.runs):
        draft.runs = tuple(draft.runs)  # from here on it goes from run to run
    work = _Acknowledgement(draft, request, limits, now_ms)
    go = work.go_by_fetched if draft.fetched else work.go_by_runs
    return work.finish(go(request.batches))


def _end_columns(
    draft: Draft, ended: Ended, request: Acknowledge, limits: PartitionLimits, now_ms: int
) -> PartitionResponse:
    response = response_to(ended, end_acknowledged, limits.max_delivery_count)
    if response.ended:
        draft.apply(delayed(response.ended, request.delays, limits.backoff, draft.state.key, now_ms))
        draft.advance_start()
    return response


def check_request(request: Acknowledge) -> ErrorCode:
    """The checks that need no state (R48). As in Kafka 4.2, one shared offset of two batches passes here."""
    previous_last = -1
    highest = Event.RENEW if request.is_renew_ack else Event.REJECT
    for first, last, types in request.batches:
        if first > last or first < previous_last:
            return _INVALID_REQUEST
        if len(types) != 1 and len(types) != last - first + 1:
            return _INVALID_REQUEST
        if min(types) < Event.GAP or max(types) > highest:
            return _INVALID_REQUEST
        previous_last = last
    return _NONE


class _Acknowledgement:
    """One request on its way through the window: two cursors and what has been found so far."""

    __slots__ = (
        "_at_batch",
        "_at_run",
        "_batches",
        "_draft",
        "_ended_to",
        "_limits",
        "_member_id",
        "_now_ms",
        "_outcome",
        "_renewed",
        "_request",
        "_split",
    )

    def __init__(self, draft: Draft, request: Acknowledge, limits: PartitionLimits, now_ms: int) -> None:
        self._draft, self._request = draft, request
        self._member_id = request.member_id
        self._limits, self._now_ms = limits, now_ms
        self._batches = draft.tracking()
        self._at_batch = self._at_run = 0
        self._ended_to = -1
        self._outcome = RequestEffects(limits.max_delivery_count)
        self._renewed: list[InFlightBatch] = []
        self._split: list[FetchedBatch] = []

    def finish(self, error: ErrorCode) -> PartitionResponse:
        """Put the changes into the draft; after an error only those that stay."""
        draft = self._draft
        draft.track_by_offset(self._split)
        draft.apply(self._renewed)
        if error is not _NONE:
            return PartitionResponse(error=error)
        changes, delays = self._outcome.changes, self._request.delays
        if changes:
            draft.apply(delayed(changes, delays, self._limits.backoff, draft.state.key, self._now_ms))
            draft.advance_start()
        return self._outcome.response()

    def go_by_runs(self, batches: Sequence[AcknowledgementBatch]) -> ErrorCode:
        """The state checks (R49) where no fetched batches are remembered: the runs are enough.

        Written out for the frequent case, one type and all inside one run: it comes a hundred thousand times.
        """
        runs, at, start = self._draft.runs, 0, self._draft.start
        if not runs:
            return _INVALID_RECORD_STATE if any(batch.last_offset >= start for batch in batches) else _NONE
        begin, end, member_id = runs[0].first_offset, runs[-1].last_offset, self._member_id
        note = self._outcome.acknowledge
        for batch in batches:
            first, last, types = batch
            if last < start:
                continue
            if start <= first < begin:
                return _INVALID_RECORD_STATE
            if last > end:
                return _INVALID_REQUEST
            while runs[at].last_offset < first:
                at += 1
            run = runs[at]
            # ``_ended_to``: an offset that two batches share was ended by the first one already.
            if (
                run.first_offset <= first > self._ended_to
                and first >= start
                and last <= run.last_offset
                and len(types) == 1
                and types[0] != _RENEW
                and run.delivery_state is _ACQUIRED
                and run.member_id == member_id
            ):
                self._ended_to = last
                note(first, last, run.delivery_count, types[0])
                continue
            error = self._end_range(batch, max(first, start), last)
            if error is not _NONE:
                return error
        return _NONE

    def go_by_fetched(self, batches: Sequence[AcknowledgementBatch]) -> ErrorCode:
        """The state checks (R49) by fetched batches, as a client of Kafka sees them."""
        for batch in batches:
            if batch.last_offset >= self._draft.start:
                error = self._find_fetched(batch) or self._end_fetched(batch)
                if error is not _NONE:
                    return error
        return _NONE

    def _end_fetched(self, batch: AcknowledgementBatch) -> ErrorCode:
        """Go through the fetched batches that ``batch`` reaches, from the cursor on."""
        for index in range(self._at_batch, len(self._batches)):
            fetched = self._batches[index]
            if fetched.first_offset > batch.last_offset:
                break
            if fetched.last_offset < self._draft.start:
                continue
            low = max(batch.first_offset, fetched.first_offset, self._draft.start)
            high = min(batch.last_offset, fetched.last_offset)
            error = self._check_fetched(batch, fetched) or self._end_range(batch, low, high)
            if error is not _NONE:
                return error
        return _NONE

    def _find_fetched(self, batch: AcknowledgementBatch) -> ErrorCode:
        """Set the cursor to the last fetched batch that begins at or before ``batch``."""
        batches, at = self._batches, self._at_batch
        while at + 1 < len(batches) and batches[at + 1].first_offset <= batch.first_offset:
            at += 1
        self._at_batch = at
        if not batches or batches[at].first_offset > batch.last_offset:
            return _INVALID_RECORD_STATE
        if batches[at].first_offset > batch.first_offset >= self._draft.start:
            return _INVALID_RECORD_STATE
        return self._check_end(batch)

    def _check_end(self, batch: AcknowledgementBatch) -> ErrorCode:
        """The last fetched batch that begins at or before the end of ``batch`` has to hold that end."""
        reached = self._batches[self._at_batch].last_offset
        for index in range(self._at_batch + 1, len(self._batches)):
            if reached >= batch.last_offset or self._batches[index].first_offset > batch.last_offset:
                break
            reached = self._batches[index].last_offset
        return _NONE if reached >= batch.last_offset else _INVALID_REQUEST

    def _check_fetched(self, batch: AcknowledgementBatch, fetched: FetchedBatch) -> ErrorCode:
        """A batch with one state is checked as a whole, and is tracked by offset once a part of it is acknowledged."""
        if fetched.by_offset:
            return _NONE
        run = self._draft.batch_run(fetched)
        if run is None or run.delivery_state is not _ACQUIRED or run.member_id != self._member_id:
            return _INVALID_RECORD_STATE
        inside = fetched.first_offset >= batch.first_offset and fetched.last_offset <= batch.last_offset
        whole = inside and len(batch.types) == 1 and fetched.first_offset >= self._draft.start
        if not whole:
            self._split.append(fetched)
        return _NONE

    def _end_range(self, batch: AcknowledgementBatch, low: int, high: int) -> ErrorCode:
        """Go through ``low..high``, the part of ``batch`` to be checked, type by type."""
        for first, last, ack_type in _type_ranges(batch, low, high):
            error = self._end_runs(first, last, ack_type)
            if error is not _NONE:
                return error
        return _NONE

    def _end_runs(self, first: int, last: int, ack_type: int) -> ErrorCode:
        """The runs of ``first..last`` must all be this member's, and not ended by this request already."""
        runs, at = self._draft.runs, self._at_run
        while at < len(runs) and runs[at].last_offset < first:
            at += 1
        self._at_run = at
        if first <= last and first <= self._ended_to:
            return _INVALID_RECORD_STATE
        while at < len(runs) and runs[at].first_offset <= last:
            run = runs[at]
            if run.delivery_state is not _ACQUIRED or run.member_id != self._member_id:
                return _INVALID_RECORD_STATE
            self._end_run(run, max(run.first_offset, first), min(run.last_offset, last), ack_type)
            at += 1
        return _NONE

    def _end_run(self, run: InFlightBatch, first: int, last: int, ack_type: int) -> None:
        if ack_type == _RENEW:
            self._renew(run._replace(first_offset=first, last_offset=last))
            return
        self._ended_to = last
        self._outcome.acknowledge(first, last, run.delivery_count, ack_type)

    def _renew(self, run: InFlightBatch) -> None:
        """A new deadline, the same attempt (KIP-1222). Two batches may share an offset; it is renewed once."""
        done_to = self._renewed[-1].last_offset if self._renewed else -1
        if run.last_offset > done_to:
            first, deadline_ms = max(run.first_offset, done_to + 1), self._now_ms + self._limits.lock_duration_ms
            self._renewed.append(run._replace(first_offset=first, lock_deadline_ms=deadline_ms))


def _type_ranges(batch: AcknowledgementBatch, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(first, last, type) of ``low..high``, neighbours of one type together."""
    first, _, types = batch
    if len(types) == 1:
        yield low, high, types[0]
        return
    at = low
    for ack_type, same in groupby(types[low - first : high - first + 1]):
        following = at + sum(1 for _ in same)
        yield at, following - 1, ack_type
        at = following
