"""Calls of a handler on one Arrow batch, inside a Python worker: each kind, and the result of its answers and faults.

What a handler *raises* is an answer: the record (of a batch handler: the whole batch) is released and the message kept;
or it is given back uncounted, if a service has throttled it (``throttling``).
So is a wrong *return value* for a record: an unknown acknowledgement, output that does not fit the schema, an object
that raises when it is inspected. A result that breaks the contract of a batch as a whole (a wrong length, no
acknowledgements at all) is a HandlerError, which ends the query.

Each call is noted before and after it (``ledger``), and no call begins once the time budget is used up, or the engine
stops: the remaining records are NOT_ENTERED. No Spark here.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.judging import Contract, judged
from share_spark.delivery.ledger import STATUS_OF, CallLedger, CallStatus
from share_spark.delivery.output_rows import OutputRows, RecordAnswers
from share_spark.engine.record_reader import never_stops
from share_spark.handlers.acknowledgement import Ack, Answers
from share_spark.handlers.batch_answers import batch_answers, table_columns
from share_spark.handlers.costs import CostError, CostFunction, estimate, estimates
from share_spark.handlers.error_texts import NO_FAULTS, exception_text
from share_spark.handlers.handler import HANDLER_COLUMNS, Handler, Record
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.output_schema import column_table
from share_spark.handlers.records import records_of
from share_spark.handlers.throttling import throttle_of
from share_spark.handlers.time_limit import OverrunError, TimeLimit, overrun_text
from share_spark.model.errors import HandlerError
from share_spark.model.requests import Loss

if TYPE_CHECKING:
    from share_spark.delivery.key_batches import BatchOrder

_LOOK_EVERY_S = 0.1  # whether the engine stops

FIRST_SLICE = 64
"""The records of the first call of a batch handler whose pace is not known."""

_IN_HANDLER = int(CallStatus.IN_HANDLER)
_ACCEPTED = int(CallStatus.ACCEPTED)
_WITH_ROWS = int(CallStatus.ACCEPTED_WITH_ROWS)
_STATUS_OF = np.zeros(max(STATUS_OF) + 1, "u1")
_STATUS_OF[list(STATUS_OF)] = list(STATUS_OF.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """The result of a batch: an answer per record, and output rows of accepted records if a schema is declared."""

    answers: Answers
    outputs: pa.Table | None = None


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

    def are_over(self, now: float) -> bool:
        """Return whether no call may begin any more."""
        return now >= self.until or self.is_stopping()

    def begin(self, batch: pa.RecordBatch) -> memoryview:
        """Return one byte for the status of each record."""
        return memoryview(bytearray(batch.num_rows)) if self.ledger is None else self.ledger.begin(batch)

    def note_errors(self, errors: dict[int, str]) -> None:
        if self.ledger is not None:
            self.ledger.note_errors(errors)

    def note_delays(self, delays: dict[int, int]) -> None:
        if self.ledger is not None:
            self.ledger.note_delays(delays)

    def note_entered(self, batch: pa.RecordBatch, status: memoryview, entered: int) -> None:
        """Count the first ``entered`` records as called, except those without a ``status``: they were held back."""
        self.entered += entered
        were_called = np.asarray(status)[:entered] != CallStatus.NOT_ENTERED
        self.first_times += int((were_called & (batch.column("delivery_count").to_numpy()[:entered] == 1)).sum())


def call_handler(handler: Handler, batch: pa.RecordBatch, calls: Calls) -> CallOutcome:
    """Call ``handler`` on the records of ``batch`` (KEY_COLUMNS, delivery_count and the columns it asked for), once for
    each, while there is time.

    Raises HandlerError, with the handler's name in front, when it breaks its contract as a whole.
    """
    began = time.monotonic()
    try:
        if handler.kind is HandlerKind.RECORD:
            return _call_per_record(handler, batch, calls)
        return _call_on_batch(handler, batch, calls)
    except HandlerError as fault:
        raise HandlerError(f"handler {handler.name} {fault}") from None
    finally:
        calls.busy_s += time.monotonic() - began


# --------------------------------------------------------------------------- handlers of one record


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
    calls.note_entered(batch, status, position)
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
        again = min(self.calls.until, self.calls.limit.begin(now), now + _LOOK_EVERY_S)
        return again if self.rows is None else min(again, self.rows.write(now))

    def call_of(self, handler: Handler) -> Callable[[Record], Any]:
        """Return the call of a record. A cost function is a part of it, and raises CostError."""
        cost, calls = handler.cost, self.calls
        if cost is None:
            return handler.call

        def call(record: Record) -> Any:
            calls.estimate = estimate(cost, record)
            calls.cost += calls.estimate
            return handler.call(record)

        return call

    def raised(self, position: int, fault: BaseException) -> None:
        """Note what the call has raised."""
        if isinstance(fault, CostError):
            self.break_contract(position, str(fault))
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


# ------------------------------------------------------------------------------ handlers of a batch


def _call_on_batch(handler: Handler, batch: pa.RecordBatch, calls: Calls) -> CallOutcome:
    """Call the handler on the whole batch, or on parts of it if the budget of time requires."""
    done = [_call_on_slice(handler, part, calls) for part in _slices(batch, calls)]
    left = batch.num_rows - sum(len(one.answers.codes) for one in done)
    if left:
        done.append(CallOutcome(answers=Answers.same(left, Loss.NOT_ENTERED)))
    answers = Answers.concatenated([one.answers for one in done])
    tables = [one.outputs for one in done if one.outputs is not None]
    return CallOutcome(answers=answers, outputs=pa.concat_tables(tables) if tables else handler.no_rows)


def _slices(batch: pa.RecordBatch, calls: Calls) -> Iterator[pa.RecordBatch]:
    """Yield consecutive parts, each as large as is likely to be finished in time; the first is small if no pace is
    known."""
    at = 0
    while at < batch.num_rows:
        began = time.monotonic()
        if calls.are_over(began):
            return
        size = min(batch.num_rows - at, _slice_size(calls.until - began, calls))
        yield batch.slice(at, size)
        calls.seconds_per_record = (time.monotonic() - began) / size
        at += size


def _slice_size(left_s: float, calls: Calls) -> int:
    if calls.in_turn:
        return 1
    if left_s == math.inf:
        return 2**62
    if calls.seconds_per_record is None:
        return FIRST_SLICE
    return max(1, int(left_s / max(calls.seconds_per_record, 1e-9)))


def _call_on_slice(handler: Handler, batch: pa.RecordBatch, calls: Calls) -> CallOutcome:
    # Converted before the status says "in the handler": if this fails, there was no call.
    argument = _argument(handler, batch)
    status = calls.begin(batch)
    status[:] = bytes([_IN_HANDLER]) * batch.num_rows
    calls.note_entered(batch, status, batch.num_rows)
    answered = _answered if handler.cost is None else functools.partial(_answered_at_cost, handler.cost)
    outcome = answered(handler, batch, argument, calls)
    _note(outcome.answers, outcome.outputs, status, calls)
    return outcome


def _answered(handler: Handler, batch: pa.RecordBatch, argument: Any, calls: Calls) -> CallOutcome:
    """Call the handler, and take its answers. Raises HandlerError."""
    rows = batch.num_rows
    try:
        answer = calls.limit.run(handler.call, argument)
    except OverrunError:
        return _released(handler, overrun_text(handler.timeout_ms or 0, rows), rows)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # noqa: BLE001 - what a handler raises is an answer
        throttle = throttle_of(fault)
        if throttle is None:
            return _released(handler, exception_text(fault), rows)
        return CallOutcome(answers=batch_answers(throttle, rows), outputs=handler.no_rows)
    try:
        answers = batch_answers(answer, rows, handler.output.names if handler.output is not None else ())
        return _with_outputs(handler, answer, answers)
    except (HandlerError, *NO_FAULTS):
        raise
    except BaseException as fault:  # noqa: BLE001 - the user's code runs when its objects are inspected
        error = f"answered what cannot be looked at: {exception_text(fault)}"
        calls.note_misfit(error, rows)
        return _released(handler, error, rows)


def _answered_at_cost(
    cost: CostFunction, handler: Handler, batch: pa.RecordBatch, argument: Any, calls: Calls
) -> CallOutcome:
    """Do as ``_answered``, with the records of which the cost function says a cost; the others are released."""
    rows = batch.num_rows
    try:
        costs, faults = calls.limit.run(lambda records: estimates(cost, records), records_of(batch))
    except OverrunError:
        return _released(handler, overrun_text(handler.timeout_ms or 0, rows), rows)
    if not faults:
        found = _answered(handler, batch, argument, calls)
        return replace(found, answers=found.answers.with_estimates(costs))
    known: npt.NDArray[np.int64] = np.flatnonzero(~np.isnan(costs))
    found, part = _released(handler, "", 0), batch.take(known)
    if part.num_rows:
        found = _answered(handler, part, _argument(handler, part), calls)
    answers = found.answers.with_estimates(costs[known]).spread(rows, known).with_misfits(faults)
    return replace(found, answers=answers)


def _released(handler: Handler, error: str, rows: int) -> CallOutcome:
    return CallOutcome(answers=Answers.same(rows, Ack.RELEASE, error), outputs=handler.no_rows)


def _note(answers: Answers, outputs: pa.Table | None, status: memoryview, calls: Calls) -> None:
    """Note the answers. An accept with rows is complete once they are written: before that, the repeat of the task
    counts them as lost."""
    if answers.misfits:
        calls.note_misfit(answers.texts[-1], answers.misfits)
    calls.cost += answers.cost
    calls.note_errors(answers.errors())
    calls.note_delays(answers.delays())
    has_rows = outputs is not None and outputs.num_rows > 0  # of each accepted record, then
    accepted = _WITH_ROWS if has_rows else _ACCEPTED
    status[:] = np.where(answers.codes == Ack.ACCEPT, accepted, _STATUS_OF[answers.codes]).astype("u1").data
    if outputs is not None and has_rows and calls.ledger is not None:
        calls.ledger.write_rows(outputs, np.flatnonzero(answers.codes == Ack.ACCEPT))


def _argument(handler: Handler, batch: pa.RecordBatch) -> Any:
    """Return the argument of the handler, with only the columns it asked for."""
    wanted = handler.columns or HANDLER_COLUMNS
    if batch.schema.names != list(wanted):
        batch = batch.select(list(wanted))
    if handler.kind is HandlerKind.PANDAS:
        return batch.to_pandas()
    return pa.Table.from_batches([batch]) if handler.kind is HandlerKind.TABLE else batch


def _with_outputs(handler: Handler, answer: Any, answers: Answers) -> CallOutcome:
    """Return the outcome with output rows: columns beside the acknowledgements, rows of accepted records. An answer
    without columns has no output. A row that does not fit the schema releases its record."""
    columns = table_columns(answer)
    if handler.output is None or columns is None:
        return CallOutcome(answers=answers, outputs=handler.no_rows)
    table, misfits = column_table(answer, columns, handler.output, np.flatnonzero(answers.codes == Ack.ACCEPT))
    return CallOutcome(answers=answers.with_misfits(misfits), outputs=table)


def watched_code() -> tuple[CodeType, ...]:
    """Return the functions here that call a handler: an alarm must not be raised in them."""
    return _call_per_record.__code__, TimeLimit.run.__code__
