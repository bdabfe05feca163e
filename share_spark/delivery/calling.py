"""Calls of a handler on one Arrow batch, inside a Python worker: each kind, and the result of its answers and faults.

What a handler *raises* is an answer: the record (of a batch handler: the whole batch) is released and the message kept;
or it is given back uncounted, if a service has throttled it (``throttling``). A record whose value cannot be decoded
(``values``) is rejected without a call.
So is a wrong *return value* for a record: an unknown acknowledgement, output that does not fit the schema, an object
that raises when it is inspected. A result that breaks the contract of a batch as a whole (a wrong length, no
acknowledgements at all) is a HandlerError, which ends the query.

Each call is noted before and after it (``ledger``), and no call begins once the time budget is used up, or the engine
stops: the remaining records are NOT_ENTERED. No Spark here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import pyarrow as pa

from share_spark.delivery.batch_calls import call_on_batch
from share_spark.delivery.calls import LOOK_EVERY_S, CallOutcome, Calls
from share_spark.delivery.judging import judged
from share_spark.delivery.ledger import STATUS_OF, CallStatus
from share_spark.delivery.output_rows import OutputRows, RecordAnswers
from share_spark.handlers.acknowledgement import Ack, Answers
from share_spark.handlers.costs import CostError, estimate
from share_spark.handlers.error_texts import exception_text
from share_spark.handlers.handler import Handler, Record
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.records import records_of
from share_spark.handlers.throttling import throttle_of
from share_spark.handlers.time_limit import OverrunError, TimeLimit, overrun_text
from share_spark.handlers.values import UndecodableError
from share_spark.model.errors import HandlerError
from share_spark.model.requests import Loss

_IN_HANDLER = int(CallStatus.IN_HANDLER)
_ACCEPTED = int(CallStatus.ACCEPTED)


def call_handler(handler: Handler, batch: pa.RecordBatch, calls: Calls) -> CallOutcome:
    """Call ``handler`` on the records of ``batch`` (KEY_COLUMNS, delivery_count and the columns it asked for), once for
    each, while there is time."""
    began = time.monotonic()
    try:
        if handler.kind is HandlerKind.RECORD:
            return _call_per_record(handler, batch, calls)
        return call_on_batch(handler, batch, calls)
    finally:
        calls.busy_s += time.monotonic() - began


def _call_per_record(handler: Handler, batch: pa.RecordBatch, calls: Calls) -> CallOutcome:
    """Call the handler on each record: the only loop over records.

    Names are bound before the loop, and time is read once per record: noting and watching a call takes a sixth of a
    microsecond.
    """
    found = _RecordResults.of(handler, batch, calls)
    call, limit, clock, status = found.call_of(handler), calls.limit, time.monotonic, found.status
    position, next_look = -1, 0.0
    for position, record in found.numbered(batch):
        now = clock()
        if now >= next_look:
            if calls.are_over(now):
                break
            next_look = found.look(now)
        # The status before the call: if the worker is lost during it, the ledger shows which record was in the handler.
        limit.since = now
        status[position] = _IN_HANDLER
        try:
            answer = call(record)
            limit.since = math.inf
        except OverrunError:
            found.fail(position, overrun_text(handler.timeout_ms or 0))
        except KeyboardInterrupt:  # by which Spark kills tasks
            raise
        except BaseException as fault:  # noqa: BLE001 - SystemExit, asyncio.CancelledError, panics of Rust
            limit.since = math.inf
            found.raised(position, fault)
        else:
            if answer is None or answer is Ack.ACCEPT:
                status[position] = _ACCEPTED
            else:
                found.judge(position, answer)
    else:
        position += 1
    calls.note_entered(batch, status)
    return found.outcome(position)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordResults:
    """The results of the records of a batch. ``codes``: one per record. Accepts are the usual case, so only other
    answers leave an entry in ``errors``. ``rows``: the output rows, if the handler has any."""

    calls: Calls
    status: memoryview
    codes: list[int]
    errors: dict[int, str]
    delays: dict[int, int]
    rows: OutputRows | None

    @classmethod
    def of(cls, handler: Handler, batch: pa.RecordBatch, calls: Calls) -> _RecordResults:
        """Return the results of a batch before its calls."""
        status = calls.begin(batch)
        codes = [int(Ack.ACCEPT)] * batch.num_rows
        errors: dict[int, str] = {}
        answers = RecordAnswers(codes, errors, status, calls)
        rows = None if handler.output is None else OutputRows(handler.output, answers)
        return cls(calls=calls, status=status, codes=codes, errors=errors, delays={}, rows=rows)

    def numbered(self, batch: pa.RecordBatch) -> Iterable[tuple[int, Record]]:
        """Yield the records that may be called now, with their numbers in the batch."""
        records, order = enumerate(records_of(batch)), self.calls.order
        return records if order is None else order.admitted(records, self.codes, self.delays, self.rows)

    def look(self, now: float) -> float:
        """Renew the time limit, write output rows that have waited; return when to look again."""
        again = min(self.calls.until, self.calls.limit.begin(now), now + LOOK_EVERY_S)
        return again if self.rows is None else min(again, self.rows.write(now))

    def call_of(self, handler: Handler) -> Callable[[Record], Any]:
        """Return the call of a record. What decodes its value is a part of it, and raises UndecodableError; a cost
        function is one as well, and raises CostError: it is asked for records that can be decoded."""
        cost, calls = handler.cost, self.calls
        if cost is None:
            return handler.call_of_record

        def call(record: Record) -> Any:
            calls.estimate = 0.0
            argument = handler.argument(record)
            calls.estimate = estimate(cost, record)
            calls.cost += calls.estimate
            return handler.call(argument)

        return call

    def raised(self, position: int, fault: BaseException) -> None:
        """Note what the call has raised."""
        if isinstance(fault, CostError):
            self.break_contract(position, str(fault))
            return
        if isinstance(fault, UndecodableError):
            self.fail(position, str(fault), int(Ack.REJECT))
            return
        throttle = throttle_of(fault)
        if throttle is None:
            self.fail(position, exception_text(fault))
        else:
            self.judge(position, throttle)

    def judge(self, position: int, answer: Any) -> None:
        """Note the return value of the handler."""
        try:
            found = judged(answer, None if self.rows is None else self.rows.names)
        except HandlerError as fault:
            self.break_contract(position, str(fault))
            return
        code, error, delay_ms, rows, status, cost = found
        if cost is not None:
            self.calls.cost += cost - self.calls.estimate
        if rows and self.rows is not None:
            self.rows.add(position, rows)
        if delay_ms is not None:
            self.delays[position] = delay_ms
            self.calls.note_delays({position: delay_ms})
        if error is not None:
            self.fail(position, error, code)
            return
        self.codes[position], self.status[position] = code, status

    def break_contract(self, position: int, error: str) -> None:
        """Note that there is no valid answer."""
        self.calls.note_misfit(error)
        self.fail(position, error)

    def fail(self, position: int, error: str, code: int = int(Ack.RELEASE)) -> None:
        """Note error and delay before the status: a status without them would be read as an answer without them."""
        self.codes[position], self.errors[position] = code, error
        self.calls.note_errors({position: error})
        self.status[position] = STATUS_OF[code]

    def outcome(self, entered: int) -> CallOutcome:
        """Return the outcome after the first ``entered`` records have been called."""
        outputs = self.rows.finish() if self.rows is not None else None
        self.codes[entered:] = [int(Loss.NOT_ENTERED)] * (len(self.codes) - entered)
        return CallOutcome(answers=Answers.listed(self.codes, self.errors, self.delays), outputs=outputs)


def watched_code() -> tuple[CodeType, ...]:
    """Return the functions here that call a handler: an alarm must not be raised in them."""
    return _call_per_record.__code__, TimeLimit.run.__code__
