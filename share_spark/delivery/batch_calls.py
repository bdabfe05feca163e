"""Calls of a handler of batches on one Arrow batch: as a whole, in parts if the budget of time requires that, and in
order of keys in waves, in which no key occurs twice.

All records of the batch have one block in the ledger. Each call has some of its rows, and its answers come back to
their places:

    row        0  1  2  3  4  5       keys a a b c b a
    call 1     0     2  3             released: 2, so 4 is not entered
    call 2        1
    call 3                 5
    answers    1  1  2  1  -  1
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.calls import CallOutcome, Calls
from share_spark.delivery.ledger import STATUS_OF, CallStatus
from share_spark.handlers.acknowledgement import Ack, Answers
from share_spark.handlers.batch_answers import batch_answers, table_columns
from share_spark.handlers.costs import CostFunction, estimates
from share_spark.handlers.error_texts import NO_FAULTS, exception_text
from share_spark.handlers.handler import HANDLER_COLUMNS, Handler
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.output_schema import column_table
from share_spark.handlers.records import records_of
from share_spark.handlers.throttling import throttle_of
from share_spark.handlers.time_limit import OverrunError, overrun_text
from share_spark.model.errors import HandlerError
from share_spark.model.requests import Loss

if TYPE_CHECKING:
    from share_spark.delivery.key_batches import BatchOrder

FIRST_SLICE = 64
"""The records of the first call of a batch handler whose pace is not known."""

Rows = npt.NDArray[np.intp]
"""Numbers of rows of a batch, ascending."""

T = TypeVar("T")

_IN_HANDLER = int(CallStatus.IN_HANDLER)
_ACCEPTED = int(CallStatus.ACCEPTED)
_WITH_ROWS = int(CallStatus.ACCEPTED_WITH_ROWS)
_STATUS_OF = np.zeros(max(STATUS_OF) + 1, "u1")
_STATUS_OF[list(STATUS_OF)] = list(STATUS_OF.values())


def call_on_batch(handler: Handler, batch: pa.RecordBatch, calls: Calls) -> CallOutcome:
    """Call the handler on all records that may be called now, while there is time."""
    status, fault = calls.begin(batch), None
    done: list[tuple[Rows, CallOutcome]] = []
    try:
        for wave in _waves(batch, calls.order):
            for rows in _slices(wave, calls):
                outcome = _call_on_rows(handler, batch, rows, status, calls)
                done.append((rows, outcome))
                if calls.order is not None:
                    calls.order.note(rows, outcome.answers)
    except HandlerError as error:
        fault = HandlerError(f"handler {handler.name} {error}")
    finally:
        calls.note_entered(batch, status)
    return replace(_together(handler, batch.num_rows, done), fault=fault)


def _waves(batch: pa.RecordBatch, order: BatchOrder | None) -> Iterable[Rows]:
    return [np.arange(batch.num_rows)] if order is None else order.waves()


def _slices(rows: Rows, calls: Calls) -> Iterator[Rows]:
    """Yield consecutive parts, each as large as is likely to be finished in time; the first is small if no pace is
    known."""
    at = 0
    while at < len(rows):
        began = time.monotonic()
        if calls.are_over(began):
            return
        size = min(len(rows) - at, _slice_size(calls.until - began, calls))
        yield rows[at : at + size]
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


def _call_on_rows(handler: Handler, batch: pa.RecordBatch, rows: Rows, status: memoryview, calls: Calls) -> CallOutcome:
    called = _picked(batch, rows)
    # Converted before the status says "in the handler": if this fails, there was no call.
    argument = _argument(handler, called)
    np.asarray(status)[rows] = _IN_HANDLER
    answered = _answered if handler.cost is None else functools.partial(_answered_at_cost, handler.cost)
    outcome = answered(handler, called, argument, calls)
    _note(outcome, rows, status, calls)
    return outcome


def _picked(batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
    """Return these rows, without a copy where they follow each other."""
    first = int(rows[0])
    is_slice = int(rows[-1]) - first + 1 == len(rows)
    return batch.slice(first, len(rows)) if is_slice else batch.take(rows)


def _together(handler: Handler, records: int, done: Sequence[tuple[Rows, CallOutcome]]) -> CallOutcome:
    """Return the outcome of all calls on a batch of so many ``records``; the others were not entered."""
    tables = [one.outputs for _, one in done if one.outputs is not None]
    outputs = pa.concat_tables(tables) if tables else handler.no_rows
    if not done:
        return CallOutcome(answers=Answers.same(records, Loss.NOT_ENTERED), outputs=outputs)
    answers = Answers.concatenated([one.answers for _, one in done])
    rows = np.concatenate([some for some, _ in done])
    if len(done) > 1 or len(rows) < records:
        answers = answers.spread(records, rows, Loss.NOT_ENTERED)
    return CallOutcome(answers=answers, outputs=outputs)


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


def _note(outcome: CallOutcome, rows: Rows, status: memoryview, calls: Calls) -> None:
    """Note the answers. An accept with rows is complete once they are written: before that, the repeat of the task
    counts them as lost."""
    answers, outputs = outcome.answers, outcome.outputs
    if answers.misfits:
        calls.note_misfit(answers.texts[-1], answers.misfits)
    calls.cost += answers.cost
    calls.note_errors(_by_row(rows, answers.errors()))
    calls.note_delays(_by_row(rows, answers.delays()))
    has_rows = outputs is not None and outputs.num_rows > 0  # of each accepted record, then
    accepted = _WITH_ROWS if has_rows else _ACCEPTED
    np.asarray(status)[rows] = np.where(answers.codes == Ack.ACCEPT, accepted, _STATUS_OF[answers.codes])
    if outputs is not None and has_rows and calls.ledger is not None:
        calls.ledger.write_rows(outputs, rows[answers.codes == Ack.ACCEPT])


def _by_row(rows: Rows, noted: dict[int, T]) -> dict[int, T]:
    """Return what is ``noted`` of the n-th of ``rows`` by row of the batch."""
    return {int(rows[at]): one for at, one in noted.items()}


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
