"""The answers for calls whose companion process has died, from its ledgers.

    in the ledger                                   answer
      a handler's answer                              that answer, with its output rows; if they are not written:
                                                      FINISHED
      the record whose coroutine was being stepped    IN_HANDLER: it is the one that has ended the process
      several, of a call with a list, or in threads   AMONG_OTHERS: it is one of them
      a record whose call waited                      FINISHED: it is not the cause
      nothing                                         NOT_ENTERED
      there is no ledger                              UNKNOWN

If no record was being stepped, the process was killed from outside, or for its memory, and nobody is accused. A call
that was the only one is, as in a worker of Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from share_spark.companion.hand_overs import Unanswered
from share_spark.companion.messages import RecordAnswer
from share_spark.companion.overruns import stuck_file
from share_spark.delivery.ledger import CallStatus, LedgerEntries, read_entries
from share_spark.delivery.ledger_file import is_written
from share_spark.delivery.traces import ANSWER_OF, WORKER_LOST
from share_spark.handlers.time_limit import stuck_at, stuck_text
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss

MOST_FILES = 1_000_000
"""The numbers of ledgers that a process has, from the first one on."""

_Handed = tuple[int, TopicPartition, int]
"""(number of the hand-over, where, offset). The delivery count would not do: two records may have had one offset, where
a log was truncated."""


class LedgerEntry(NamedTuple):
    """The entry of a record that was entered. ``error`` and ``delay_ms``: None if there is none. ``has_rows``: its
    output rows were written."""

    status: CallStatus
    error: str | None
    delay_ms: int | None
    has_rows: bool

    @property
    def answer(self) -> AcknowledgeType | Loss:
        """The answer, where nothing accuses the record."""
        lacks_rows = self.status is CallStatus.ACCEPTED_WITH_ROWS and not self.has_rows
        return Loss.FINISHED if lacks_rows or self.status is CallStatus.WAITED else ANSWER_OF[self.status]


class LostCalls(NamedTuple):
    """The content of the ledgers of a dead process. ``stuck``: where its watchdog has ended it; None if it has not.
    ``are_known``: there are ledgers."""

    files: Sequence[LedgerEntries]
    entries: dict[_Handed, LedgerEntry]
    stuck: str | None
    are_known: bool = True

    @classmethod
    def unknown(cls) -> LostCalls:
        """Return the calls of a process that has left no ledgers that can be read."""
        return cls((), {}, None, are_known=False)

    @classmethod
    def read(cls, ledger: Path) -> LostCalls:
        """Read the ledgers of the process whose first one is ``ledger``."""
        files = [read_entries(file) for file in _of_process(ledger) if file.name.isdigit()]
        entries = {key: entry for file in files for _, key, entry in _entered(file)}
        return cls(files, entries, stuck_at(stuck_file(ledger)))

    @property
    def killed_many(self) -> bool:
        """Whether several calls ran, and none of them was being stepped."""
        return self._ran(CallStatus.IN_HANDLER) == 0 and self._ran(CallStatus.WAITED) > 1

    def answers(self, unanswered: Iterable[Unanswered], lost_error: str) -> Iterator[RecordAnswer]:
        """Yield an answer for each of these offsets. ``lost_error``: of the records that may have ended the process."""
        ran, waited = self._ran(CallStatus.IN_HANDLER), self._ran(CallStatus.WAITED)
        accused = CallStatus.WAITED if ran == 0 and waited == 1 else CallStatus.IN_HANDLER
        loss = Loss.AMONG_OTHERS if ran > 1 else Loss.IN_HANDLER
        absent = (Loss.NOT_ENTERED, None) if self.are_known else (Loss.UNKNOWN, WORKER_LOST)
        for number, at, offset in unanswered:
            entry = self.entries.get((number, at, offset))
            if entry is None:
                yield RecordAnswer(number, at, offset, offset, *absent)
            elif entry.status is accused:
                yield RecordAnswer(number, at, offset, offset, loss, lost_error)
            else:
                yield RecordAnswer(number, at, offset, offset, entry.answer, entry.error, entry.delay_ms)

    def rows_of(self, answers: Iterable[RecordAnswer]) -> Iterator[pa.Table]:
        """Yield the output rows of the records that were accepted, each with an answer of its own."""
        accepted = {one[:3] for one in answers if one.answer == AcknowledgeType.ACCEPT}
        for file in self.files:
            wanted = np.zeros(len(file), bool)
            wanted[[row for row, key, entry in _entered(file) if entry.has_rows and key in accepted]] = True
            yield from file.rows_of(wanted)

    def _ran(self, status: CallStatus) -> int:
        return sum(entry.status is status for entry in self.entries.values())


def remove_ledgers(ledger: Path) -> None:
    """Remove all files of the process whose first ledger is ``ledger``."""
    for file in _of_process(ledger):
        file.unlink(missing_ok=True)


def is_still_written(ledger: Path) -> bool:
    """Return whether the process whose first ledger is ``ledger`` is still there: it may note more answers."""
    return any(is_written(file) for file in _of_process(ledger) if file.name.isdigit())


def lost_error_of(stuck: str | None, limit_text: str) -> str:
    """Return the error of the record that has ended the process. ``limit_text``: says that it took too long."""
    return WORKER_LOST if stuck is None else stuck_text(limit_text, stuck)


def _of_process(ledger: Path) -> list[Path]:
    """Return all files of the process: ``<number>`` and ``<number>.<purpose>``, with its numbers."""
    first = int(ledger.name)
    return [
        file
        for file in ledger.parent.iterdir()
        if file.name.partition(".")[0].isdigit() and 0 <= int(file.name.partition(".")[0]) - first < MOST_FILES
    ]


def _entered(ledger: LedgerEntries) -> Iterator[tuple[int, _Handed, LedgerEntry]]:
    """Yield (number of the entry, whose it is, the entry) of each record that was entered."""
    rows, have_rows = np.flatnonzero(ledger.status != CallStatus.NOT_ENTERED), ledger.have_rows
    columns = ledger.number, ledger.topic, ledger.partition, ledger.offset, ledger.status, have_rows
    for row, number, topic, partition, offset, status, has_rows in zip(
        rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
    ):
        entry = LedgerEntry(CallStatus(status), ledger.errors.get(row), ledger.delays.get(row), has_rows)
        yield row, (number, TopicPartition(ledger.topics[topic], partition), offset), entry
