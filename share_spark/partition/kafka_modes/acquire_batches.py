"""Acquire as Kafka 4.2 does, by log batches and by what was fetched together (R37-R41).

A client can see where batches begin and end: whole log batches are acquired (R39), what one fetch acquired is
redelivered together, ranges of two fetches are reported as two ranges. Offsets between the batches of one read are
acquired as well, and the client reports them as gaps (R19); offsets between two fetches are not acquired.

    log batches of the read      [100-104][105-109]   [112-119][120-129]
    fetched before               [fetched----------]                        one fetch acquired 100 to 109
    acquired again                    [V1--]                                its Available offsets
    acquired first, limit 12                       [110-119]                to the end of the batch at the limit
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter

from share_spark.model.ids import OffsetRange
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import AcknowledgeType, AcquiredRange, PartitionResponse
from share_spark.partition.columns import in_best_form
from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.requests import AcquireBatches, AcquireMode, LogBatch
from share_spark.partition.kafka_modes.state import FetchedBatch, KafkaLimits, may_be_acquired
from share_spark.partition.kafka_modes.throttle import Allowance
from share_spark.partition.request_effects import RequestEffects
from share_spark.partition.runs import pieces, run_at

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED
_first = itemgetter(0)


def acquire_batches(draft: KafkaDraft, request: AcquireBatches, limits: KafkaLimits, now_ms: int) -> PartitionResponse:
    """Give the client what the log read holds and the state allows (R36-R42).

    Records between the fetch offset and the first batch read are gone from the log (R21).
    """
    outcome = RequestEffects(limits.max_delivery_count)
    if not request.log_batches or request.max_records <= 0 or not draft.initialized:
        return outcome.response()
    _leave_read_gap_if_stuck(draft, limits)
    fetch_offset = draft.next_fetch_offset() if request.fetch_offset is None else request.fetch_offset
    if draft.runs and not draft.fetched:
        draft.put_fetched(draft.tracking()[0])
    acquisition = _Acquisition(draft, request, fetch_offset, limits, now_ms)
    if acquisition.remaining <= 0:
        return outcome.response()
    _archive_missing(draft, outcome, fetch_offset, request.log_batches[0].base_offset)
    acquired = _without_aborted(draft, outcome, request.log_batches, acquisition.run())
    return outcome.response(acquired=in_best_form(acquired))


def _leave_read_gap_if_stuck(draft: KafkaDraft, limits: KafkaLimits) -> None:
    """Close a read gap that Kafka 4.2 would never close.

    It does so only when something past the window is acquired, and until then the SPSO does not pass the final batches
    behind the gap. A full window acquires nothing past itself.
    """
    full = draft.end - draft.start >= limits.max_record_locks
    if full and draft.active_read_gap is not None and draft.next_fetch_offset() == draft.end:
        draft.read_gap = None
        draft.advance_start()


def _archive_missing(draft: KafkaDraft, outcome: RequestEffects, first: int, end: int) -> None:
    """Archive the Available records of ``first..end - 1``, as if a client had reported them as gaps (R21)."""
    for run in pieces(draft.runs, first, end - 1) if first < end else ():
        if run.delivery_state is _AVAILABLE:
            outcome.acknowledge(run.first_offset, run.last_offset, run.delivery_count, run.excused, AcknowledgeType.GAP)
    draft.apply(outcome.changes)


def _without_aborted(
    draft: KafkaDraft, outcome: RequestEffects, log_batches: tuple[LogBatch, ...], acquired: list[AcquiredRange]
) -> list[AcquiredRange]:
    """Archive what aborted batches hold, and take it from what the client gets (R19, R23).

    acquired   [-------------------------]
    aborted        [----]      [---]
    kept       [--]      [----]     [----]
    """
    aborted = [batch for batch in log_batches if batch.aborted] if acquired else []
    draft.track_by_offset([fetched for batch in aborted for fetched in _held_in_part(draft, batch)])
    changes_from = len(outcome.changes)
    kept = [piece for found in acquired for piece in _cut_aborted(draft, outcome, found, aborted)]
    draft.apply(outcome.changes[changes_from:])
    return kept


def _held_in_part(draft: KafkaDraft, aborted: LogBatch) -> Iterator[FetchedBatch]:
    """Yield the fetched batches that ``aborted`` touches in part while all their offsets are Acquired."""
    for batch in draft.fetched:
        touched = batch.first_offset <= aborted.last_offset and batch.last_offset >= aborted.base_offset
        inside = batch.first_offset >= aborted.base_offset and batch.last_offset <= aborted.last_offset
        run = run_at(draft.runs, batch.last_offset) if touched and not inside and not batch.by_offset else None
        if run is not None and run.delivery_state is _ACQUIRED:
            yield batch


def _cut_aborted(
    draft: KafkaDraft, outcome: RequestEffects, found: AcquiredRange, aborted: list[LogBatch]
) -> Iterator[AcquiredRange]:
    at = found.first_offset
    for batch in aborted:
        first, last = max(batch.base_offset, at), min(batch.last_offset, found.last_offset)
        if first > last:
            continue
        for run in pieces(draft.runs, first, last):
            outcome.acknowledge(run.first_offset, run.last_offset, run.delivery_count, run.excused, AcknowledgeType.GAP)
        if at < first:
            yield AcquiredRange(at, first - 1, found.delivery_count)
        at = last + 1
    if at <= found.last_offset:
        yield AcquiredRange(at, found.last_offset, found.delivery_count)


class _Acquisition:
    """One request on its way through the window, in offset order; each offset is looked at once (R38)."""

    def __init__(
        self, draft: KafkaDraft, request: AcquireBatches, fetch_offset: int, limits: KafkaLimits, now_ms: int
    ) -> None:
        self._draft = draft
        self._request = request
        self._limits = limits
        self._deadline_ms = now_ms + limits.lock_duration_ms
        self._strict = request.mode is AcquireMode.RECORD_LIMIT
        self._read_base = self._base = request.log_batches[0].base_offset
        self._last = request.log_batches[-1].last_offset
        self._changes: list[InFlightBatch] = []
        self._acquired: list[AcquiredRange] = []
        self.remaining = self._within_window(fetch_offset)

    def _within_window(self, fetch_offset: int) -> int:
        """Return how many records the window lets in; at its limit only what lies inside it (R37)."""
        draft, wanted = self._draft, self._request.max_records
        left = self._limits.max_record_locks - (draft.end - draft.start)
        if left > 0:
            return min(wanted, left)
        if fetch_offset >= draft.end:
            return 0
        self._last = min(self._last, draft.end - 1)
        return min(wanted, draft.end - fetch_offset)

    def run(self) -> list[AcquiredRange]:
        """Acquire, put the changes into the draft, and return what the member got."""
        touched = self._touched()
        if touched:
            self._acquire_touched(touched)
        else:
            self._acquire_new(self._read_base, self._last)
        self._draft.apply(self._changes)
        return self._acquired

    def _touched(self) -> list[FetchedBatch]:
        """Return the fetched batches that the read overlaps; the first one is taken from its beginning."""
        fetched, draft = self._draft.fetched, self._draft
        at = bisect_right(fetched, self._base, key=_first) - 1
        if at < 0:
            # The read begins before all that was fetched, and may begin before the SPSO: that part is finished.
            self._base = max(self._base, draft.start)
            at = bisect_right(fetched, self._base, key=_first) - 1
        if at >= 0 and fetched[at].last_offset >= self._base:
            self._base = fetched[at].first_offset
        begin = bisect_left(fetched, self._base, key=_first)
        return fetched[begin : bisect_right(fetched, self._last, key=_first)]

    def _acquire_touched(self, touched: list[FetchedBatch]) -> None:
        hole = self._base
        for batch in touched:
            if self.remaining <= 0:
                break
            # Between two fetched batches there are no records, except inside a read gap: there they are acquired first.
            if self._draft.active_read_gap is not None:
                if hole < batch.first_offset:
                    self._acquire_new(hole, batch.first_offset - 1)
                hole = batch.last_offset + 1
                if self.remaining <= 0:
                    break
            if not self._acquire_again(batch):
                self.remaining = 0
        past = touched[-1].last_offset + 1
        if self.remaining > 0 and past <= self._last:
            self._acquire_new(past, self._last)
        if self._acquired:
            self._move_read_gap(self._acquired[-1].last_offset + 1)

    def _acquire_again(self, batch: FetchedBatch) -> bool:
        """Redeliver what of a fetched batch is Available. False: throttled, nothing more may follow."""
        draft = self._draft
        inside = batch.first_offset >= self._read_base and batch.last_offset <= self._last
        first, last = max(batch.first_offset, self._read_base), min(batch.last_offset, self._last)
        allowance = Allowance(batch, self._limits, self.remaining if self._strict else None)
        throttled = allowance.throttles(draft, first, last)
        if throttled and self._acquired:
            return False
        whole = inside and not batch.by_offset and not throttled
        if self._strict and batch.last_offset - batch.first_offset >= self.remaining:
            whole = False  # the strict limit may cut it, so its offsets get states of their own
        if whole:
            first, last = batch.first_offset, batch.last_offset
        elif not batch.by_offset:
            run = run_at(draft.runs, batch.last_offset)
            if run is None or not may_be_acquired(run, draft.now_ms):
                return True
            draft.track_by_offset([batch])
        before = self.remaining
        self._redeliver(first, last, None if whole else allowance)
        return not (throttled and self.remaining < before)

    def _redeliver(self, first: int, last: int, allowance: Allowance | None) -> None:
        for run in pieces(self._draft.runs, first, last):
            if not may_be_acquired(run, self._draft.now_ms):
                continue
            size = run.last_offset - run.first_offset + 1
            granted = size if allowance is None else allowance.grant(size, run.delivery_count)
            if granted:
                self._take(run.first_offset, run.first_offset + granted - 1, run.delivery_count + 1, run.excused)
                self.remaining -= granted
            if granted < size or (allowance is not None and allowance.spent):
                return

    def _take(self, first: int, last: int, count: int, excused: int = 0) -> None:
        owner = self._request.member_id, self._deadline_ms
        self._changes.append(InFlightBatch(first, last, _ACQUIRED, count, *owner, excused=excused))
        self._acquired.append(AcquiredRange(first, last, count))

    def _acquire_new(self, first: int, last: int) -> None:
        """Acquire ``first..last`` for the first time, as far as the log batch that crosses the limit (R39)."""
        draft = self._draft
        if not draft.fetched or first < draft.fetched[0].first_offset:
            first = max(first, draft.start)
        if first > last:
            return
        if self.remaining < last - first + 1:
            reached = self._end_of_log_batch(first + self.remaining - 1)
            last = min(reached, last) if draft.active_read_gap is not None else reached
        if not draft.fetched or first < draft.fetched[0].first_offset:
            draft.start = first
        got_to = self._take_limited(first, last) if self._strict else self._take_cut(first, last)
        self.remaining -= got_to - first + 1
        self._flush()
        self._move_read_gap(got_to + 1)

    def _flush(self) -> None:
        """Put new runs into the draft: later steps ask for the end of the window."""
        self._draft.apply(self._changes)
        self._changes = []

    def _end_of_log_batch(self, offset: int) -> int:
        """Return the last offset of the log batch that holds ``offset``; the offset itself between two batches."""
        batches = self._request.log_batches
        at = bisect_right(batches, offset, key=_first) - 1
        return batches[at].last_offset if at >= 0 and batches[at].last_offset >= offset else offset

    def _take_limited(self, first: int, last: int) -> int:
        """Remember the whole as one batch, and acquire only so many of its records (KIP-1206)."""
        got_to = min(last, first + self.remaining - 1)
        self._draft.put_fetched(FetchedBatch(first, last, by_offset=got_to < last))
        self._take(first, got_to, 1)
        if got_to < last:
            self._changes.append(InFlightBatch(got_to + 1, last, _AVAILABLE, 0))
        return got_to

    def _take_cut(self, first: int, last: int) -> int:
        """Acquire one fetched batch, cut at log batch starts once ``batch_size`` records are reached."""
        size = self._request.batch_size
        if last - first + 1 > size:
            for batch in self._request.log_batches:
                if batch.base_offset > last:
                    break
                if batch.base_offset - first >= size:
                    self._take_fetched(first, batch.base_offset - 1)
                    first = batch.base_offset
        self._take_fetched(first, last)
        return last

    def _take_fetched(self, first: int, last: int) -> None:
        self._draft.put_fetched(FetchedBatch(first, last))
        self._take(first, last, 1)

    def _move_read_gap(self, offset: int) -> None:
        """Begin the read gap at ``offset``, up to which all has been read now; past its end it is closed."""
        gap = self._draft.active_read_gap
        if gap is not None and offset <= gap.last:
            self._draft.read_gap = OffsetRange(offset, gap.last)
        else:
            self._draft.read_gap = None
