"""The effects of a request, gathered while it is worked on: changed runs, and the figures of the response."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from share_spark.model.errors import ErrorCode
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch
from share_spark.model.requests import AcquiredRange, ArchivedRange, PartitionResponse
from share_spark.partition.columns import Columns, concatenated, in_best_form, intersection, is_columns, joined
from share_spark.partition.runs import Runs, pieces
from share_spark.partition.transitions import ACKNOWLEDGED_TO, EVENTS, Event, archive_reason, next_state

_AVAILABLE = DeliveryState.AVAILABLE
_ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED
_ARCHIVED = DeliveryState.ARCHIVED


class RequestEffects:
    """Changed runs in offset order, and counts of offsets by what became of them."""

    __slots__ = ("_max_delivery_count", "accepted", "archived", "changes", "not_entered", "released", "throttled")

    def __init__(self, max_delivery_count: int) -> None:
        self._max_delivery_count = max_delivery_count
        self.changes: list[InFlightBatch] = []
        self.archived: list[ArchivedRange] = []
        self.not_entered: list[AcquiredRange] = []
        self.throttled: list[AcquiredRange] = []
        self.accepted = 0
        self.released = 0

    def end_attempt(self, run: InFlightBatch, event: Event, doubt: Doubt = Doubt.NONE) -> None:
        """Put ``run``, whose owner is done with it, or whose records are gone, into its next state.

        ``doubt``: the one it has if that is Available.
        """
        target = next_state(run.delivery_state, event, run.counted, self._max_delivery_count)
        assert target is not None, (run, event)
        self._note(run.first_offset, run.last_offset, target, run.delivery_count, event, doubt, run.excused)

    def is_overdue(self, run: InFlightBatch) -> bool:
        """Return whether ``run`` has had twice the attempts that the limit allows."""
        return run.delivery_count >= 2 * self._max_delivery_count

    def excuse(self, run: InFlightBatch, doubt: Doubt) -> None:
        """Make ``run`` Available: it was delivered, and this does not count towards the delivery limit."""
        first, last, count, excused = run.first_offset, run.last_offset, run.delivery_count, run.excused + 1
        self._note(first, last, _AVAILABLE, count, Event.RELEASE, doubt, excused)

    def take_back(self, run: InFlightBatch, doubt: Doubt) -> None:
        """Make ``run`` Available as if it had not been acquired: the handler never had it."""
        self.not_entered.append(self._taken_back(run, doubt))

    def throttle(self, run: InFlightBatch, doubt: Doubt) -> None:
        """Do as ``take_back``: the handler had it, and was asked to wait."""
        self.throttled.append(self._taken_back(run, doubt))

    def _taken_back(self, run: InFlightBatch, doubt: Doubt) -> AcquiredRange:
        first, last, count = run.first_offset, run.last_offset, run.delivery_count
        self.changes.append(InFlightBatch(first, last, _AVAILABLE, count - 1, None, None, doubt, run.excused))
        return AcquiredRange(first, last, count)

    def acknowledge(self, first: int, last: int, count: int, excused: int, ack_type: int) -> None:
        """Do as ``end_attempt``, for part of an Acquired run; the hot path of a large request."""
        target = ACKNOWLEDGED_TO[ack_type]
        if target is _ACKNOWLEDGED:
            self.changes.append(InFlightBatch(first, last, target, count))
            self.accepted += last - first + 1
            return
        if target is _AVAILABLE and count - excused >= self._max_delivery_count:
            target = _ARCHIVED
        self._note(first, last, target, count, EVENTS[ack_type], Doubt.NONE, excused)

    def _note(
        self, first: int, last: int, target: DeliveryState, count: int, event: Event, doubt: Doubt, excused: int
    ) -> None:
        if target is _AVAILABLE:
            self.changes.append(InFlightBatch(first, last, target, count, None, None, doubt, excused))
            self.released += last - first + 1
            return
        self.changes.append(InFlightBatch(first, last, target, count))
        if target is _ACKNOWLEDGED:
            self.accepted += last - first + 1
        else:
            self._archive(first, last, count, event)

    def _archive(self, first: int, last: int, count: int, event: Event) -> None:
        reason = archive_reason(event)
        held = self.archived[-1] if self.archived else None
        if held and held.last_offset + 1 == first and held.delivery_count == count and held.reason is reason:
            first = held.first_offset
            self.archived.pop()
        self.archived.append(ArchivedRange(first, last, count, reason))

    def response(self, error: ErrorCode = ErrorCode.NONE, acquired: Sequence[AcquiredRange] = ()) -> PartitionResponse:
        return PartitionResponse(
            error=error,
            acquired=acquired,
            archived=tuple(self.archived),
            accepted=self.accepted,
            released=self.released,
            ended=tuple(self.changes),
            not_entered=tuple(self.not_entered),
            throttled=tuple(self.throttled),
        )


Ended = Sequence[tuple[InFlightBatch, Any]]
"""(run, how) of attempts that end, ascending; a list or ``Columns``."""

Rule = Callable[[RequestEffects, InFlightBatch, Any], None]
"""A function that notes the effects of the end of one attempt, always with exactly one changed run."""

Row = TypeVar("Row", bound=tuple[Any, ...])


def response_to(ended: Ended, rule: Rule, max_delivery_count: int) -> PartitionResponse:
    """Return what ``rule`` says of each attempt; of columns, it is asked once for each kind of attempt."""
    if is_columns(ended):
        return _response_by_kind(ended, [_response([sample], rule, max_delivery_count) for sample in ended.samples])
    return _response(ended, rule, max_delivery_count)


def _response(ended: Ended, rule: Rule, max_delivery_count: int) -> PartitionResponse:
    outcome = RequestEffects(max_delivery_count)
    for run, how in ended:
        rule(outcome, run, how)
    return outcome.response()


def _response_by_kind(ended: Columns[Any], samples: Sequence[PartitionResponse]) -> PartitionResponse:
    """Sum up the responses, from the one to a single offset of each kind."""
    totals = ended.totals()

    def ranges(row: type[Row], found: Sequence[Sequence[Row]]) -> Columns[Row]:
        return ended.recoded(row, [one[0][2:] if one else None for one in found])

    def offsets(found: Iterable[int]) -> int:
        return sum(total * each for total, each in zip(totals, found, strict=True))

    return PartitionResponse(
        archived=in_best_form(joined(ranges(ArchivedRange, [one.archived for one in samples]))),
        accepted=offsets(one.accepted for one in samples),
        released=offsets(one.released for one in samples),
        ended=in_best_form(ranges(InFlightBatch, [one.ended for one in samples])),
        not_entered=in_best_form(ranges(AcquiredRange, [one.not_entered for one in samples])),
        throttled=in_best_form(ranges(AcquiredRange, [one.throttled for one in samples])),
    )


def ending(first: int, last: int, *fields: Any) -> tuple[InFlightBatch, Any]:
    """Make a row of ``Ended`` in columns: how the attempt ends is the last field."""
    return InFlightBatch(first, last, *fields[:-1]), fields[-1]


def ended_all(runs: Runs, how: Any) -> Ended:
    """Return ``runs``, which all end in the same way, as ``Ended``."""
    if is_columns(runs):
        return runs.recoded(ending, [(*kind, how) for kind in runs.kinds])
    return [(run, how) for run in runs]


def ended_inside(runs: Runs, ranges: Sequence[tuple[int, int, Any]]) -> Ended:
    """Return what of ``runs`` lies inside ``ranges`` (first, last, how)."""
    if is_columns(runs) and is_columns(ranges):
        return intersection(ending, runs, ranges)
    return [(run, how) for first, last, how in ranges for run in pieces(runs, first, last)]


def both(one: Ended, other: Ended) -> Ended:
    """Return ``one`` and then ``other``."""
    if is_columns(one) and is_columns(other):
        return concatenated(one, other)
    return [*one, *other]
