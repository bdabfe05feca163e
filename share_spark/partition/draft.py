"""A share-partition while ``decide`` works on it: a local, mutable copy that remembers what it changed.

It exists inside one call of ``decide`` only. ``record`` states the sum of the changes; ``evolve`` of that record gives
exactly what the draft has become, which the property tests check.
"""

from __future__ import annotations

from share_spark.model.records import (
    UNCHANGED,
    UNINITIALIZED_START_OFFSET,
    DeliveryState,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
)
from share_spark.partition.columns import in_best_form
from share_spark.partition.runs import (
    Runs,
    below_offset,
    first_unfinished,
    from_offset,
    overlay,
    without_finished_below,
)
from share_spark.partition.state import SharePartition


class Draft:
    """The working copy of ``state``. ``start`` and ``runs`` are what its SPSO and its window have become."""

    __slots__ = ("_truncated", "changes", "runs", "start", "state")

    def __init__(self, state: SharePartition) -> None:
        self.state = state
        self.start = state.start_offset
        self.runs: Runs = state.in_flight
        self.changes: Runs = ()
        self._truncated = False

    @property
    def initialized(self) -> bool:
        """True once an SPSO has been chosen (R26)."""
        return self.start != UNINITIALIZED_START_OFFSET

    @property
    def end(self) -> int:
        """The SPEO, exclusive."""
        return max(self.start, self.runs[-1].last_offset + 1) if self.runs else self.start

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

    def set_start(self, offset: int) -> None:
        """Move the SPSO up with the log start; below it, only Acquired runs are kept (R25)."""
        self.start = offset
        self.runs = without_finished_below(self.runs, offset)

    def advance_start(self) -> None:
        """Move the SPSO up over final records (R15), unless something below it is still Acquired."""
        if self.runs:
            target = self.first_unfinished()
            if target > self.start and target != self.runs[0].first_offset:
                self.drop_below(target)

    def first_unfinished(self) -> int:
        """Return the first offset of the window that is not finished; its end if all are."""
        found = first_unfinished(self.runs)
        return self.runs[-1].last_offset + 1 if found is None else found

    def drop_below(self, offset: int) -> None:
        """Move the SPSO up to ``offset``, below which all is finished."""
        self.runs = from_offset(self.runs, offset)
        self.start = offset

    def truncate(self, end: int) -> None:
        """Forget everything at and above ``end``, whatever its state. Only a snapshot can state that."""
        self.runs = below_offset(self.runs, end)
        self.start = min(self.start, end)
        self._truncated = True

    def record(self) -> ShareRecord | None:
        """Return what changed since the draft was made, None if nothing did; everything if the log was truncated."""
        state = self.state
        if self._truncated:
            return ShareSnapshot(
                key=state.key,
                snapshot_epoch=state.snapshot_epoch + 1,
                state_epoch=state.state_epoch,
                leader_epoch=state.leader_epoch,
                start_offset=self.start,
                batches=in_best_form(self.runs),
            )
        moved = self.start != state.start_offset
        if not (moved or self.changes):
            return None
        return ShareUpdate(
            key=state.key,
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=self.start if moved else UNCHANGED,
            batches=in_best_form(self._batches_to_state() if moved else self.changes),
        )

    def _batches_to_state(self) -> Runs:
        """Return the changed runs after a move of the SPSO: without those below it, except what stays there.

        ``evolve`` drops all that lies below a moved SPSO, so Acquired runs that stay there have to be stated again.
        """
        left_below = []
        for run in self.runs:
            if run.first_offset >= self.start:
                break
            assert run.delivery_state is DeliveryState.ACQUIRED, run
            left_below.append(run)
        return overlay(from_offset(self.changes, self.start), left_below)
