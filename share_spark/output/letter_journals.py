"""The journals of announced and waiting dead letters: small files beside the state that outlive an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from share_spark.delta.journal import DEAD_LETTERS, WAITING_LETTERS, Journal
from share_spark.engine.pending import is_committed, letters_below
from share_spark.engine.ports import Claim, DeadLetter
from share_spark.model.ids import BatchStamp, TopicPartition
from share_spark.spark.on_demand import AnySpark


@dataclass(frozen=True, slots=True)
class LetterJournals:
    """The two journals of a group. ``announced``: by engines that may still write them; a withdrawn entry begins with
    that word. ``waiting``: of dead engines, committed and not written yet. They are apart, since a frozen engine that
    wakes up may still change what it has announced."""

    announced: Journal
    waiting: Journal

    @classmethod
    def of(cls, spark: AnySpark, claim: Claim) -> LetterJournals:
        """Open the journals beside the state."""
        purposes = (DEAD_LETTERS, WAITING_LETTERS)
        return cls(*(Journal(spark, claim.directory, purpose, claim.group_id) for purpose in purposes))

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Remove the offsets from ``ends`` on from every entry."""
        for journal in (self.announced, self.waiting) if ends else ():
            for stamp in journal.stamps():
                entry = journal.read(stamp)
                if entry is not None and (kept := _truncated(entry, ends)) != entry:
                    journal.put(stamp, kept)

    def settle(self, writer_epoch: int, last_counted: BatchStamp) -> list[BatchStamp]:
        """Decide what engines below ``writer_epoch`` announced. Returns the stamps that wait, oldest first."""
        for stamp in self.announced.stamps():
            if stamp.writer_epoch < writer_epoch:
                self._settle(stamp, last_counted)
        return [stamp for stamp in self.waiting.stamps() if stamp.writer_epoch < writer_epoch]

    def _settle(self, stamp: BatchStamp, last_counted: BatchStamp) -> None:
        """Move a committed announcement to ``waiting``. It is put there before it is removed: if we die in between, the
        next engine decides again, with the same result."""
        announced = self.announced.read(stamp)
        if announced is not None and is_committed(stamp, last_counted, withdrawn=is_withdrawn(announced)):
            self.waiting.put(stamp, announced.removeprefix(WITHDRAWN))
        self.announced.remove(stamp)


def entry_of(letters: Sequence[DeadLetter]) -> bytes:
    """Return the entry of a micro-batch's letters."""
    return json.dumps([_to_row(letter) for letter in letters]).encode()


def letters_in(entry: bytes) -> list[DeadLetter]:
    """Undo ``entry_of``, whether the entry is withdrawn or not."""
    return [_from_row(row) for row in json.loads(entry.removeprefix(WITHDRAWN))]


def _truncated(entry: bytes, ends: Mapping[TopicPartition, int]) -> bytes:
    kept = entry_of(letters_below(ends, letters_in(entry)))
    return WITHDRAWN + kept if is_withdrawn(entry) else kept


def _to_row(letter: DeadLetter) -> list[Any]:
    partition, *rest = letter
    return [partition.topic, partition.partition, *rest]


def _from_row(row: list[Any]) -> DeadLetter:
    topic, partition, *rest = row
    return DeadLetter(TopicPartition(topic, partition), *rest)


WITHDRAWN = b"withdrawn\n"


def is_withdrawn(announced: bytes) -> bool:
    """Return whether the commit is known not to have happened when it was tried first."""
    return announced.startswith(WITHDRAWN)
