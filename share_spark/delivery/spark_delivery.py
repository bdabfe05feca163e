"""The engine's delivery and dead-letter ports, on Spark: records are read from the topic log by range and go to the
handler, or to the dead-letter target. Nothing here decides anything about a record."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F

from share_spark.delivery.acquired_records import acquired_records
from share_spark.delivery.deliver import WORKER_LOST, DeliveryResult, deliver
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.traces import member_traces
from share_spark.delivery.worker import Terms
from share_spark.delta.journal import Journal
from share_spark.engine.ports import (
    AcknowledgedSpan,
    AcquiredSpan,
    DeadLetter,
    DeadLetterTarget,
    Delivered,
    MemberTrace,
    TopicLog,
    is_committed,
)
from share_spark.handlers.handler import HandlerKind
from share_spark.model.errors import DeadLetterError, ShareError
from share_spark.model.ids import BatchStamp, TopicPartition
from share_spark.model.requests import Loss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.handlers.handler import Handler

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SparkDelivery:
    """Delivery port: one Spark job per micro-batch, with as many tasks as there are cores.

    ``place``: where workers keep their ledgers, asked once the group is claimed. Output rows of a delivery are kept
    until the next one.
    """

    spark: SparkSession
    log: TopicLog
    handler: Handler
    place: Callable[[], LedgerPlace]
    budget_ms: int = 10_000
    _result: DeliveryResult = field(default_factory=DeliveryResult)
    _seconds_per_record: float | None = None
    _others: Sequence[str] = ()

    def start(self) -> None:
        self._others = self.place().all_others()
        if self._leaves_traces:
            self.place().start()

    def traces(self) -> Sequence[MemberTrace]:
        return member_traces(self.place()) if self._leaves_traces else ()

    def forget_traces(self) -> None:
        self.place().forget(self._others)

    def deliver(self, acquired: Sequence[AcquiredSpan], *, in_turn: bool = False) -> Delivered:
        """Raises ShareError."""
        self.close()
        tasks = 1 if in_turn else self.spark.sparkContext.defaultParallelism
        records = acquired_records(self.spark, self.log, acquired, tasks=tasks, third="delivery_count")
        topics = {one.partition.topic for one in acquired}
        self._result = result = deliver(
            records.coalesce(1) if in_turn else records,
            self.handler,
            topic=topics.pop() if len(topics) == 1 else None,
            place=self.place(),
            terms=Terms(self.budget_ms / 1_000, self._seconds_per_record, in_turn),
        )
        if result.entered and not in_turn:
            self._seconds_per_record = result.busy_s * tasks / result.entered
        if result.lost:
            _log.warning("the handler's job died with its workers, and nobody knows what it did")
            return Delivered([_all_lost(one) for one in acquired])
        answers = [_acknowledged(partition, result) for partition in result.partitions]
        return Delivered(answers, result.fault, result.entered, result.busy_s, result.explains_deaths)

    @property
    def outputs(self) -> DataFrame | None:
        """The output rows of the last delivery, None if there are none."""
        return self._result.outputs

    def close(self) -> None:
        """Free the output rows of the last delivery."""
        self._result.close()
        self._result = DeliveryResult()

    @property
    def _leaves_traces(self) -> bool:
        """A handler of frames runs where and when Spark likes: nobody knows which record it was with."""
        return self.handler.kind is not HandlerKind.FRAME


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDeadLetters:
    """Dead-letter port: reads the archived records once more, adds the reasons, hands them to the target.

    ``journal`` holds what is announced until it is written; an entry that is withdrawn begins with that word.
    """

    spark: SparkSession
    log: TopicLog
    group_id: str
    target: DeadLetterTarget
    journal: Callable[[], Journal]

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """One journal entry. Raises DeadLetterError."""
        rows = [(*letter.partition, *letter[1:]) for letter in letters]
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
            self._write(stamp, [DeadLetter(TopicPartition(*row[:2]), *row[2:]) for row in rows])
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


def is_one_machine(spark: SparkSession) -> bool:
    """Do all workers run where the driver does?"""
    return str(spark.sparkContext.master).startswith("local")


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


def _acknowledged(partition: TopicPartition, result: DeliveryResult) -> AcknowledgedSpan:
    acks = result.partitions[partition]
    ranges = np.column_stack([acks.first, acks.last, acks.ack.astype(np.int64)])
    return AcknowledgedSpan(partition, ranges, acks.errors)


def _all_lost(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = acquired.ranges[np.argsort(acquired.ranges[:, 0], kind="stable")].copy()
    ranges[:, 2] = Loss.UNKNOWN
    whole = (int(ranges[0, 0]), int(ranges[-1, 1]), WORKER_LOST)
    return AcknowledgedSpan(acquired.partition, ranges, [whole])
