"""Dead letters of one engine, in the order that ``DeadLetterSink`` asks for: announced before the commit that archives
them; then withdrawn, if that commit has not happened, or written after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from share_spark.engine.ports import DeadLetter, DeadLetterSink
from share_spark.model.ids import BatchStamp


@dataclass(slots=True, kw_only=True)
class DeadLetterOrder:
    """What is announced and what is still to be written."""

    sink: DeadLetterSink
    _announced: BatchStamp | None = None
    _unwritten: list[BatchStamp] = field(default_factory=list)

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """What the commit of ``stamp`` is about to archive. Raises DeadLetterError."""
        if letters:
            self._announced = stamp
            self.sink.announce(stamp, letters)

    def withdraw(self) -> None:
        """What was announced for a commit that has not happened must not be taken for committed once a later one is.
        Raises DeadLetterError."""
        if self._announced is not None:
            self.sink.withdraw(self._announced)
            self._announced = None

    def committed(self) -> None:
        """The commit has happened for which the last ones were announced."""
        if self._announced is not None:
            self._unwritten.append(self._announced)
            self._announced = None

    def write(self, stamp: BatchStamp) -> None:
        """Those of ``stamp``, if it has any; before them those that could not be written before, as a table takes no
        lower number after a higher one. By themselves they wait for the next engine. Raises DeadLetterError."""
        if stamp not in self._unwritten:
            return
        while self._unwritten:
            self.sink.write(self._unwritten[0])
            del self._unwritten[0]
