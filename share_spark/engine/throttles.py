"""The time for which a service has throttled each record. A throttled attempt is taken back, so no delivery limit ends
it: a record that is throttled for too long is rejected instead.

    now_ms       0           60,000      120,000     180,000          with a limit of 120,000 ms
    answer       throttled   throttled   throttled   throttled
    since_ms     0           0           0           -
    answer of                                        rejected: "throttled for longer than 2 m ..."
    the engine
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.engine.answers import has_any
from share_spark.engine.attempts import ErrorRun, cut_by_error
from share_spark.engine.delivery_port import AcknowledgedSpan, AcknowledgedSpans
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import AcknowledgeType, AnsweredRange, Loss
from share_spark.partition.columns import (
    Columns,
    Row,
    as_columns,
    in_best_form,
    intersection,
    joined,
    merged,
    outside,
    total_offsets,
)

MOST_RANGES = 100_000
"""The most ranges that an engine remembers. Beyond that a throttle is forgotten, and the next one counts as the first
of its record."""

_WAITING = (Loss.THROTTLED, Loss.NOT_ENTERED)
"""Answers after which a record waits as before."""

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


class ThrottledRange(NamedTuple):
    """Records that have been throttled since ``since_ms``, and not been answered otherwise after that."""

    first_offset: int
    last_offset: int
    since_ms: int


@dataclass(slots=True)
class Throttles:
    """The throttled records of one engine, as far as it has seen them itself: the next engine begins anew, so a record
    may be throttled for longer by several of them. ``ranges``: ascending and disjoint."""

    ranges: dict[SharePartitionKey, Columns[ThrottledRange]] = field(default_factory=dict)

    def bounded(self, answers: AcknowledgedSpans, now_ms: int, most_ms: int) -> AcknowledgedSpans:
        """Take in the answers of a delivery. Return them with those records rejected that have been throttled for
        longer than ``most_ms``."""
        if not self.ranges and not any(has_any(span, (Loss.THROTTLED,)) for span in answers.values()):
            return answers
        return {key: self._bounded(key, span, now_ms, most_ms) for key, span in answers.items()}

    @property
    def records(self) -> int:
        """The number of records that are throttled now. From any thread."""
        return sum(map(total_offsets, [*self.ranges.values()]))

    def forget(self) -> None:
        """Forget all records: there may be others at their offsets."""
        self.ranges.clear()

    def _bounded(self, key: SharePartitionKey, span: AcknowledgedSpan, now_ms: int, most_ms: int) -> AcknowledgedSpan:
        if not span.ranges or not (key in self.ranges or has_any(span, (Loss.THROTTLED,))):
            return span
        found, known = as_columns(span.ranges), self.ranges.pop(key, _NOTHING)
        throttled = found.where(found.mask(lambda one: one.answer == Loss.THROTTLED))
        settled = found.where(found.mask(lambda one: one.answer not in _WAITING))
        again = intersection(_since, known, throttled)
        too_old = joined(again.where(again.mask(lambda one: now_ms - one.since_ms > most_ms)))
        first_time = _without(throttled, known).recoded(ThrottledRange, [(now_ms,)] * len(throttled.kinds))
        left = joined(merged(_without(_without(known, settled), too_old), first_time))
        if left and sum(map(len, self.ranges.values())) + len(left) <= MOST_RANGES:
            self.ranges[key] = left
        return _rejected(span, too_old, most_ms) if too_old else span


_NOTHING: Columns[ThrottledRange] = as_columns([ThrottledRange(0, 0, 0)]).where(slice(0, 0))


def _since(first: int, last: int, since_ms: int, _answer: int) -> ThrottledRange:
    return ThrottledRange(first, last, since_ms)


def _without(base: Columns[Row], changes: Columns[ThrottledRange] | Columns[AnsweredRange]) -> Columns[Row]:
    return outside(base, changes) if base and changes else base


def _rejected(span: AcknowledgedSpan, too_old: Columns[ThrottledRange], most_ms: int) -> AcknowledgedSpan:
    """Return the answers with ``too_old`` rejected; the last text of the service is part of the error."""
    rejected = too_old.recoded(AnsweredRange, [(int(AcknowledgeType.REJECT),)] * len(too_old.kinds))
    found, errors, delays = as_columns(span.ranges), span.errors, span.delays
    others = list(_without(as_columns(errors), too_old)) if errors else []
    return span._replace(
        ranges=in_best_form(joined(merged(_without(found, too_old), rejected))),
        errors=sorted([*others, *_errors(rejected, errors, most_ms)]),
        delays=tuple(_without(as_columns(delays), too_old)) if delays else (),
    )


def _errors(rejected: Sequence[AnsweredRange], said: Sequence[ErrorRun], most_ms: int) -> Iterator[ErrorRun]:
    text = f"throttled for longer than {_shown(most_ms)} (delivery.throttle.max.age)"
    for found in rejected:
        for first, last, error in cut_by_error(found.first_offset, found.last_offset, said):
            yield ErrorRun(first, last, text if error is None else f"{text}: {error}")


def _shown(duration_ms: int) -> str:
    """Return ``1 h``, or whichever unit gives a whole number."""
    unit = next(unit for unit, each_ms in _UNITS_MS.items() if duration_ms % each_ms == 0)
    return f"{duration_ms // _UNITS_MS[unit]} {unit}"
