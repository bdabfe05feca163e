"""In-memory twins of the sinks: a table of rows written exactly once, and a dead-letter store.

What outlives a process is ``InMemoryOutputTable`` and ``InMemoryDeadLetterTable``; a sink belongs to one run. As in
``memory``, faults come from a hook that is called around each effect and may raise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.engine.delivery_port import AcknowledgedSpans
from share_spark.engine.pending import is_committed, letters_below
from share_spark.engine.ports import Claim, CommittedOutput, DeadLetter
from share_spark.model.errors import FencedError, StateError
from share_spark.model.ids import BatchStamp, TopicPartition
from share_spark.model.requests import AcknowledgeType

Hook = Callable[[str], None]
"""A function called with the name of an effect, before and after it: ``before output``, ``after output`` and so on."""


def _undisturbed(_moment: str) -> None:
    return


class OutputRow(NamedTuple):
    """The one output row of each accepted record, with the micro-batch that wrote it."""

    partition: TopicPartition
    offset: int
    stamp: BatchStamp


@dataclass(slots=True)
class InMemoryOutputTable:
    """The rows, the highest transaction that wrote or claimed, the last that wrote, and the journal beside it."""

    rows: list[OutputRow] = field(default_factory=list)
    transaction: int = -1
    delivered: int = -1
    journal: dict[int, CommittedOutput] = field(default_factory=dict)

    def claim(self, number: int) -> int:
        """Refuse every lower number from now on; return the number of the last delivery. Raises FencedError."""
        if self.transaction > number:
            raise FencedError("another engine has claimed the sink")
        self.transaction = number
        return self.delivered


@dataclass(slots=True)
class InMemoryOutputSink:
    """An OutputSink of one run, in the steps of the real one, where files that no commit names yet are no effect.
    ``refuse``: the error to raise instead of writing. ``held``: the records whose rows its delivery holds, None: those
    of its answers."""

    table: InMemoryOutputTable
    hook: Hook = _undisturbed
    refuse: Exception | None = None
    held: Callable[[], Collection[tuple[TopicPartition, int]] | None] = lambda: None
    _own: int = -1
    _member_id: str = ""
    _unabsorbed: set[int] = field(default_factory=set)

    @property
    def has_output(self) -> bool:
        return True

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        self._own, self._member_id = BatchStamp(claim.writer_epoch, -1).number, claim.member_id
        delivered = self._claimed()
        left = self._left()
        if delivered not in left and delivered >= last_counted.number:
            self._claimed()
            raise StateError("rows whose acknowledgements are not known")
        for number in sorted(left.keys() - {delivered}):
            self.hook("before dropping an entry")
            self.table.journal.pop(number, None)
        self._unabsorbed |= left.keys() & {delivered}
        return left.get(delivered)

    def _claimed(self) -> int:
        """Claim the table; return the number of the last delivery."""
        self.hook("before claim of output")
        delivered = self.table.claim(self._own)
        self.hook("after claim of output")
        return delivered

    def _left(self) -> dict[int, CommittedOutput]:
        """Return the entries of older engines. Lists their names first, then reads them, as the real one does."""
        numbers = [number for number in self.table.journal if number < self._own]
        self.hook("after listing of output")
        return {number: self.table.journal[number] for number in numbers if number in self.table.journal}

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None = None) -> None:
        held = self.held()
        rows = [
            OutputRow(span.partition, offset, stamp)
            for span in answers.values()
            for first, last, kind in span.ranges
            if kind == AcknowledgeType.ACCEPT
            for offset in range(first, last + 1)
            if held is None or (span.partition, offset) in held
        ]
        if not rows:
            return
        self.hook("before journal")
        self.table.journal[stamp.number] = CommittedOutput(stamp, member_id or self._member_id, answers)
        self.hook("before output")
        if self.refuse is not None:
            raise self.refuse
        if self.table.transaction >= stamp.number:
            raise FencedError("another engine has claimed the sink")
        self.table.transaction = self.table.delivered = stamp.number
        self.table.rows += rows
        self.hook("after output")
        self.hook("before reading back")
        self._unabsorbed.add(stamp.number)

    def forget(self) -> None:
        for number in sorted(self._unabsorbed):
            self.hook("before forget")
            self.table.journal.pop(number, None)
        self._unabsorbed.clear()


@dataclass(slots=True)
class InMemoryDeadLetterTable:
    """The written letters by micro-batch, the highest number among them, the announced ones, and those of dead engines
    that are committed and wait."""

    by_stamp: dict[BatchStamp, Sequence[DeadLetter]] = field(default_factory=dict)
    transaction: int = -1
    announced: dict[BatchStamp, Sequence[DeadLetter]] = field(default_factory=dict)
    withdrawn: set[BatchStamp] = field(default_factory=set)
    waiting: dict[BatchStamp, Sequence[DeadLetter]] = field(default_factory=dict)

    @property
    def letters(self) -> list[DeadLetter]:
        """All written letters, in the order of their micro-batches."""
        return [letter for stamp in sorted(self.by_stamp) for letter in self.by_stamp[stamp]]

    def of(self, partition: TopicPartition, offset: int) -> list[DeadLetter]:
        """Return the letters of one offset: several if the log was truncated between them."""
        return [
            letter
            for letter in self.letters
            if letter.partition == partition and letter.first_offset <= offset <= letter.last_offset
        ]

    def append(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Append the letters, or nothing below the number of the table, as in Delta."""
        if stamp.number > self.transaction:
            self.transaction = stamp.number
            self.by_stamp[stamp] = letters

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Remove the offsets from ``ends`` on from what is not written."""
        for letters in (self.announced, self.waiting):
            letters.update({stamp: letters_below(ends, found) for stamp, found in letters.items()})

    def drop(self, stamp: BatchStamp) -> None:
        """Forget the announcement."""
        self.announced.pop(stamp, None)
        self.withdrawn.discard(stamp)


@dataclass(slots=True)
class InMemoryDeadLetters:
    """A DeadLetterSink of one run, in the steps of the real one. ``refuse``: the error to raise instead of writing.
    ``is_late``: letters are written when the engine checks for the second time, all that wait together."""

    table: InMemoryDeadLetterTable = field(default_factory=InMemoryDeadLetterTable)
    hook: Hook = _undisturbed
    refuse: Exception | None = None
    is_late: bool = False
    _later: list[BatchStamp] = field(default_factory=list)
    _checks: int = 0

    @property
    def letters(self) -> list[DeadLetter]:
        """All written letters, of every run."""
        return self.table.letters

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        self.hook("before announcement")
        self.table.announced[stamp] = tuple(letters)
        self.table.withdrawn.discard(stamp)
        self.hook("after announcement")

    def withdraw(self, stamp: BatchStamp) -> None:
        self.hook("before withdrawal")
        if stamp in self.table.announced:
            self.table.withdrawn.add(stamp)
        self.hook("after withdrawal")

    def write(self, stamp: BatchStamp) -> None:
        if self.is_late:
            self._later.append(stamp)
        else:
            self._write_announced([stamp])

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        self.hook("before letters are truncated")
        self.table.truncate(ends)
        self.hook("after letters are truncated")

    def is_settled(self) -> bool:
        return not self._later

    def check(self) -> None:
        self._checks += 1
        if self._later and self._checks % 2 == 0:
            self._write_later()

    def wait(self) -> None:
        if self._later:
            self._write_later()

    def _write_later(self) -> None:
        self._write_announced(self._later)
        self._later = []

    def _write_announced(self, stamps: Sequence[BatchStamp]) -> None:
        """Write the announced letters in one append with the number of the last."""
        if any(stamp not in self.table.announced for stamp in stamps):
            raise FencedError("another engine has taken over the dead letters of this one")
        found = {stamp: self.table.announced[stamp] for stamp in stamps}
        self._write(max(found), [letter for letters in found.values() for letter in letters])
        for stamp in found:
            self.hook("before dropping an announcement")
            self.table.drop(stamp)

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        stamps = self._settle(claim.writer_epoch, last_counted)
        if truncated:
            self.truncate(truncated)
        for stamp in stamps:
            if (waiting := self.table.waiting.get(stamp)) is not None:
                self._write(stamp, waiting)
                self.table.waiting.pop(stamp, None)

    def _settle(self, writer_epoch: int, last_counted: BatchStamp) -> list[BatchStamp]:
        """Decide about the announced letters of older engines; return the stamps that wait to be written."""
        table = self.table
        for stamp in sorted(stamp for stamp in table.announced if stamp.writer_epoch < writer_epoch):
            announced, withdrawn = table.announced.get(stamp), stamp in table.withdrawn
            if announced is not None and is_committed(stamp, last_counted, withdrawn=withdrawn):
                self.hook("before keeping letters")
                table.waiting[stamp] = announced
            self.hook("before dropping an announcement")
            table.drop(stamp)
        return sorted(stamp for stamp in table.waiting if stamp.writer_epoch < writer_epoch)

    def _write(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        self.hook("before dead letters")
        if self.refuse is not None:
            raise self.refuse
        self.table.append(stamp, letters)
        self.hook("after dead letters")


@dataclass(slots=True)
class InMemoryNoDeadLetters(InMemoryDeadLetters):
    """A DeadLetterSink of a run without a target."""

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Do nothing: without a target nothing is announced."""

    def withdraw(self, stamp: BatchStamp) -> None:
        """Do nothing: nothing is announced."""

    def write(self, stamp: BatchStamp) -> None:
        """Do nothing: nothing is announced."""

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        self._settle(claim.writer_epoch, last_counted)
        if truncated:
            self.truncate(truncated)


@dataclass(frozen=True, slots=True)
class InMemoryLeftBehind:
    """A LeftBehind of engines that write to these tables."""

    output: InMemoryOutputTable
    letters: InMemoryDeadLetterTable
    hook: Hook = _undisturbed

    def claim_sinks(self, writer_epoch: int) -> None:
        self.hook("before claim of sinks")
        self.output.claim(BatchStamp(writer_epoch, -1).number)
        self.hook("after claim of sinks")

    def is_unfinished(self) -> bool:
        found = bool(self.output.journal or self.letters.announced)
        self.hook("after a look at the journals")
        return found
