"""The engine's dead-letter port, on Spark: records are read from the topic log by range and written to the dead-letter
target. Nothing here decides anything about a record."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyspark.sql import functions as F

from share_spark.delivery.acquired_records import acquired_records
from share_spark.delta.journal import DEAD_LETTERS, WAITING_LETTERS, Journal
from share_spark.engine.pending import letters_below
from share_spark.engine.ports import (
    Claim,
    DeadLetter,
    DeadLetterTarget,
    NumberedSpan,
    TopicLog,
    is_committed,
)
from share_spark.engine.ranges import NumberedRanges
from share_spark.model.errors import DeadLetterError, ShareError
from share_spark.model.ids import BatchStamp, TopicPartition
from share_spark.spark.errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)

_MOST_WAITING = 16
"""Micro-batches whose dead letters may wait to be written."""


@dataclass(frozen=True, slots=True)
class LetterJournals:
    """``announced``: by engines that may still write it; an entry that is withdrawn begins with that word. ``waiting``:
    of dead engines, committed and not written yet. Apart from each other, since a frozen engine that wakes up may still
    change what it has announced."""

    announced: Journal
    waiting: Journal

    @classmethod
    def of(cls, spark: SparkSession, claim: Claim) -> LetterJournals:
        """Beside the state."""
        purposes = (DEAD_LETTERS, WAITING_LETTERS)
        return cls(*(Journal(spark, claim.directory, purpose, claim.group_id) for purpose in purposes))

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take the offsets from ``ends`` on out of every entry."""
        for journal in (self.announced, self.waiting) if ends else ():
            for stamp in journal.stamps():
                entry = journal.read(stamp)
                if entry is not None and (kept := _truncated(entry, ends)) != entry:
                    journal.put(stamp, kept)

    def settle(self, writer_epoch: int, last_counted: BatchStamp) -> list[BatchStamp]:
        """Judge what engines below ``writer_epoch`` have announced. Returns what waits of them, oldest first."""
        for stamp in self.announced.stamps():
            if stamp.writer_epoch < writer_epoch:
                self._settle(stamp, last_counted)
        return [stamp for stamp in self.waiting.stamps() if stamp.writer_epoch < writer_epoch]

    def _settle(self, stamp: BatchStamp, last_counted: BatchStamp) -> None:
        """Kept before it is removed: if we die in between, the next engine judges it again, and alike."""
        announced = self.announced.read(stamp)
        if announced is not None and is_committed(stamp, last_counted, withdrawn=_is_withdrawn(announced)):
            self.waiting.put(stamp, announced.removeprefix(_WITHDRAWN))
        self.announced.remove(stamp)


