"""Delivery to a handler that answers at once, by the code of a Spark task in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.delivery.member_ledgers import LedgerDelivery
from share_spark.delivery.opened_handlers import opened_here
from share_spark.delivery.result import decoded, read_once
from share_spark.delivery.runs import OUTPUT_COLUMN, RUN_SCHEMA
from share_spark.delivery.traces import read_delivery
from share_spark.delivery.worker import HandlerTask, Terms
from share_spark.engine.delivery_port import AcknowledgedSpan, AcquiredSpan, Delivered, DeliveryAtOnce, DeliveryLimits
from share_spark.engine.ports import Claim, TopicLog
from share_spark.handlers.handler import Handler
from share_spark.handlers.handler_objects import close, opened
from share_spark.model.ids import TopicPartition
from share_spark.testing.acquired_rows import acquired_batches
from share_spark.testing.called_handler import CallLog, Crash

if TYPE_CHECKING:
    from share_spark.delivery.kept_input import Wanted

_PAYLOAD = b"in this process"


@dataclass(slots=True, kw_only=True)
class TaskDelivery(DeliveryAtOnce, LedgerDelivery):
    """Delivery port. ``rows``: the output rows of the last delivery. ``_opened``: the handler, in its present
    process."""

    log: TopicLog
    handler: Handler
    ordered: bool
    calls_log: CallLog
    rows: Sequence[pa.Table] = ()
    _opened: Handler | None = None

    def start(self, claim: Claim) -> None:
        """See ``Delivery``."""
        self._ledgers.start(None, claim)

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        """Run a task, and again after each death of its process, as Spark does. Raises ShareError."""
        place = self._ledgers.place
        place.clear()
        terms = Terms(limits.budget_ms / 1_000, None, in_turn, limits.timeout_ms)
        task = HandlerTask.of(self.handler, place, _PAYLOAD, ordered=self.ordered, terms=terms)
        batches = list(acquired_batches(self.log, acquired, task.columns, ordered=self.ordered))
        while (sent := self._run(task, batches)) is None:
            self._opened = None  # it has died with its process: it is not closed
        for directory in place.deliveries(place.member_id):
            self.calls_log.note(read_delivery(directory))
        runs, self.rows = _parted(sent)
        found = decoded(runs, read_once)
        answers = [*found.partitions.values()]
        return Delivered(answers, found.fault, found.entered, found.busy_s, found.explains_deaths, cost=found.cost)

    def _run(self, task: HandlerTask, batches: Sequence[pa.RecordBatch]) -> pa.Table | None:
        """Return what the task sends; None: its process has died. Raises HandlerError: it cannot be opened."""
        self._opened = self._opened or opened(self.handler)
        with opened_here(self.calls_log.counted(self._opened), _PAYLOAD):
            try:
                return pa.Table.from_batches(list(task(iter(batches))))
            except Crash:
                return None

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:  # noqa: ARG002
        """Return False: no engine was there before."""
        return False

    def kept_records(self, wanted: Wanted) -> pa.Table | None:  # noqa: ARG002
        """Return None: the log has them."""
        return None

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        """Do nothing: the log is not truncated."""

    def stop_waiting(self) -> None:
        """Do nothing: no record is waited for."""

    def close(self) -> None:
        """Close the handler."""
        if self._opened is not None:
            close(self._opened)


def _parted(sent: pa.Table) -> tuple[pa.Table, Sequence[pa.Table]]:
    """Return (the runs, the output rows)."""
    if OUTPUT_COLUMN not in sent.schema.names:
        return sent, ()
    is_run = pc.is_null(sent.column(OUTPUT_COLUMN))
    outputs: Any = sent.filter(pc.invert(is_run)).column(OUTPUT_COLUMN)
    return sent.filter(is_run).select(RUN_SCHEMA.names), [pa.Table.from_struct_array(outputs)]
