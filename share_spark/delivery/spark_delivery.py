"""The engine's delivery port, on Spark: records are read from the topic log by range and go to the handler. Nothing
here decides anything about a record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from share_spark.delivery.acquired_records import acquired_records
from share_spark.delivery.deliver import WORKER_LOST, DeliveryResult, deliver
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.traces import member_traces
from share_spark.delivery.worker import Terms
from share_spark.engine.ports import (
    AcknowledgedSpan,
    AcquiredSpan,
    Claim,
    Delivered,
    ErrorRun,
    MemberTrace,
    TopicLog,
)
from share_spark.engine.ranges import ANSWER, AcknowledgedRanges, ascending
from share_spark.handlers.handler import HandlerKind
from share_spark.model.requests import Loss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.engine.ranges import ANSWER, AcknowledgedRanges, ascending
from share_spark.handlers.handler import Handler

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SparkDelivery:
    """Delivery port: one Spark job per micro-batch, with as many tasks as there are cores.

    Output rows of a delivery are kept until the next one.
    """

    spark: SparkSession
    log: TopicLog
    handler: Handler
    budget_ms: int = 10_000
    _place: LedgerPlace | None = None
    _result: DeliveryResult = field(default_factory=DeliveryResult)
    _seconds_per_record: float | None = None
    _others: Sequence[str] = ()

    def start(self, claim: Claim) -> None:
        """Workers keep their ledgers beside the state log."""
        self._place = place = ledger_place(self.spark, claim)
        self._others = place.all_others()
        if self._leaves_traces:
            place.start()

    def traces(self) -> Sequence[MemberTrace]:
        return member_traces(self._started) if self._leaves_traces else ()

    def forget_traces(self) -> None:
        self._started.forget(self._others)

    def forget_last(self) -> None:
        self._started.clear()

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
            place=self._started,
            terms=Terms(self.budget_ms / 1_000, self._seconds_per_record, in_turn),
        )
        if result.entered and not in_turn:
            self._seconds_per_record = result.busy_s * tasks / result.entered
        if result.lost:
            _log.warning("the handler's job died with its workers, and what it did is not known")
            return Delivered([_all_lost(one) for one in acquired])
        return Delivered(
            [*result.partitions.values()], result.fault, result.entered, result.busy_s, result.explains_deaths
        )

    @property
    def outputs(self) -> DataFrame | None:
        """The output rows of the last delivery, None if there are none."""
        return self._result.outputs

    def close(self) -> None:
        """Free the output rows of the last delivery."""
        self._result.close()
        self._result = DeliveryResult()

    @property
    def _started(self) -> LedgerPlace:
        assert self._place is not None, "asked before start"
        return self._place

    @property
    def _leaves_traces(self) -> bool:
        """A handler of frames runs where and when Spark schedules it: which record it was with is not known."""
        return self.handler.kind is not HandlerKind.FRAME


def ledger_place(spark: SparkSession, claim: Claim) -> LedgerPlace:
    """Where the workers of this engine keep their ledgers. In local mode they all run where the driver does."""
    one_machine = str(spark.sparkContext.master).startswith("local")
    return LedgerPlace.beside(claim.directory, claim.log_id, claim.group_id, claim.member_id, one_machine=one_machine)


def _all_lost(acquired: AcquiredSpan) -> AcknowledgedSpan:
    ranges = AcknowledgedRanges(ascending(acquired.ranges))
    ranges[:, ANSWER] = Loss.UNKNOWN
    whole = ErrorRun(int(ranges[0, 0]), int(ranges[-1, 1]), WORKER_LOST)
    return AcknowledgedSpan(acquired.partition, ranges, [whole])
