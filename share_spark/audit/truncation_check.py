"""Check that a snapshot inside a segment continues the state before it, or cuts off its end. Pure.

Inside a segment a snapshot with the state epoch of the one before is written where the log was truncated (R61, R74).
It also has what its micro-batch did to the records that are left. So there is an offset below which each record changes
by a legal step, and from which on all is forgotten; what was acquired since is held for the first time. If the start
offset goes back, it goes back to that offset.

    before    |--- in flight --------------------|
    after     |--- each by a legal step --|              cut here
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from share_spark.model.records import DeliveryState, Doubt, InFlightBatch, ShareSnapshot
from share_spark.partition import SharePartition
from share_spark.partition.runs import Runs, below_offset, from_offset, run_at

_AVAILABLE, _ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
_NEXT = {
    _AVAILABLE: (_AVAILABLE, _ACQUIRED, DeliveryState.ARCHIVED),
    _ACQUIRED: tuple(DeliveryState),
    DeliveryState.ACKNOWLEDGED: (DeliveryState.ACKNOWLEDGED,),
    DeliveryState.ARCHIVED: (DeliveryState.ARCHIVED,),
}
"""The states that one micro-batch can make of a state; an attempt may end and the next begin in it."""


def cut_fault(before: SharePartition, snapshot: ShareSnapshot) -> str | None:
    """Return the fault of ``snapshot`` as the next record after ``before``, None: no fault."""
    goes_back = snapshot.start_offset < before.start_offset
    left = _fault_below_start(before, snapshot)
    if left is not None:
        return left
    cut = snapshot.start_offset if goes_back else _first_break(before, snapshot)
    if cut is None:
        return None
    strange = next((run for run in from_offset(snapshot.batches, cut) if not _is_new(run)), None)
    if strange is None:
        return None
    if goes_back:
        return f"start offset falls from {before.start_offset} to {cut}, and {_text(strange)} is left above it"
    if strange.first_offset > cut:
        return f"offset {cut} is forgotten, and {_text(strange)} is left above it"
    was = run_at(before.in_flight, cut)
    return f"{_text(strange)} does not follow from {_said(was, *strange[:2])}"


def _fault_below_start(before: SharePartition, snapshot: ShareSnapshot) -> str | None:
    """Return a fault below the start offset, where there is only what its owner still holds (R25)."""
    for first, last, was, now in _cells(before.in_flight, below_offset(snapshot.batches, snapshot.start_offset)):
        if now is not None and (was is None or now.delivery_state is not _ACQUIRED or was[2:6] != now[2:6]):
            left = _text(now._replace(first_offset=first, last_offset=last))
            return (
                f"{left} below the start offset {snapshot.start_offset} does not follow from {_said(was, first, last)}"
            )
    return None


def _first_break(before: SharePartition, snapshot: ShareSnapshot) -> int | None:
    """Return the first offset whose record does not go on; None if all do."""
    start = snapshot.start_offset
    cells = _cells(from_offset(before.in_flight, start), from_offset(snapshot.batches, start))
    return next((first for first, _, was, now in cells if not _goes_on(was, now)), None)


def _goes_on(was: InFlightBatch | None, now: InFlightBatch | None) -> bool:
    if was is None:
        return now is None or _is_new(now)
    if now is None or now.delivery_state not in _NEXT[was.delivery_state]:
        return False
    if was.delivery_state.is_final:
        return was.delivery_count == now.delivery_count
    return _attempts_before(was) <= _attempts_before(now) <= was.delivery_count


def _is_new(run: InFlightBatch) -> bool:
    """Return whether this micro-batch acquired it, for the first time."""
    return run.delivery_state is _ACQUIRED and run.delivery_count == 1 and run.doubt is Doubt.NONE


def _attempts_before(run: InFlightBatch) -> int:
    return run.delivery_count - (run.delivery_state is _ACQUIRED)


def _cells(before: Runs, after: Runs) -> Iterator[tuple[int, int, InFlightBatch | None, InFlightBatch | None]]:
    """Yield ranges of offsets of one run, or none, in either of both: (first, last, run before, run after)."""
    edges = sorted({edge for run in (*before, *after) for edge in (run.first_offset, run.last_offset + 1)})
    for first, end in pairwise(edges):
        was, now = run_at(before, first), run_at(after, first)
        if was is not None or now is not None:
            yield first, end - 1, was, now


def _said(run: InFlightBatch | None, first: int, last: int) -> str:
    return "nothing" if run is None else _text(run._replace(first_offset=first, last_offset=last))


def _text(run: InFlightBatch) -> str:
    return f"{run.first_offset}-{run.last_offset} {run.delivery_state.name.capitalize()} ({run.delivery_count})"
