"""Answers on their way to the driver: those of one turn of the loop leave in one message, with their output rows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from share_spark.companion.messages import Answered, RecordAnswer
from share_spark.delivery.arrow_stream import stream_of
from share_spark.delivery.output_rows import fitting_rows
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.output_schema import Row


class Outbox:
    """The answers of a turn. ``output``: the schema of their rows, None if there are none."""

    def __init__(self, output: pa.Schema | None) -> None:
        self._output = output
        self._answers: list[RecordAnswer] = []
        self._rows: list[Row] = []
        self._owners: list[int] = []
        self._releases: dict[int, Callable[[str], None]] = {}
        self._busy_s = 0.0
        self._throttled: list[int] = []
        self._cost = 0.0

    def add(self, answer: RecordAnswer, busy_s: float = 0.0, cost: float = 0.0) -> None:
        """Add an answer, the time of its call, and what it has cost."""
        self._answers.append(answer)
        self._busy_s += busy_s
        self._cost += cost

    def note_throttled(self, round_number: int) -> None:
        """Note that the last answer is of a throttled call, which began in this round."""
        self._throttled.append(round_number)

    def add_rows(self, rows: list[Row], release: Callable[[str], None]) -> None:
        """Add the rows of the last answer; ``release`` is called with an error if they do not fit the schema, before
        the answer leaves, as a release."""
        owner = len(self._answers) - 1
        self._rows += rows
        self._owners += [owner] * len(rows)
        self._releases[owner] = release

    def take(self) -> Answered | None:
        """Return what was added since the last time; None if that is nothing."""
        if not self._answers:
            return None
        rows = self._row_bytes()
        message = Answered(tuple(self._answers), rows, self._busy_s, tuple(self._throttled), self._cost)
        self._answers, self._rows, self._owners, self._releases, self._busy_s = [], [], [], {}, 0.0
        self._throttled, self._cost = [], 0.0
        return message

    def _row_bytes(self) -> bytes:
        if self._output is None or not self._rows:
            return b""
        table = fitting_rows(self._rows, self._owners, self._output, self._release)
        return stream_of(table) if table.num_rows else b""

    def _release(self, owner: int, error: str) -> None:
        self._answers[owner] = self._answers[owner]._replace(answer=int(Ack.RELEASE), error=error)
        self._releases[owner](error)
