"""Sorted, disjoint runs of offsets: overlay, cut, look up. Every function is one sweep, or a bisection and a slice.

    offsets    100       110       120       130
    base       [A1-------------------][V1----]         A: Acquired, V: Available, the digit is the delivery count
    changes         [D1------]              [A2-----]  D: Acknowledged
    overlay    [A1-][D1------][A1----][V1--][A2-----]

Runs are canonical: two that touch differ in state, counts, member, deadline or suspicion. ``overlay`` keeps them so,
hence a state that was changed in three steps equals the state changed by the sum of the steps.

Each function takes both forms of runs, tuples and ``Columns``, and gives columns where it was given columns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.partition import columns
from share_spark.partition.columns import Row, as_columns, is_columns

_first = itemgetter(0)
_last = itemgetter(1)

Runs = Sequence[InFlightBatch]


def overlay(base: Runs, changes: Runs) -> Runs:
    """Replace the offsets of ``base`` that ``changes`` cover by them. Both are sorted and disjoint."""
    if not changes or not base:
        return join(changes or base)
    if is_columns(base) or is_columns(changes):
        return columns.overlay(as_columns(base), as_columns(changes))
    if base[-1].last_offset < changes[0].first_offset:
        return _append(base, changes)
    # Only base[begin:end] is swept; the rest is copied as a slice. One run more on each side, as the outermost
    # change may join with the run that it touches.
    begin = bisect_left(base, changes[0].first_offset, key=_last)
    end = bisect_right(base, changes[-1].last_offset, key=_first)
    begin, end = max(begin - 1, 0), min(end + 1, len(base))
    out = list(base[:begin])
    out += _joined(_replace(base[begin:end], changes))
    out += base[end:]
    return out


def _append(base: Runs, changes: Runs) -> list[InFlightBatch]:
    """Do the frequent case of ``overlay``: all changes lie past the base."""
    out = list(base[:-1])
    out += _joined([base[-1], *changes])
    return out


def _replace(base: Runs, changes: Runs) -> list[InFlightBatch]:
    """Do the sweep of ``overlay``; what touches is not joined yet.

    ``run`` is the run of ``base`` that the sweep is in, ``at`` where the part of it begins that is not yet put out:

        run           [-----------------------]
        change             [-----]
        put out       [---][-----]
        at                        ^

    A run of which nothing was cut is put out as it is, without building a new tuple.
    """
    out: list[InFlightBatch] = []
    add = out.append
    rest = iter(base)
    run = next(rest, None)
    at = run.first_offset if run else 0
    for change in changes:
        first, last = change.first_offset, change.last_offset
        while run is not None and run.last_offset < first:
            add(run if at == run.first_offset else InFlightBatch(at, *run[1:]))
            run = next(rest, None)
            at = run.first_offset if run else 0
        if run is not None and at < first:
            add(InFlightBatch(at, first - 1, *run[2:]))
        add(change)
        # Runs that end inside the change are replaced by it, and so is the beginning of the one that reaches past it.
        while run is not None and run.last_offset <= last:
            run = next(rest, None)
            at = run.first_offset if run else 0
        if at <= last:
            at = last + 1
    if run is not None:
        add(run if at == run.first_offset else InFlightBatch(at, *run[1:]))
        out.extend(rest)
    return out


def join(runs: Runs) -> Runs:
    """Join touching runs of equal state, counts, member, deadline and suspicion."""
    return columns.joined(runs) if is_columns(runs) else _joined(runs)


def _joined(runs: Runs) -> list[InFlightBatch]:
    out: list[InFlightBatch] = []
    if not runs:
        return out
    add = out.append
    held = runs[0]
    for run in runs[1:]:
        if (
            held.delivery_state is run.delivery_state
            and held.delivery_count == run.delivery_count
            and held.last_offset + 1 == run.first_offset
            and held.lock_deadline_ms == run.lock_deadline_ms
            and held.member_id == run.member_id
            and held.doubt == run.doubt
            and held.excused == run.excused
        ):
            held = InFlightBatch(held.first_offset, *run[1:])
        else:
            add(held)
            held = run
    add(held)
    return out


def from_offset(runs: Runs, offset: int) -> Runs:
    """Return what of ``runs`` lies at or above ``offset``."""
    if is_columns(runs):
        return columns.from_offset(runs, offset)
    begin = bisect_left(runs, offset, key=_last)
    out = list(runs[begin:])
    if out and out[0].first_offset < offset:
        out[0] = out[0]._replace(first_offset=offset)
    return out


def below_offset(runs: Runs, offset: int) -> Runs:
    """Return what of ``runs`` lies below ``offset``."""
    if is_columns(runs):
        return columns.below_offset(runs, offset)
    out = list(runs[: bisect_left(runs, offset, key=_first)])
    if out and out[-1].last_offset >= offset:
        out[-1] = out[-1]._replace(last_offset=offset - 1)
    return out


def without_finished_below(runs: Runs, offset: int) -> Runs:
    """Leave out what lies below ``offset``, except Acquired runs: they stay with their owner (R25).

        runs     [D][A------][V--][A------][V------]
        offset                        ^
        result      [A------]     [A------][V------]

    An Acquired run that straddles ``offset`` stays whole, any other is cut.
    """
    if not runs or runs[0].first_offset >= offset:
        return runs
    if is_columns(runs):
        return columns.raised(runs, offset, lambda run: run.delivery_state is DeliveryState.ACQUIRED)
    begin = bisect_left(runs, offset, key=_last)
    kept = [run for run in runs[:begin] if run.delivery_state is DeliveryState.ACQUIRED]
    tail = list(runs[begin:])
    if tail and tail[0].first_offset < offset and tail[0].delivery_state is not DeliveryState.ACQUIRED:
        tail[0] = tail[0]._replace(first_offset=offset)
    return kept + tail


def chosen(ranges: Sequence[Row], is_wanted: Callable[[Row], bool]) -> Sequence[Row]:
    """Return the ranges that are wanted; ``is_wanted`` goes by anything but the offsets."""
    if not is_columns(ranges):
        return [one for one in ranges if is_wanted(one)]
    are_wanted = [is_wanted(sample) for sample in ranges.samples]
    return ranges if all(are_wanted) else ranges.where(ranges.by_kind(are_wanted, bool))


def is_locked(run: InFlightBatch, now_ms: float) -> bool:
    """Return whether nobody may acquire ``run`` yet: it is held or delayed. A lock ends *at* its deadline."""
    return run.lock_deadline_ms is not None and run.lock_deadline_ms > now_ms


def samples(ranges: Sequence[Row]) -> Sequence[Row]:
    """Return the ranges; of columns, one for all that differ only in their offsets, with any offsets."""
    return ranges.samples if is_columns(ranges) else ranges


def offsets_by_kind(ranges: Sequence[Row]) -> Iterator[tuple[Row, int]]:
    """Yield (range, number of offsets) of each; of columns, once for all that differ only in their offsets."""
    if is_columns(ranges):
        return zip(ranges.samples, ranges.totals(), strict=True)
    return ((found, found[1] - found[0] + 1) for found in ranges)


def first_unfinished(runs: Runs) -> int | None:
    """Return the first offset whose state is not final."""
    if is_columns(runs):
        open_runs = runs.first[runs.mask(lambda run: not run.delivery_state.is_final)]
        return int(open_runs[0]) if len(open_runs) else None
    return next((run.first_offset for run in runs if not run.delivery_state.is_final), None)


def pieces(runs: Runs, first: int, last: int) -> Iterator[InFlightBatch]:
    """Yield the runs inside ``first..last``, cut at its ends."""
    if is_columns(runs):
        yield from columns.between(runs, first, last)
        return
    for index in range(bisect_left(runs, first, key=_last), len(runs)):
        run = runs[index]
        if run.first_offset > last:
            return
        if run.first_offset < first or run.last_offset > last:
            run = run._replace(first_offset=max(run.first_offset, first), last_offset=min(run.last_offset, last))
        yield run


def holes(ranges: Sequence[Row], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the parts of ``first..last`` that none of ``ranges`` covers, ascending."""
    at = first
    for index in range(bisect_left(ranges, first, key=_last), len(ranges)):
        begin, end = ranges[index][:2]
        if begin > last:
            break
        if at < begin:
            yield at, begin - 1
        at = end + 1
    if at <= last:
        yield at, last


def run_at(runs: Runs, offset: int) -> InFlightBatch | None:
    """Return the run that holds ``offset``, if any."""
    index = bisect_left(runs, offset, key=_last)
    return runs[index] if index < len(runs) and runs[index].first_offset <= offset else None
