"""The engine's dead-letter port: records are read from the topic log by range, by Spark or without it, and written to
the dead-letter target. Nothing here decides anything about a record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from share_spark.delivery.acquired_records import acquired_records
from share_spark.delivery.kept_input import Wanted
from share_spark.delta.journal import Journal
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import RECORD_COLUMNS, Claim, DeadLetter, DeadLetterTarget, NumberedSpan, TopicLog
from share_spark.engine.ranges import FIRST, LAST, NUMBER, AcquiredRanges, NumberedRanges, each_between
from share_spark.engine.record_reader import never_stops
from share_spark.model.errors import DeadLetterError, FencedError, ShareError, TopicError, TopicUnreachableError
from share_spark.model.ids import BatchStamp, TopicPartition
from share_spark.output.letter_journals import WITHDRAWN, LetterJournals, entry_of, is_withdrawn, letters_in
from share_spark.spark import functions as F
from share_spark.spark.errors import first_line, is_unreachable
from share_spark.spark.on_demand import AnySpark, given_session
from share_spark.spark.schemas import columns_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_log = logging.getLogger(__name__)

_MOST_KEPT, _MOST_KEPT_BYTES = 50_000, 16 << 20
"""The limits of a micro-batch's dead letters that are kept in memory until they are written: records, and bytes. More
are read again."""

_MOST_WAITING = 16
"""The number of micro-batches whose dead letters may wait to be written."""

_MOST_ROWS = 10_000

_READ_SCHEMA = columns_in(f"{RECORD_COLUMNS}, delivery_count int")

_FROM_ONE = np.array([0, 0, 1], np.int64)


class _NothingWaits:
    """The part of a dead-letter port that is about letters that wait to be written: none ever does."""

    __slots__ = ()

    def is_settled(self) -> bool:
        """Return True: nothing waits."""
        return True

    def check(self) -> None:
        """Do nothing: there is no earlier fault."""

    def wait(self) -> None:
        """Do nothing: nothing waits."""


@dataclass(slots=True, kw_only=True)
class NoDeadLetters(_NothingWaits):
    """The dead-letter port of a run without a target: it archives records without a letter."""

    spark: AnySpark
    _journals: LetterJournals | None = None

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Do nothing: there is no target."""

    def withdraw(self, stamp: BatchStamp) -> None:
        """Do nothing: there is no target."""

    def write(self, stamp: BatchStamp) -> None:
        """Do nothing: there is no target."""

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Truncate the letters of earlier runs. Raises DeadLetterError."""
        with _as_dead_letter_error():
            assert self._journals is not None, "used before recover"
            self._journals.truncate(ends)

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """Keep the letters of earlier runs for a run with a target. Raises DeadLetterError."""
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
    """A sink that writes to ``sink`` in a thread of its own, in the order of the stamps: what is announced is durable,
    so the micro-batch need not wait. All that waits is written together. After a fault nothing more is written; it all
    stays announced, for the next engine. Where brokers could not be reached ``check`` raises that and begins again."""

    sink: AnnouncedDeadLetters
    _stamps: list[BatchStamp] = field(default_factory=list)
    _fault: Exception | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Announce the letters at once."""
        self.sink.announce(stamp, letters)

    def withdraw(self, stamp: BatchStamp) -> None:
        """Withdraw the announcement at once."""
        self.sink.withdraw(stamp)

    def write(self, stamp: BatchStamp) -> None:
        """Write the letters soon. Waits where too much is to be written already."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault is not None or len(self._stamps) < _MOST_WAITING)
            self._stamps.append(stamp)
            if self._thread is None and self._fault is None:
                self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._work, name="share-spark-dead-letters", daemon=True)
        self._thread.start()

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Truncate the letters, after those that are being written now."""
        with self._writing:
            self.sink.truncate(ends)

    def is_settled(self) -> bool:
        """Return whether nothing waits, letters that cannot be written included."""
        with self._changed:
            return not self._stamps

    def check(self) -> None:
        """Raise the fault of an earlier ``write``."""
        fault = self._fault
        if isinstance(fault, TopicUnreachableError):
            with self._changed:
                self._fault = None
                self._begin()
        if fault is not None:
            raise fault

    def wait(self) -> None:
        """Wait until all is written. Raises the fault of an earlier ``write``."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault is not None or not self._stamps)
            if self._fault is not None:
                raise self._fault

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """Recover at once."""
        self.sink.recover(claim, last_counted, truncated)

    def _work(self) -> None:
        """Write until there is nothing to do, then end: the next letters begin another thread."""
        while True:
            with self._changed:
                if not self._stamps:
                    self._thread = None
                    return
                stamps = tuple(self._stamps)
            try:
                with self._writing:
                    self.sink.write_together(stamps)
                fault = None
            except Exception as found:  # noqa: BLE001 - the engine raises it
                fault = found
            with self._changed:
                self._fault = fault
                if fault is None:
                    del self._stamps[: len(stamps)]
                self._changed.notify_all()
                if fault is not None:
                    self._thread = None
                    return


class _LetterWriter(NamedTuple):
    claim: Claim
    journals: LetterJournals


@dataclass(slots=True, kw_only=True)
class AnnouncedDeadLetters(_NothingWaits):
    """A dead-letter port that finds the archived records, adds the reasons, and passes them to the target. ``write``
    returns when it has written.

    ``LetterJournals`` hold what is announced until it is written. ``kept``: records that workers have kept; others, and
    those of earlier engines, are read from the topic log once more.
    """

    spark: AnySpark
    log: TopicLog
    target: DeadLetterTarget
    kept: Callable[[Wanted], pa.Table | None] = lambda _: None
    _writer: _LetterWriter | None = None
    _found: dict[BatchStamp, pa.Table] = field(default_factory=dict)

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Put one journal entry. Raises DeadLetterError."""
        with _as_dead_letter_error():
            self._claimed.journals.announced.put(stamp, entry_of(letters))
            self._keep(stamp, letters)

    def _keep(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Keep the records of the letters, while the workers still have them."""
        self._found.pop(stamp, None)
        if sum(letter.last_offset - letter.first_offset + 1 for letter in letters) > _MOST_KEPT:
            return
        records = self.kept(_wanted(letters))
        if records is not None and records.nbytes <= _MOST_KEPT_BYTES:
            self._found[stamp] = _with_reasons(records, letters)

    def withdraw(self, stamp: BatchStamp) -> None:
        """Mark the entry as withdrawn. Raises DeadLetterError."""
        with _as_dead_letter_error():
            journal = self._claimed.journals.announced
            announced = journal.read(stamp)
            if announced is not None and not is_withdrawn(announced):
                journal.put(stamp, WITHDRAWN + announced)

    def write(self, stamp: BatchStamp) -> None:
        """Write the announced letters. Records that are gone from the log are left out. Raises DeadLetterError."""
        self.write_together([stamp])

    def write_together(self, stamps: Sequence[BatchStamp]) -> None:
        """Write ascending stamps in one append with the number of the last: a table that has this one takes none of the
        others again. Raises DeadLetterError, FencedError."""
        with _as_dead_letter_error():
            journal = self._claimed.journals.announced
            entries = _entries(journal, stamps)
            # A successor has taken over an entry, and may not have written it yet. A higher number in the table would
            # prevent that.
            if len(entries) < len(stamps):
                raise FencedError("another engine has taken over the dead letters of this one")
            self._write_entries(journal, entries)

    def truncate(self, ends: Mapping[TopicPartition, int]) -> None:
        """Truncate the letters in both journals. Raises DeadLetterError."""
        self._found.clear()
        with _as_dead_letter_error():
            self._claimed.journals.truncate(ends)

    def recover(self, claim: Claim, last_counted: BatchStamp, truncated: Mapping[TopicPartition, int]) -> None:
        """Write the letters that earlier engines left. Raises DeadLetterError."""
        with _as_dead_letter_error():
            journals = LetterJournals.of(self.spark, claim)
            self._writer = _LetterWriter(claim, journals)
            waiting = journals.settle(claim.writer_epoch, last_counted)
            journals.truncate(truncated)
            for stamp in waiting:
                _log.info("writing the dead letters of micro-batch %s, which an engine before left", stamp)
                if entries := _entries(journals.waiting, [stamp]):
                    self._write_entries(journals.waiting, entries)

    def _write_entries(self, journal: Journal, entries: Mapping[BatchStamp, bytes]) -> None:
        """Write the entries by ascending stamps; remove each when its letters are written."""
        found = [self._found[stamp] for stamp in entries if stamp in self._found]
        if len(found) == len(entries):
            letters: DataFrame | pa.Table = pa.concat_tables(found)
        else:
            letters = self._read([letter for entry in entries.values() for letter in letters_in(entry)])
        self.target.write(given_session(self.spark), self._claimed.claim, max(entries), letters)
        for stamp in entries:
            journal.remove(stamp)
            self._found.pop(stamp, None)

    def _read(self, reasons: Sequence[DeadLetter]) -> DataFrame | pa.Table:
        spark = given_session(self.spark)
        if spark is None:
            return _with_reasons(read_here(self.log, _numbered(reasons)), reasons)
        spans = [NumberedSpan(at, ranges) for at, ranges in _numbered(reasons).items()]
        records = acquired_records(spark, self.log, spans, tasks=spark.sparkContext.defaultParallelism, third="letter")
        notes = [(n, at.delivery_count, at.reason, at.error) for n, at in enumerate(reasons)]
        table = spark.createDataFrame(notes, "letter int, delivery_count int, reason string, error string")
        return records.join(F.broadcast(table), "letter").drop("letter")

    @property
    def _claimed(self) -> _LetterWriter:
        assert self._writer is not None, "used before recover"
        return self._writer


def read_here(log: TopicLog, numbered: Mapping[TopicPartition, NumberedRanges]) -> pa.Table:
    """Return the records of these ranges (RECORD_COLUMNS, and ``number`` from 1), read in this process. Raises
    TopicError: only Spark can read them."""
    # In place of a delivery count each record gets its number: workers read them in the same way.
    spans = [AcquiredSpan(at, AcquiredRanges(ranges + _FROM_ONE)) for at, ranges in numbered.items()]
    reader = log.for_workers(None, spans, ordered=False)
    if reader is None:
        raise TopicError("records for dead letters can only be read by Spark: run an engine of the group there")
    batches = list(reader.part(spans).batches(_READ_SCHEMA, _MOST_ROWS, never_stops))
    return pa.Table.from_batches(batches, _READ_SCHEMA).rename_columns([*_READ_SCHEMA.names[:-1], "number"])


def _entries(journal: Journal, stamps: Sequence[BatchStamp]) -> dict[BatchStamp, bytes]:
    return {stamp: entry for stamp in stamps if (entry := journal.read(stamp)) is not None}


def _wanted(letters: Sequence[DeadLetter]) -> Wanted:
    """Return each offset with the number of its letter, from 1."""
    found: dict[TopicPartition, tuple[NDArray[np.int64], NDArray[np.int32]]] = {}
    for at, ranges in _numbered(letters).items():
        offsets, rows = each_between(ranges[:, FIRST], ranges[:, LAST])
        found[at] = offsets, ranges[rows, NUMBER].astype(np.int32) + np.int32(1)
    return found


def _with_reasons(records: pa.Table, letters: Sequence[DeadLetter]) -> pa.Table:
    """Return ``records`` (RECORD_COLUMNS and ``number``) as letters. No headers are null, as in the topic log; handlers
    got an empty list."""
    numbers: list[Any] = records.column("number").to_pylist()
    of = [letters[number - 1] for number in numbers]
    headers: Any = records.column("headers")
    is_empty = pc.equal(pc.list_value_length(headers), pa.scalar(0, pa.int32()))
    columns = {
        **{name: records.column(name) for name in records.column_names if name not in ("number", "headers")},
        "headers": pc.if_else(is_empty, pa.scalar(None, headers.type), headers),
        "delivery_count": pa.array([letter.delivery_count for letter in of], pa.int32()),
        "reason": pa.array([letter.reason for letter in of], pa.string()),
        "error": pa.array([letter.error for letter in of], pa.string()),
    }
    return pa.table(columns)


@contextmanager
def _as_dead_letter_error() -> Iterator[None]:
    try:
        yield
    except Exception as fault:
        if is_unreachable(fault):
            raise TopicUnreachableError(f"dead letters could not be written: {first_line(fault)}") from fault
        if isinstance(fault, ShareError):
            raise
        raise DeadLetterError(f"dead letters could not be written: {first_line(fault)}") from fault


def _numbered(letters: Sequence[DeadLetter]) -> Mapping[TopicPartition, NumberedRanges]:
    rows: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for number, letter in enumerate(letters):
        rows.setdefault(letter.partition, []).append((letter.first_offset, letter.last_offset, number))
    return {at: NumberedRanges(np.array(sorted(found), dtype=np.int64)) for at, found in rows.items()}
