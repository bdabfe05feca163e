"""The engine's delivery port, on Spark: records are read from the topic log by range and go to the handler. Nothing
here decides anything about a record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from share_spark.delivery.acquired_records import acquired_records
from share_spark.delivery.deliver import WORKER_LOST, DeliveryResult, deliver
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.traces import member_traces
from share_spark.delivery.worker import Terms
from share_spark.engine.ports import (
    AcknowledgedSpan,
    AcquiredSpan,
    Delivered,
    MemberTrace,
    TopicLog,
)
from share_spark.handlers.handler import HandlerKind
from share_spark.model.ids import TopicPartition
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
            _log.warning("the handler's job died with its workers, and what it did is not known")
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
        """A handler of frames runs where and when Spark schedules it: which record it was with is not known."""
        return self.handler.kind is not HandlerKind.FRAME


def is_one_machine(spark: SparkSession) -> bool:
    """Do all workers run where the driver does?"""
    return str(spark.sparkContext.master).startswith("local")


def _acknowledged(partition: TopicPartition, result: DeliveryResult) -> AcknowledgedSpan:
    acks = result.partitions[partition]
    ranges = np.column_stack([acks.first, acks.last, acks.ack.astype(np.int64)])
    return AcknowledgedSpan(partition, ranges, acks.errors)


def _all_lost(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = acquired.ranges[np.argsort(acquired.ranges[:, 0], kind="stable")].copy()
    ranges[:, 2] = Loss.UNKNOWN
    whole = (int(ranges[0, 0]), int(ranges[-1, 1]), WORKER_LOST)
    return AcknowledgedSpan(acquired.partition, ranges, [whole])
