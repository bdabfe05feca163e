"""Attempts that end without an acknowledgement: what is charged, and how a record that brings engines down is found.

The delivery count is the number of times a handler was entered with a record. So an attempt that never reached the
handler is taken back, and one that did is counted, however it ended. One exception: an attempt that a service has
throttled is taken back as well.

The delivery limit is about failures alone. An attempt that ended because of an engine, a worker or another record is
excused: it stays in the delivery count, and does not count towards the limit (``InFlightBatch.excused``). What counts
is a failure that the handler answers with, and a death that only this record can have caused.

A record that is known to have been in the handler when its worker or engine died is ACCUSED, and runs by itself from
then on. This first death is excused, as others may have been in a handler at the same time, or the machine was the
cause. If an engine dies again, and it was the only one in a handler, that counts as a failure. So a record that does
nothing but end engines is archived by the death after as many as the limit.

Where nothing is known (the machine is gone, and with it the trace that its workers kept) all that was in flight comes
back together, once. Only if the next engine dies with it too does a search begin, over the suspects of all
share-partitions (``engine.planning``). Each arrow is one more lost attempt of which no trace is left:

    in flight          unknown          unknown             unknown                 unknown
    NONE ------------> LOST_ONCE -----> LOST_TWICE -------> LOST_IN_PIECE --------> ACCUSED, ALONE
    with all others    with all others  N^(2/3) at a time   √ of that at a time     one at a time

The search for one record (X) among N = 27, in ∛N = 3 pieces at each step:

    LOST_TWICE      [.........][.......X.][.........]    27 suspects, 9 at a time: the second piece is lost
    LOST_IN_PIECE               [...][...][.X.]           9 suspects, 3 at a time: the third piece is lost
    ACCUSED                               [.][X]          3 suspects, one at a time

Pieces of which the handler was done are settled and leave the search. So the one among N is found after five deaths and
3·∛N micro-batches at most; the fifth is the first that counts. A crash archives a record only if it was alone in it,
and only at the delivery limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from share_spark.model.records import Doubt, InFlightBatch
from share_spark.model.requests import Loss, Trace, TracedRange
from share_spark.partition.request_effects import Ended, RequestEffects, ended_all
from share_spark.partition.runs import Runs, samples
from share_spark.partition.transitions import Event

_last = itemgetter(1)

NEXT_DOUBT: Mapping[Doubt, Doubt] = {
    Doubt.NONE: Doubt.LOST_ONCE,
    Doubt.LOST_ONCE: Doubt.LOST_TWICE,
    Doubt.LOST_TWICE: Doubt.LOST_IN_PIECE,
    Doubt.LOST_IN_PIECE: Doubt.ACCUSED,
    Doubt.ACCUSED: Doubt.ACCUSED,
    Doubt.ALONE: Doubt.ACCUSED,
}
"""The doubt of the next attempt, by that of one that was lost without a trace."""

Lost = tuple[InFlightBatch, Loss]


def lose(outcome: RequestEffects, run: InFlightBatch, loss: Loss) -> None:
    """End an attempt of an Acquired run."""
    match loss:
        case Loss.NOT_ENTERED:
            outcome.take_back(run, _waiting(run.doubt))
        case Loss.THROTTLED:
            # The doubt stays: the handler did not come to its work, which may be what ends engines.
            outcome.throttle(run, _waiting(run.doubt))
        case Loss.FINISHED:
            # The handler had it, and another record ended the worker.
            outcome.excuse(run, Doubt.NONE)
        case Loss.AMONG_OTHERS:
            outcome.excuse(run, Doubt.ACCUSED)
        case Loss.IN_HANDLER if run.doubt >= Doubt.ACCUSED:
            # It ran by itself, so no other record can be the cause: the delivery limit applies.
            outcome.end_attempt(run, Event.LOCK_EXPIRED, Doubt.ACCUSED)
        case Loss.IN_HANDLER:
            outcome.excuse(run, Doubt.ACCUSED)
        case Loss.UNKNOWN | Loss.AFTER_HANDLER:
            _lose_unknown(outcome, run, loss)


def _lose_unknown(outcome: RequestEffects, run: InFlightBatch, loss: Loss) -> None:
    """End an attempt of which nothing is known, or that had left the handler.

    A record that was alone is the only one that can have caused the loss. If it had left the handler, it is taken for
    the cause only from twice the limit on, and then of all that was excused as well, so that it is archived: a record
    can bring its engine down after the handler as well, for example by the size of its output.
    """
    is_alone = run.doubt is Doubt.ALONE
    if is_alone and loss is Loss.UNKNOWN:
        outcome.end_attempt(run, Event.LOCK_EXPIRED, Doubt.ACCUSED)
    elif is_alone and outcome.is_overdue(run):
        outcome.end_attempt(run._replace(excused=0), Event.LOCK_EXPIRED, Doubt.ACCUSED)
    else:
        outcome.excuse(run, NEXT_DOUBT[run.doubt])


def _waiting(doubt: Doubt) -> Doubt:
    """Return the doubt of an Available record that had this one while it was Acquired."""
    return Doubt.ACCUSED if doubt is Doubt.ALONE else doubt


def traced(ended: Runs, traces: Sequence[Trace]) -> Ended:
    """Return how the attempts of members that have ended were lost, as far as they have left a trace.

    An entry with another delivery count is of an earlier attempt.
    """
    entered: dict[str | None, Sequence[TracedRange]] = {trace.member_id: trace.entered for trace in traces}
    if not any(run.member_id in entered for run in samples(ended)):
        return ended_all(ended, Loss.UNKNOWN)
    return list(_traced(ended, entered))


def _traced(ended: Runs, entered: Mapping[str | None, Sequence[TracedRange]]) -> Iterator[Lost]:
    for run in ended:
        if run.member_id in entered:
            yield from _cut(run, entered[run.member_id])
        else:
            yield run, Loss.UNKNOWN


def _cut(run: InFlightBatch, entered: Sequence[TracedRange]) -> Iterator[Lost]:
    """Cut ``run`` into pieces, by the trace.

    run       |--------------------------------|
    entered      |-----|   |--|      |-------------|
    yielded   |--|-----|---|--|------|----------|
    """
    at = run.first_offset
    for traced_range in _overlapping(run, entered):
        first, last = max(at, traced_range.first_offset), min(run.last_offset, traced_range.last_offset)
        if at < first:
            yield run._replace(first_offset=at, last_offset=first - 1), Loss.NOT_ENTERED
        yield run._replace(first_offset=first, last_offset=last), traced_range.loss
        at = last + 1
    if at <= run.last_offset:
        yield run._replace(first_offset=at), Loss.NOT_ENTERED


def _overlapping(run: InFlightBatch, entered: Sequence[TracedRange]) -> Iterator[TracedRange]:
    for index in range(bisect_left(entered, run.first_offset, key=_last), len(entered)):
        if entered[index].first_offset > run.last_offset:
            return
        # A ledger that an earlier engine left may name the same offsets, with the count of that attempt.
        if entered[index].delivery_count == run.delivery_count:
            yield entered[index]


def suspects(runs: Sequence[InFlightBatch], doubt: Doubt, most: int) -> Iterator[InFlightBatch]:
    """Yield the first ``most`` Available records of this doubt, ascending."""
    for run in runs:
        if run.doubt is doubt and run.member_id is None:
            yield run._replace(last_offset=min(run.last_offset, run.first_offset + most - 1))
            most -= run.last_offset - run.first_offset + 1
            if most <= 0:
                return
