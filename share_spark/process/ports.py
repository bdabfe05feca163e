"""The engine's delivery and dead-letter ports, on Spark: records are read from the topic log by range and go to the
handler, or to the dead-letter target. Nothing here decides anything about a record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F

from share_spark.engine.ports import AcknowledgedSpan, AcquiredSpan, DeadLetter, DeadLetterTarget, TopicLog
from share_spark.model.errors import DeadLetterError, ShareError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType
from share_spark.process.acquired_records import acquired_records
from share_spark.process.delivery import WORKER_LOST, DeliveryResult, deliver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.process.handlers import Handler

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDelivery:
    """Delivery port: one Spark job per micro-batch, with as many tasks as there are cores."""

    spark: SparkSession
    log: TopicLog
    handler: Handler

    def deliver(self, acquired: Sequence[AcquiredSpan]) -> Sequence[AcknowledgedSpan]:
        """Raises HandlerError. A job that dies with its workers releases everything that it was given."""
        records = acquired_records(
            self.spark,
            self.log,
            acquired,
            tasks=self.spark.sparkContext.defaultParallelism,
            third="delivery_count",
        )
        topics = {one.partition.topic for one in acquired}
        result = deliver(records, self.handler, topic=topics.pop() if len(topics) == 1 else None)
        if result.lost:
            _log.warning("the handler's job died with its workers; what it was given is released")
            return [_all_released(one) for one in acquired]
        return [_acknowledged(partition, result) for partition in result.partitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDeadLetters:
    """Dead-letter port: reads the archived records once more, adds the reasons, hands them to the target."""

    spark: SparkSession
    log: TopicLog
    group_id: str
    target: DeadLetterTarget

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Raises DeadLetterError. Records that are gone from the log have nothing to write and are left out."""
        reasons = list(letters)
        spans = [AcquiredSpan(at, ranges) for at, ranges in _numbered(reasons).items()]
        try:
            records = acquired_records(
                self.spark, self.log, spans, tasks=self.spark.sparkContext.defaultParallelism, third="letter"
            )
            notes = [(n, at.delivery_count, at.reason, at.error) for n, at in enumerate(reasons)]
            table = self.spark.createDataFrame(notes, "letter int, delivery_count int, reason string, error string")
            self.target.write(self.spark, self.group_id, records.join(F.broadcast(table), "letter").drop("letter"))
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


def _all_released(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = acquired.ranges[np.argsort(acquired.ranges[:, 0], kind="stable")].copy()
    ranges[:, 2] = AcknowledgeType.RELEASE
    whole = (int(ranges[0, 0]), int(ranges[-1, 1]), WORKER_LOST)
    return AcknowledgedSpan(acquired.partition, ranges, [whole])
