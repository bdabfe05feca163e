"""The hand-overs to one companion process, and which of their offsets have no answer yet.

In the frequent case only numbers are kept up to date: an answer costs one look-up. The offsets themselves are compared
once a process has died.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.companion.messages import RecordAnswer
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import offsets_in
from share_spark.model.ids import TopicPartition


class Unanswered(NamedTuple):
    """An offset in hand-over ``number`` that has no answer."""

    number: int
    at: TopicPartition
    offset: int
    delivery_count: int


@dataclass(slots=True)
class _HandOver:
    acquired: Sequence[AcquiredSpan]
    left: int
    answers: list[RecordAnswer] = field(default_factory=list)


@dataclass(slots=True)
class HandOvers:
    """Hand-overs by their numbers. ``in_flight``: offsets without an answer."""

    in_flight: int = 0
    _open: dict[int, _HandOver] = field(default_factory=dict)
    _answered: list[int] = field(default_factory=list)

    def add(self, number: int, acquired: Sequence[AcquiredSpan]) -> None:
        """Add what is handed over now."""
        offsets = sum(offsets_in(one.ranges) for one in acquired)
        self._open[number] = _HandOver(acquired, offsets)
        self.in_flight += offsets

    def note(self, answers: Iterable[RecordAnswer]) -> list[RecordAnswer]:
        """Note answers that have come, and return them without those of hand-overs that were forgotten."""
        found = []
        for answer in answers:
            one = self._open.get(answer.number)
            if one is None:
                continue
            offsets = answer.last_offset - answer.first_offset + 1
            one.left -= offsets
            self.in_flight -= offsets
            one.answers.append(answer)
            found.append(answer)
            if not one.left:
                del self._open[answer.number]
                self._answered.append(answer.number)
        return found

    def take_answered(self) -> tuple[int, ...]:
        """Return the hand-overs of which all offsets were answered since the last call."""
        found, self._answered = tuple(self._answered), []
        return found

    def forget(self) -> tuple[int, ...]:
        """Forget what is in flight; return its hand-overs."""
        found = tuple(self._open)
        self._open.clear()
        self.in_flight = 0
        return found

    def unanswered(self) -> Iterator[Unanswered]:
        """Yield the offsets that have no answer."""
        for number, one in self._open.items():
            answered = {
                (answer.at, offset)
                for answer in one.answers
                for offset in range(answer.first_offset, answer.last_offset + 1)
            }
            for at, offset, count in _each(one.acquired):
                if (at, offset) not in answered:
                    yield Unanswered(number, at, offset, count)


def _each(acquired: Iterable[AcquiredSpan]) -> Iterator[tuple[TopicPartition, int, int]]:
    for one in acquired:
        for first, last, count in one.ranges.tolist():
            yield from ((one.partition, offset, count) for offset in range(first, last + 1))
