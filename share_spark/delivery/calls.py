"""The calls of one task: their limits of time, their notes, their measured pace, and what a batch of them comes to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from share_spark.delivery.judging import Contract
from share_spark.delivery.ledger import CallLedger, CallStatus
from share_spark.engine.record_reader import never_stops
from share_spark.handlers.acknowledgement import Answers
from share_spark.handlers.time_limit import TimeLimit
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from share_spark.delivery.key_batches import BatchOrder

LOOK_EVERY_S = 0.1
"""The time after which a task looks again whether the engine stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """The result of a batch: an answer per record, and output rows of accepted records if a schema is declared.
    ``fault``: how the handler has broken its contract as a whole, None if it has not; what it answered before is valid.
    """

    answers: Answers
    outputs: pa.Table | None = None
    fault: HandlerError | None = None


@dataclass(slots=True, kw_only=True)
class Calls(Contract):
    """The calls of one task: their time limit, their notes, their measured pace.

    ``until``: when the budget is used up (``time.monotonic``). ``is_stopping``: whether the engine stops; this looks at
    the file system. ``seconds_per_record``: how long a record has taken this handler before, None if that is not known.
    ``in_turn``: batches of one record. ``order``: by the keys of the present batch, None if there is no order.
    ``cost``: of all records (``costs``), ``estimate``: of the present one.
    """

    limit: TimeLimit
    ledger: CallLedger | None = None
    until: float = math.inf
    is_stopping: Callable[[], bool] = never_stops
    seconds_per_record: float | None = None
    in_turn: bool = False
    order: BatchOrder | None = None
    busy_s: float = 0.0
    cost: float = 0.0
    estimate: float = 0.0
    _next_look: float = -math.inf

    def are_over(self, now: float) -> bool:
        """Return whether no call may begin any more."""
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            if self.is_stopping():
                self.until = -math.inf
        return now >= self.until

    def begin(self, batch: pa.RecordBatch) -> memoryview:
        """Return one byte for the status of each record."""
        return memoryview(bytearray(batch.num_rows)) if self.ledger is None else self.ledger.begin(batch)

    def note_errors(self, errors: dict[int, str]) -> None:
        if self.ledger is not None:
            self.ledger.note_errors(errors)

    def note_delays(self, delays: dict[int, int]) -> None:
        if self.ledger is not None:
            self.ledger.note_delays(delays)

    def note_entered(self, batch: pa.RecordBatch, status: memoryview) -> None:
        """Count the records of ``batch`` that have a ``status``: they were called."""
        were_called = np.asarray(status) != CallStatus.NOT_ENTERED
        self.entered += int(were_called.sum())
        self.first_times += int((were_called & (batch.column("delivery_count").to_numpy() == 1)).sum())
