"""A share-partition while ``decide`` works on it: a local, mutable copy that remembers what it changed.

It exists inside one call of ``decide`` only. ``record`` states the sum of the changes; ``evolve`` of that record gives
exactly what the draft has become, which the property tests check.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from share_spark.model.ids import OffsetRange
from share_spark.model.records import (
    UNCHANGED,
    UNINITIALIZED_START_OFFSET,
    DeliveryState,
    FetchedBatch,
    InFlightBatch,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
)
from share_spark.partition.columns import in_best_form
from share_spark.partition.evolve import fetched_after
from share_spark.partition.runs import (
    Runs,
    below_offset,
    first_unfinished,
    from_offset,
    overlay,
    pieces,
    run_at,
    without_finished_below,
)
from share_spark.partition.state import SharePartition

_first = itemgetter(0)


class Draft:
    """The working copy. Its fields have the meaning of the fields of ``SharePartition``."""

    __slots__ = ("_changed_fetched", "_truncated", "changes", "fetched", "read_gap", "runs", "start", "state")

    def __init__(self, state: SharePartition) -> None:
        self.state = state
        self.start = state.start_offset
        self.runs: Runs = state.in_flight
        self.fetched: list[FetchedBatch] = list(state.fetched)
        self.read_gap = state.read_gap
        self.changes: Runs = ()
        self._changed_fetched: dict[int, FetchedBatch] = {}
        self._truncated = False

    @property
    def initialized(self) -> bool:
        return self.start != UNINITIALIZED_START_OFFSET

    @property
    def end(self) -> int:
        """The SPEO, exclusive."""
        return max(self.start, self.runs[-1].last_offset + 1) if self.runs else self.start

    @property
    def active_read_gap(self) -> OffsetRange | None:
        gap = self.read_gap
        return gap if gap is not None and self.end == gap.last + 1 else None

    def next_fetch_offset(self) -> int:
        """Where the log is to be read next (R36).

        ``hole``: the first offset that no run has covered so far. Without an active read gap a hole holds no record, so
        it starts at the end of the window, where no run can be beyond it.
        """
        gap = self.active_read_gap
        hole = self.end if gap is None else gap.first
        for run in self.runs:
            if hole < run.first_offset:
                return hole
            hole = max(hole, run.last_offset + 1)
            if run.delivery_state is DeliveryState.AVAILABLE:
                return run.first_offset
        return self.end

    @property
    def holds_nothing(self) -> bool:
        return not self.runs and not self.fetched

    def apply(self, changes: Runs) -> None:
        """Replace the state of the offsets that ``changes`` (sorted, disjoint) cover."""
        if not changes:
            return
        self.runs = overlay(self.runs, changes)
        # Later requests of the same micro-batch may change an offset again: the record states the last state only.
        self.changes = overlay(self.changes, changes)
        # An attempt below the SPSO that has ended is final there: only Acquired runs may stay below it (R25).
        if self.runs[0].first_offset < self.start:
            self.runs = without_finished_below(self.runs, self.start)

    def put_fetched(self, batch: FetchedBatch) -> None:
        """Remember a batch, or that it is tracked by offset from now on."""
        index = bisect_right(self.fetched, batch.first_offset, key=_first)
        if index and self.fetched[index - 1].first_offset == batch.first_offset:
            self.fetched[index - 1] = batch
        else:
            self.fetched.insert(index, batch)
        self._changed_fetched[batch.first_offset] = batch

    def track_by_offset(self, batches: Iterable[FetchedBatch]) -> None:
        """From now on the offsets of these batches have states of their own; Kafka never joins them again."""
        for batch in batches:
            if self.fetched and not batch.by_offset:
                self.put_fetched(batch._replace(by_offset=True))

    def tracking(self) -> list[FetchedBatch]:
        """The fetched batches; the whole window as one batch if none are remembered."""
        if self.fetched or not self.runs:
            return self.fetched
        return [FetchedBatch(self.runs[0].first_offset, self.runs[-1].last_offset, by_offset=True)]

    def batch_run(self, batch: FetchedBatch) -> InFlightBatch | None:
        """The one state of a batch that is not tracked by offset; None once it is finished and gone."""
        return run_at(self.runs, batch.last_offset)

    def set_start(self, offset: int) -> None:
        """Move the SPSO up; below it, only Acquired runs and their fetched batches are kept (R25)."""
        self.start = offset
        self.runs = without_finished_below(self.runs, offset)

    def advance_start(self) -> None:
        """R15: move the SPSO up over final records, unless something below it is still Acquired."""
        if not self.runs:
            return
        target = self._first_unfinished()
        gap = self.active_read_gap
        if gap is not None:
            # Offsets of the gap have not been fetched since the load, so they are not finished. Kafka stops at the
            # beginning of the fetched batch that reaches into the gap.
            target = min(target, gap.first, self._first_of_batch_reaching(gap.first))
        if target <= self.start or (target == self.runs[0].first_offset and not self._leftover_below()):
            return
        self.runs = from_offset(self.runs, target)
        self.start = target
        self.fetched = list(fetched_after(self.fetched, (), target))

    def truncate(self, end: int) -> None:
        """Forget everything at and above ``end``, whatever its state. Only a snapshot can state that."""
        gap = self.active_read_gap
        self.runs = below_offset(self.runs, end)
        self.start = min(self.start, end)
        self.fetched = [self._cut(batch, end) for batch in self.fetched if self._outlasts(batch, end)]
        # Cut to the window, the gap stays active. One that was not active must not become so because the window is
        # shorter now.
        self.read_gap = OffsetRange(gap.first, self.end - 1) if gap is not None and gap.first < self.end else None
        self._truncated = True

    def _outlasts(self, batch: FetchedBatch, end: int) -> bool:
        """Whether something of ``batch`` is left below ``end``: inside the window, or still Acquired below it."""
        last = min(batch.last_offset, end - 1)
        in_window = last >= max(batch.first_offset, self.start)
        return in_window or any(pieces(self.runs, batch.first_offset, last))

    @staticmethod
    def _cut(batch: FetchedBatch, end: int) -> FetchedBatch:
        return batch._replace(last_offset=min(batch.last_offset, end - 1))

    def _first_unfinished(self) -> int:
        found = first_unfinished(self.runs)
        return self.runs[-1].last_offset + 1 if found is None else found

    def _first_of_batch_reaching(self, offset: int) -> int:
        """First offset of the first fetched batch that ends at or past ``offset``."""
        return next((batch.first_offset for batch in self.fetched if batch.last_offset >= offset), offset)

    def _leftover_below(self) -> bool:
        """Whether a fetched batch below the SPSO remains from a move of the log start."""
        return bool(self.fetched) and self.fetched[0].first_offset < self.start

    def record(self) -> ShareRecord | None:
        """What changed since the draft was made, None if nothing did; everything if the log was truncated."""
        if self._truncated:
            return self._snapshot()
        moved = self.start != self.state.start_offset
        fetched = self._fetched_to_state(moved)
        gap_changed = self.read_gap != self.state.read_gap
        if not (moved or self.changes or fetched or gap_changed):
            return None
        return ShareUpdate(
            key=self.state.key,
            snapshot_epoch=self.state.snapshot_epoch,
            leader_epoch=self.state.leader_epoch,
            start_offset=self.start if moved else UNCHANGED,
            batches=in_best_form(self._batches_to_state(moved)),
            fetched=fetched,
            read_gap=self.read_gap,
        )

    def _snapshot(self) -> ShareSnapshot:
        return ShareSnapshot(
            key=self.state.key,
            snapshot_epoch=self.state.snapshot_epoch + 1,
            state_epoch=self.state.state_epoch,
            leader_epoch=self.state.leader_epoch,
            start_offset=self.start,
            batches=in_best_form(self.runs),
            fetched=tuple(self.fetched),
            read_gap=self.read_gap,
        )

    def _batches_to_state(self, moved: bool) -> Runs:
        """The changed runs; after a move of the SPSO without those below it, except what stays there.

        ``evolve`` drops all that lies below a moved SPSO, so Acquired runs that stay there have to be stated again.
        """
        if not moved:
            return self.changes
        left_below = []
        for run in self.runs:
            if run.first_offset >= self.start:
                break
            assert run.delivery_state is DeliveryState.ACQUIRED, run
            left_below.append(run)
        return overlay(from_offset(self.changes, self.start), left_below)

    def _fetched_to_state(self, moved: bool) -> tuple[FetchedBatch, ...]:
        if not self.fetched:
            return ()
        changed = self._changed_fetched
        return tuple(
            batch
            for batch in self.fetched
            if batch.first_offset in changed or (moved and batch.last_offset < self.start)
        )
