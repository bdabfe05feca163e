"""The answers for calls whose companion process has died, from its ledgers.

    in the ledger                                   answer
      a handler's answer                              that answer; without its output rows: FINISHED
      the record whose coroutine was being stepped    IN_HANDLER: it is the one that has ended the process
      several, of a call with a list, or in threads   AMONG_OTHERS: it is one of them
      a record whose call waited                      FINISHED: it is not the cause
      nothing                                         NOT_ENTERED

If no record was being stepped, the process was killed from outside, or for its memory, and nobody is accused. A call
that was the only one is, as in a worker of Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from share_spark.companion.hand_overs import Unanswered
from share_spark.companion.messages import RecordAnswer
from share_spark.companion.overruns import stuck_file
from share_spark.delivery.calling import stuck_text
from share_spark.delivery.ledger import CallStatus, LedgerEntries, read_entries
from share_spark.delivery.traces import ANSWER_OF, WORKER_LOST
from share_spark.handlers.time_limit import stuck_at
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss

MOST_FILES = 1_000_000
"""The numbers of ledgers that a process has, from the first one on."""

_Attempt = tuple[TopicPartition, int, int]


class LedgerEntry(NamedTuple):
    """The entry of a record that was entered. ``error`` and ``delay_ms``: None if there is none."""

    status: CallStatus
    error: str | None
    delay_ms: int | None


class LostCalls(NamedTuple):
    """The content of the ledgers of a dead process, by topic-partition, offset and delivery count. ``stuck``: where its
    watchdog has ended it; None if it has not."""

    entries: dict[_Attempt, LedgerEntry]
    stuck: str | None

    @classmethod
    def read(cls, ledger: Path) -> LostCalls:
        """Read the ledgers of the process whose first one is ``ledger``."""
        files = [file for file in _of_process(ledger) if file.name.isdigit()]
        entries = {key: entry for file in files for key, entry in _entered(read_entries(file))}
        return cls(entries, stuck_at(stuck_file(ledger)))

    @property
    def killed_many(self) -> bool:
        """Whether several calls ran, and none of them was being stepped."""
        return self._ran(CallStatus.IN_HANDLER) == 0 and self._ran(CallStatus.WAITED) > 1

    def answers(self, unanswered: Iterable[Unanswered], lost_error: str) -> Iterator[RecordAnswer]:
        """Yield an answer for each of these offsets. ``lost_error``: of the records that may have ended the process."""
        ran, waited = self._ran(CallStatus.IN_HANDLER), self._ran(CallStatus.WAITED)
        accused = CallStatus.WAITED if ran == 0 and waited == 1 else CallStatus.IN_HANDLER
        loss = Loss.AMONG_OTHERS if ran > 1 else Loss.IN_HANDLER
        for number, at, offset, count in unanswered:
            entry = self.entries.get((at, offset, count))
            if entry is None:
                yield RecordAnswer(number, at, offset, offset, Loss.NOT_ENTERED)
            elif entry.status is accused:
                yield RecordAnswer(number, at, offset, offset, loss, lost_error)
            else:
                answer = _ANSWERS[entry.status]
                yield RecordAnswer(number, at, offset, offset, answer, entry.error, entry.delay_ms)

    def _ran(self, status: CallStatus) -> int:
        return sum(entry.status is status for entry in self.entries.values())


_ANSWERS = {**ANSWER_OF, CallStatus.ACCEPTED_WITH_ROWS: Loss.FINISHED, CallStatus.WAITED: Loss.FINISHED}
"""No process repeats a task here, so no other status is written."""


def remove_ledgers(ledger: Path) -> None:
    """Remove all files of the process whose first ledger is ``ledger``."""
    for file in _of_process(ledger):
        file.unlink(missing_ok=True)


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


def _entered(ledger: LedgerEntries) -> Iterator[tuple[_Attempt, LedgerEntry]]:
    rows = np.flatnonzero(ledger.status != CallStatus.NOT_ENTERED)
    columns = ledger.topic, ledger.partition, ledger.offset, ledger.count, ledger.status
    for row, topic, partition, offset, count, status in zip(
        rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
    ):
        entry = LedgerEntry(CallStatus(status), ledger.errors.get(row), ledger.delays.get(row))
        yield (TopicPartition(ledger.topics[topic], partition), offset, count), entry
