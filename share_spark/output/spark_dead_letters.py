"""The engine's dead-letter port, on Spark: records are read from the topic log by range and written to the dead-letter
target. Nothing here decides anything about a record."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F

from share_spark.delivery.acquired_records import acquired_records
from share_spark.delta.journal import Journal
from share_spark.engine.ports import (
    AcquiredSpan,
    DeadLetter,
    DeadLetterTarget,
    TopicLog,
    is_committed,
)
from share_spark.model.errors import DeadLetterError, ShareError
from share_spark.model.ids import BatchStamp, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDeadLetters:
    """Dead-letter port: reads the archived records once more, adds the reasons, passes them to the target.

    ``journal`` holds the announced letters until they are written; a withdrawn entry begins with the word "withdrawn".
    """

    spark: SparkSession
    log: TopicLog
    group_id: str
    target: DeadLetterTarget
    journal: Callable[[], Journal]

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """One journal entry. Raises DeadLetterError."""
        rows = [_to_row(letter) for letter in letters]
        with _as_dead_letter_error():
            self.journal().put(stamp, json.dumps(rows).encode())

    def withdraw(self, stamp: BatchStamp) -> None:
        """The same entry, marked. Raises DeadLetterError."""
        with _as_dead_letter_error():
            announced = self.journal().read(stamp)
            if announced is not None and not _is_withdrawn(announced):
                self.journal().put(stamp, _WITHDRAWN + announced)

    def write(self, stamp: BatchStamp) -> None:
        """Raises DeadLetterError. Records that are gone from the log have nothing to write and are left out."""
        with _as_dead_letter_error():
            journal = self.journal()
            announced = journal.read(stamp)
            if announced is None:
                return
            rows = json.loads(announced.removeprefix(_WITHDRAWN))
            self._write(stamp, [_from_row(row) for row in rows])
            journal.remove(stamp)

    def recover(self, last_counted: BatchStamp) -> None:
        """Raises DeadLetterError."""
        with _as_dead_letter_error():
            journal = self.journal()
            for stamp in journal.stamps():
                if is_committed(stamp, last_counted, withdrawn=_is_withdrawn(journal.read(stamp))):
                    _log.info("writing the dead letters of micro-batch %s, which the engine before left", stamp)
                    self.write(stamp)
                else:
                    journal.remove(stamp)

    def _write(self, stamp: BatchStamp, reasons: Sequence[DeadLetter]) -> None:
        spans = [AcquiredSpan(at, ranges) for at, ranges in _numbered(reasons).items()]
        records = acquired_records(
            self.spark, self.log, spans, tasks=self.spark.sparkContext.defaultParallelism, third="letter"
        )
        notes = [(n, at.delivery_count, at.reason, at.error) for n, at in enumerate(reasons)]
        table = self.spark.createDataFrame(notes, "letter int, delivery_count int, reason string, error string")
        letters = records.join(F.broadcast(table), "letter").drop("letter")
        self.target.write(self.spark, self.group_id, stamp, letters)


def _to_row(letter: DeadLetter) -> list[Any]:
    partition, *rest = letter
    return [partition.topic, partition.partition, *rest]


def _from_row(row: list[Any]) -> DeadLetter:
    topic, partition, *rest = row
    return DeadLetter(TopicPartition(topic, partition), *rest)


_WITHDRAWN = b"withdrawn\n"


def _is_withdrawn(announced: bytes | None) -> bool:
    return announced is not None and announced.startswith(_WITHDRAWN)


@contextmanager
def _as_dead_letter_error() -> Iterator[None]:
    try:
        yield
    except ShareError:
        raise
    except Exception as fault:
        raise DeadLetterError(f"dead letters could not be written: {str(fault).splitlines()[0]}") from fault


def _numbered(
    letters: Sequence[DeadLetter],
) -> Mapping[TopicPartition, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    rows: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for number, letter in enumerate(letters):
        rows.setdefault(letter.partition, []).append((letter.first_offset, letter.last_offset, number))
    return {at: np.array(sorted(found), dtype=np.int64).reshape(-1, 3) for at, found in rows.items()}
