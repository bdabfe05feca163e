"""The hand-overs to one companion process, and which of their offsets have no answer yet.

In the frequent case only numbers are kept up to date: an answer costs one look-up. The offsets themselves are compared
once a process has died.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


@dataclass(slots=True)
class _HandOver:
    """``left``: offsets without an answer. ``ends``: where logs were truncated (exclusive): what was acquired from
    there on is of no interest any more."""

    acquired: Sequence[AcquiredSpan]
    left: int
    answers: list[RecordAnswer] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def kept(self, answer: RecordAnswer) -> RecordAnswer | None:
        """Return what of an answer is of interest, None if nothing is."""
        last = min(answer.last_offset, self.ends.get(answer.at, answer.last_offset + 1) - 1)
        return answer._replace(last_offset=last) if last >= answer.first_offset else None

    def unanswered(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield (where, offset) of what has no answer."""
        answered = {
            (answer.at, offset)
            for answer in self.answers
            for offset in range(answer.first_offset, answer.last_offset + 1)
        }
        for at, offset in _each(self.acquired):
            if (at, offset) not in answered and offset < self.ends.get(at, offset + 1):
                yield at, offset


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
        """Note answers that have come, and return those that are of interest."""
        found = []
        for answer in answers:
            one = self._open.get(answer.number)
            kept = answer if one is None or not one.ends else one.kept(answer)
            if one is None or kept is None:
                continue
            one.answers.append(kept)
            found.append(kept)
            self._count(kept.number, one, kept.last_offset - kept.first_offset + 1)
        return found

    def _count(self, number: int, one: _HandOver, offsets: int) -> None:
        """Count offsets that need no answer any more."""
        one.left -= offsets
        self.in_flight -= offsets
        if not one.left:
            del self._open[number]
            self._answered.append(number)

    def take_answered(self) -> tuple[int, ...]:
        """Return the hand-overs of which all offsets were answered since the last call."""
        found, self._answered = tuple(self._answered), []
        return found

    def forget(self, ends: Mapping[TopicPartition, int]) -> None:
        """Forget what is in flight at and above ``ends``: the answers that may come are of no interest."""
        for number, one in [*self._open.items()]:
            before = one.left
            one.ends |= {at: min(end, one.ends.get(at, end)) for at, end in ends.items()}
            self._count(number, one, before - sum(1 for _ in one.unanswered()))

    def unanswered(self) -> Iterator[Unanswered]:
        """Yield the offsets that have no answer."""
        for number, one in self._open.items():
            for at, offset in one.unanswered():
                yield Unanswered(number, at, offset)


def _each(acquired: Iterable[AcquiredSpan]) -> Iterator[tuple[TopicPartition, int]]:
    for one in acquired:
        for first, last, _ in one.ranges.tolist():
            yield from ((one.partition, offset) for offset in range(first, last + 1))
