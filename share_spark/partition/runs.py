"""Sorted, disjoint runs of offsets: overlay, clip, look up. Every function is one sweep, or a bisection and a slice.

Runs are canonical: two that touch differ in state, count, member, deadline or suspicion. ``overlay`` keeps them so,
hence a state that was changed in three steps equals the state changed by the sum of the steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter

from share_spark.model.records import DeliveryState, InFlightBatch

_first = itemgetter(0)
_last = itemgetter(1)

Runs = Sequence[InFlightBatch]


def overlay(base: Runs, changes: Runs) -> list[InFlightBatch]:
    """``base`` with the offsets that ``changes`` cover replaced by them. Both sorted and disjoint."""
    if not changes or not base:
        return join(changes or base)
    if base[-1][1] < changes[0][0]:
        return _append(base, changes)
    begin = bisect_left(base, changes[0][0], key=_last)
    end = bisect_right(base, changes[-1][1], key=_first)
    begin, end = max(begin - 1, 0), min(end + 1, len(base))
    out = list(base[:begin])
    out += join(_replace(base[begin:end], changes))
    out += base[end:]
    return out


def _append(base: Runs, changes: Runs) -> list[InFlightBatch]:
    """The frequent case of ``overlay``: all changes lie past the base."""
    out = list(base[:-1])
    out += join([base[-1], *changes])
    return out


def _replace(base: Runs, changes: Runs) -> list[InFlightBatch]:
    """The sweep of ``overlay``; what touches is not joined yet. ``at``: where the rest of ``run`` begins."""
    out: list[InFlightBatch] = []
    add = out.append
    rest = iter(base)
    run = next(rest, None)
    at = run[0] if run else 0
    for change in changes:
        first, last = change[0], change[1]
        while run is not None and run[1] < first:
            add(run if at == run[0] else InFlightBatch(at, *run[1:]))
            run = next(rest, None)
            at = run[0] if run else 0
        if run is not None and at < first:
            add(InFlightBatch(at, first - 1, *run[2:]))
        add(change)
        while run is not None and run[1] <= last:
            run = next(rest, None)
            at = run[0] if run else 0
        if at <= last:
            at = last + 1
    if run is not None:
        add(run if at == run[0] else InFlightBatch(at, *run[1:]))
        out.extend(rest)
    return out


def join(runs: Runs) -> list[InFlightBatch]:
    """The same offsets with touching runs of equal state, count, member, deadline and suspicion made one."""
    out: list[InFlightBatch] = []
    if not runs:
        return out
    add = out.append
    held = runs[0]
    for run in runs[1:]:
        if (
            held[2] is run[2]
            and held[3] == run[3]
            and held[1] + 1 == run[0]
            and held[5] == run[5]
            and held[4] == run[4]
            and held[6] == run[6]
        ):
            held = InFlightBatch(held[0], *run[1:])
        else:
            add(held)
            held = run
    add(held)
    return out


def from_offset(runs: Runs, offset: int) -> list[InFlightBatch]:
    """What of ``runs`` lies at or above ``offset``."""
    begin = bisect_left(runs, offset, key=_last)
    out = list(runs[begin:])
    if out and out[0][0] < offset:
        out[0] = out[0]._replace(first_offset=offset)
    return out


def below_offset(runs: Runs, offset: int) -> list[InFlightBatch]:
    """What of ``runs`` lies below ``offset``."""
    out = list(runs[: bisect_left(runs, offset, key=_first)])
    if out and out[-1][1] >= offset:
        out[-1] = out[-1]._replace(last_offset=offset - 1)
    return out


def without_finished_below(runs: Runs, offset: int) -> list[InFlightBatch]:
    """``runs`` without what lies below ``offset``, save Acquired ones: they stay with their owner (R25)."""
    if not runs or runs[0][0] >= offset:
        return list(runs)
    begin = bisect_left(runs, offset, key=_last)
    kept = [run for run in runs[:begin] if run[2] is DeliveryState.ACQUIRED]
    tail = list(runs[begin:])
    if tail and tail[0][0] < offset and tail[0][2] is not DeliveryState.ACQUIRED:
        tail[0] = tail[0]._replace(first_offset=offset)
    return kept + tail


def pieces(runs: Runs, first: int, last: int) -> Iterator[InFlightBatch]:
    """The runs inside ``first..last``, cut at its ends."""
    for index in range(bisect_left(runs, first, key=_last), len(runs)):
        run = runs[index]
        if run[0] > last:
            return
        if run[0] < first or run[1] > last:
            run = run._replace(first_offset=max(run[0], first), last_offset=min(run[1], last))
        yield run


def run_at(runs: Runs, offset: int) -> InFlightBatch | None:
    """The run that holds ``offset``, if any."""
    index = bisect_left(runs, offset, key=_last)
    return runs[index] if index < len(runs) and runs[index][0] <= offset else None
