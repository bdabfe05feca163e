"""Answers on their way to the driver: those of some milliseconds leave in one message, with their output rows, which
are in the ledger by then: a driver that dies before it has committed them leaves them to the next engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from share_spark.companion.messages import Answered, RecordAnswer
from share_spark.companion.waiting import Waiting
from share_spark.delivery.arrow_stream import stream_of
from share_spark.delivery.ledger_file import LedgerFile
from share_spark.delivery.output_rows import fitting_rows
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.output_schema import Row


class Outbox:
    """The answers of a message. ``output``: the schema of their rows, None if there are none."""

    def __init__(self, output: pa.Schema | None) -> None:
        self._output = output
        self._answers: list[RecordAnswer] = []
        self._rows: list[Row] = []
        self._owners: list[int] = []
        self._sources: dict[int, _Source] = {}
        self._busy_s = 0.0
        self._throttled: list[int] = []
        self._cost = 0.0

    def add(self, answer: RecordAnswer) -> None:
        """Add an answer."""
        self._answers.append(answer)

    def note_call(self, busy_s: float, cost: float) -> None:
        """Note the time of a call, and what it has cost."""
        self._busy_s += busy_s
        self._cost += cost

    def note_throttled(self, round_number: int) -> None:
        """Note that the last answer is of a throttled call, which began in this round."""
        self._throttled.append(round_number)

    def add_rows(self, rows: list[Row], one: Waiting, release: Callable[[str], None]) -> None:
        """Add the rows of the last answer, which is for ``one``; ``release`` is called with an error if they do not fit
        the schema, before the answer leaves, as a release."""
        owner = len(self._answers) - 1
        self._rows += rows
        self._owners += [owner] * len(rows)
        self._sources[owner] = _Source(one.block.file, one.block.place(one.position), release)

    def take(self) -> Answered | None:
        """Return what was added since the last time; None if that is nothing. Raises StateError: the rows cannot be
        written. Then these answers do not leave; the ledger has them."""
        if not self._answers:
            return None
        try:
            rows, owners = self._written_rows()
            return Answered(tuple(self._answers), rows, owners, self._busy_s, tuple(self._throttled), self._cost)
        finally:
            self._answers, self._rows, self._owners, self._sources, self._busy_s = [], [], [], {}, 0.0
            self._throttled, self._cost = [], 0.0

    def _written_rows(self) -> tuple[bytes, Sequence[int]]:
        """Write the rows to the ledger, and return (the rows as a stream, of each the index of its answer)."""
        if self._output is None or not self._rows:
            return b"", ()
        rows, owners = fitting_rows(self._rows, self._owners, self._output, self._release)
        if not owners:
            return b"", ()
        stream = stream_of(rows)
        files = [self._sources[owner].file for owner in owners]
        places = [self._sources[owner].place for owner in owners]
        if files.count(files[0]) == len(files):  # the frequent case
            files[0].write_rows(stream, places)
            return stream, owners
        for file in dict.fromkeys(files):
            chosen = [at for at, one in enumerate(files) if one is file]
            file.write_rows(stream_of(rows.take(chosen)), [places[at] for at in chosen])
        return stream, owners

    def _release(self, owner: int, error: str) -> None:
        self._answers[owner] = self._answers[owner]._replace(answer=int(Ack.RELEASE), error=error)
        self._sources[owner].release(error)


class _Source(NamedTuple):
    """The place in the ledger of a record that has output rows, and how to release it."""

    file: LedgerFile
    place: int
    release: Callable[[str], None]
