"""Delivery to a handler that answers at once, by the code of a Spark task in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.companion.reading import record_schema
from share_spark.delivery.opened_handlers import opened_here
from share_spark.delivery.result import decoded, read_once
from share_spark.delivery.runs import OUTPUT_COLUMN, RUN_SCHEMA
from share_spark.delivery.traces import read_delivery
from share_spark.delivery.worker import HandlerTask, Terms
from share_spark.engine.delivery_port import AcquiredSpan, Delivered, DeliveryLimits
from share_spark.engine.ports import Claim
from share_spark.engine.record_reader import never_stops
from share_spark.handlers.handler import Handler
from share_spark.handlers.handler_objects import close, opened
from share_spark.spark.threads import TASK_COLUMN
from share_spark.testing.called_handler import Crash
from share_spark.testing.delivery_here import BATCH_ROWS, DeliveryHere

_PAYLOAD = b"in this process"


@dataclass(slots=True, kw_only=True)
class TaskDelivery(DeliveryHere):
    """Delivery port. ``_opened``: the handler, in its present process."""

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
        schema = record_schema(task.columns, ordered=self.ordered).append(pa.field(TASK_COLUMN, pa.string()))
        batches = list(self._part(acquired).batches(schema, BATCH_ROWS, never_stops))
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