@dataclass(slots=True, kw_only=True)
class NoDeadLetters:
    """Dead-letter port of a run without a target: what it archives is archived only."""

    spark: SparkSession
    _journals: LetterJournals | None = None

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Nothing to do."""

    def withdraw(self, stamp: BatchStamp) -> None:
        """Nothing to do."""

    def write(self, stamp: BatchStamp) -> None:
        """Nothing to do."""

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Of runs before. Raises DeadLetterError."""
        with _as_dead_letter_error():
            assert self._journals is not None, "used before recover"
            self._journals.truncate(ends)

    def is_settled(self) -> bool:
        """Nothing is to be written."""
        return True

    def check(self) -> None:
        """Nothing can fail."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """Raises DeadLetterError."""
        with _as_dead_letter_error():
            self._journals = LetterJournals.of(self.spark, claim)
            waiting = self._journals.settle(claim.writer_epoch, last_counted)
            self._journals.truncate(truncated)
        if waiting:
            _log.warning(
                "the dead letters of %s micro-batch(es) wait to be written: this run has no dead-letter target, the "
                "next one that has writes them",
                len(waiting),
            )


@dataclass(slots=True, kw_only=True)
class BackgroundDeadLetters:
    """``sink``, written to in a thread of its own, in the order of the stamps: what is announced is durable, so the
    micro-batch need not wait. All that waits is written together. After a fault nothing more is written; it all stays
    announced, for the next engine."""

    sink: SparkDeadLetters
    _stamps: list[BatchStamp] = field(default_factory=list)
    _fault: Exception | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """At once."""
        self.sink.announce(stamp, letters)

    def withdraw(self, stamp: BatchStamp) -> None:
        """At once."""
        self.sink.withdraw(stamp)

    def write(self, stamp: BatchStamp) -> None:
        """Soon. Waits where too much is to be written already."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault is not None or len(self._stamps) < _MOST_WAITING)
            self._stamps.append(stamp)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="share-spark-dead-letters", daemon=True)
                self._thread.start()

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """After what is being written now."""
        with self._writing:
            self.sink.truncate(ends)

    def is_settled(self) -> bool:
        """Also of what cannot be written."""
        with self._changed:
            return not self._stamps

    def check(self) -> None:
        """Raises the fault of an earlier ``write``."""
        if self._fault is not None:
            raise self._fault

    def wait(self) -> None:
        """Raises the fault of an earlier ``write``."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault is not None or not self._stamps)
            if self._fault is not None:
                raise self._fault

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """At once."""
        self.sink.recover(claim, last_counted, truncated)

    def _work(self) -> None:
        """Ends when there is nothing to do: the next letters begin another one."""
        while True:
            with self._changed:
                if not self._stamps:
                    self._thread = None
                    return
                stamps = tuple(self._stamps)
            try:
                with self._writing:
                    self.sink.write_together(stamps)
            except Exception as fault:  # noqa: BLE001 - the engine raises it
                self._fault = fault
            with self._changed:
                if self._fault is None:
                    del self._stamps[: len(stamps)]
                self._changed.notify_all()
                if self._fault is not None:
                    return


class _LetterWriter(NamedTuple):
    claim: Claim
    journals: LetterJournals


@dataclass(slots=True, kw_only=True)
class SparkDeadLetters:
    """Dead-letter port: reads the archived records once more, adds the reasons, passes them to the target.

    ``LetterJournals`` hold what is announced until it is written.
    """

    spark: SparkSession
    log: TopicLog
    target: DeadLetterTarget
    _writer: _LetterWriter | None = None

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """One journal entry. Raises DeadLetterError."""
        with _as_dead_letter_error():
            self._claimed.journals.announced.put(stamp, _entry_of(letters))

    def withdraw(self, stamp: BatchStamp) -> None:
        """The same entry, marked. Raises DeadLetterError."""
        with _as_dead_letter_error():
            journal = self._claimed.journals.announced
            announced = journal.read(stamp)
            if announced is not None and not _is_withdrawn(announced):
                journal.put(stamp, _WITHDRAWN + announced)

    def write(self, stamp: BatchStamp) -> None:
        """Raises DeadLetterError. Records that are gone from the log have nothing to write and are left out."""
        self.write_together([stamp])

    def write_together(self, stamps: Sequence[BatchStamp]) -> None:
        """``write``, for ascending stamps, in one append with the number of the last: a table that has this one takes
        none of the others again. Raises DeadLetterError."""
        with _as_dead_letter_error():
            self._write_from(self._claimed.journals.announced, stamps)

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Raises DeadLetterError."""
        with _as_dead_letter_error():
            self._claimed.journals.truncate(ends)

    def is_settled(self) -> bool:
        """``write`` returns when it has written."""
        return True

    def check(self) -> None:
        """``write`` has said it."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """Raises DeadLetterError."""
        with _as_dead_letter_error():
            journals = LetterJournals.of(self.spark, claim)
            self._writer = _LetterWriter(claim, journals)
            waiting = journals.settle(claim.writer_epoch, last_counted)
            journals.truncate(truncated)
            for stamp in waiting:
                _log.info("writing the dead letters of micro-batch %s, which an engine before left", stamp)
                self._write_from(journals.waiting, [stamp])

    def _write_from(self, journal: Journal, stamps: Sequence[BatchStamp]) -> None:
        """Entries are removed when their letters are written."""
        entries = [(stamp, entry) for stamp in stamps if (entry := journal.read(stamp)) is not None]
        if not entries:
            return
        self._write(entries[-1][0], [letter for _, entry in entries for letter in _letters_in(entry)])
        for stamp, _ in entries:
            journal.remove(stamp)

    def _write(self, stamp: BatchStamp, reasons: Sequence[DeadLetter]) -> None:
        spans = [NumberedSpan(at, ranges) for at, ranges in _numbered(reasons).items()]
        records = acquired_records(
            self.spark, self.log, spans, tasks=self.spark.sparkContext.defaultParallelism, third="letter"
        )
        notes = [(n, at.delivery_count, at.reason, at.error) for n, at in enumerate(reasons)]
        table = self.spark.createDataFrame(notes, "letter int, delivery_count int, reason string, error string")
        letters = records.join(F.broadcast(table), "letter").drop("letter")
        self.target.write(self.spark, self._claimed.claim, stamp, letters)

    @property
    def _claimed(self) -> _LetterWriter:
        assert self._writer is not None, "used before recover"
        return self._writer


def _entry_of(letters: Sequence[DeadLetter]) -> bytes:
    return json.dumps([_to_row(letter) for letter in letters]).encode()


def _letters_in(entry: bytes) -> list[DeadLetter]:
    return [_from_row(row) for row in json.loads(entry.removeprefix(_WITHDRAWN))]


def _truncated(entry: bytes, ends: Mapping[TopicPartition, int]) -> bytes:
    kept = _entry_of(letters_below(ends, _letters_in(entry)))
    return _WITHDRAWN + kept if _is_withdrawn(entry) else kept


def _to_row(letter: DeadLetter) -> list[Any]:
    partition, *rest = letter
    return [partition.topic, partition.partition, *rest]


def _from_row(row: list[Any]) -> DeadLetter:
    topic, partition, *rest = row
    return DeadLetter(TopicPartition(topic, partition), *rest)


_WITHDRAWN = b"withdrawn\n"


def _is_withdrawn(announced: bytes) -> bool:
    return announced.startswith(_WITHDRAWN)


@contextmanager
def _as_dead_letter_error() -> Iterator[None]:
    try:
        yield
    except ShareError:
        raise
    except Exception as fault:
        raise DeadLetterError(f"dead letters could not be written: {first_line(fault)}") from fault


def _numbered(letters: Sequence[DeadLetter]) -> Mapping[TopicPartition, NumberedRanges]:
    rows: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for number, letter in enumerate(letters):
        rows.setdefault(letter.partition, []).append((letter.first_offset, letter.last_offset, number))
    return {at: NumberedRanges(np.array(sorted(found), dtype=np.int64)) for at, found in rows.items()}
