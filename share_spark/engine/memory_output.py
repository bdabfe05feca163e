"""In-memory twins of what takes output: a table of rows written exactly once, and a dead-letter store.

What outlives a process is ``InMemoryOutputTable`` and ``InMemoryDeadLetterTable``; a sink belongs to one run. As in
``memory``, faults come from a hook that is called around each effect and may raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.engine.ports import Answers, CommittedOutput, DeadLetter, Stamp
from share_spark.model.errors import FencedError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType

Hook = Callable[[str], None]
"""Called with the name of an effect, before and after it: ``before output``, ``after output`` and so on."""


def _undisturbed(_moment: str) -> None:
    return


class OutputRow(NamedTuple):
    """The one row that each accepted record puts out, with the micro-batch that wrote it."""

    partition: TopicPartition
    offset: int
    stamp: Stamp


@dataclass(slots=True)
class InMemoryOutputTable:
    """Rows, the highest transaction that wrote or claimed, and the journal beside it."""

    rows: list[OutputRow] = field(default_factory=list)
    transaction: int = -1
    written: set[int] = field(default_factory=set)
    journal: dict[int, CommittedOutput] = field(default_factory=dict)


@dataclass(slots=True)
class InMemoryOutputSink:
    """OutputSink of one run. ``refuse``: raise it instead of writing."""

    table: InMemoryOutputTable
    hook: Hook = _undisturbed
    refuse: Exception | None = None
    _epoch: int = 0

    def claim(self, writer_epoch: int) -> CommittedOutput | None:
        self._epoch = writer_epoch
        self.hook("before claim of output")
        own = Stamp(writer_epoch, -1).number
        if self.table.transaction >= own:
            raise FencedError("another engine has claimed the sink")
        self.table.transaction = own
        self.hook("after claim of output")
        left = {number: what for number, what in self.table.journal.items() if number in self.table.written}
        self.table.journal = left
        return left[max(left)] if left else None

    def commit(self, stamp: Stamp, member_id: str, answers: Answers) -> None:
        rows = [
            OutputRow(span.partition, offset, stamp)
            for span in answers.values()
            for first, last, kind in span.ranges.tolist()
            if kind == AcknowledgeType.ACCEPT
            for offset in range(first, last + 1)
        ]
        if not rows:
            return
        self.hook("before journal")
        self.table.journal[stamp.number] = CommittedOutput(stamp, member_id, answers)
        self.hook("before output")
        if self.refuse is not None:
            raise self.refuse
        if self.table.transaction >= stamp.number:
            raise FencedError("another engine has claimed the sink")
        self.table.transaction = stamp.number
        self.table.written.add(stamp.number)
        self.table.rows += rows
        self.hook("after output")

    def forget(self) -> None:
        self.hook("before forget")
        below = Stamp(self._epoch + 1, -1).number
        self.table.journal = {number: what for number, what in self.table.journal.items() if number >= below}


@dataclass(slots=True)
class InMemoryDeadLetterTable:
    """Letters that are written, by micro-batch, and those announced."""

    by_stamp: dict[Stamp, Sequence[DeadLetter]] = field(default_factory=dict)
    announced: dict[Stamp, Sequence[DeadLetter]] = field(default_factory=dict)

    @property
    def letters(self) -> list[DeadLetter]:
        """All that is written, in the order of their micro-batches."""
        return [letter for stamp in sorted(self.by_stamp) for letter in self.by_stamp[stamp]]


@dataclass(slots=True)
class InMemoryDeadLetters:
    """DeadLetterSink of one run; a stamp's letters are kept once. ``refuse``: raise it instead of writing."""

    table: InMemoryDeadLetterTable = field(default_factory=InMemoryDeadLetterTable)
    hook: Hook = _undisturbed
    refuse: Exception | None = None

    @property
    def letters(self) -> list[DeadLetter]:
        """All that is written, by whatever run."""
        return self.table.letters

    def announce(self, stamp: Stamp, letters: Sequence[DeadLetter]) -> None:
        self.hook("before announcement")
        self.table.announced[stamp] = tuple(letters)

    def write(self, stamp: Stamp) -> None:
        self.hook("before dead letters")
        if self.refuse is not None:
            raise self.refuse
        announced = self.table.announced.get(stamp)
        if announced is None:
            return
        self.table.by_stamp.setdefault(stamp, announced)
        self.hook("after dead letters")
        self.table.announced.pop(stamp, None)

    def recover(self, counted: Callable[[Stamp], bool]) -> None:
        for stamp in sorted(self.table.announced):
            if counted(stamp):
                self.write(stamp)
            else:
                self.table.announced.pop(stamp, None)
