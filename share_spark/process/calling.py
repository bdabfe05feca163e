"""Calling a handler on one Arrow batch, inside a Python worker: kind by kind, and what its answers
and faults become.

What a handler *raises* is an answer: the record (of a batch handler: the whole batch) is released
and the message kept. What it *returns* wrongly breaks its contract: HandlerError, which ends the
job. Nothing here knows of Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from share_spark.model.errors import HandlerError
from share_spark.process.acknowledgement import (
    Ack,
    Answers,
    batch_answers,
    exception_text,
    single_answer,
    table_columns,
)
from share_spark.process.handlers import HANDLER_COLUMNS, Handler, HandlerKind, Record
from share_spark.process.output import Row, column_table, listed_rows, row_table
from share_spark.process.timelimit import OverrunError, TimeLimit

_FAULTS = (Exception, SystemExit)
"""What a handler may raise. Not KeyboardInterrupt, by which Spark kills tasks; SystemExit would end
the worker."""


_SECONDS = (
    datetime(1, 1, 2, tzinfo=UTC).timestamp(),
    datetime(9999, 12, 30, tzinfo=UTC).timestamp(),
)
"""What a datetime can hold in any time zone. Seconds as float are exact to the microsecond up to the year 2255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a batch: an answer per record, and output rows of accepted records if a schema
    is declared."""

    answers: Answers
    outputs: pa.Table | None = None


def call_handler(handler: Handler, batch: pa.RecordBatch, limit: TimeLimit) -> Outcome:
    """Calls ``handler`` on the records of ``batch`` (KEY_COLUMNS and the columns it asked for),
    once for each.

    Raises HandlerError, its name in front, when it returns what it must not.
    """
    try:
        if handler.kind is HandlerKind.RECORD:
            return _call_per_record(handler, batch, limit)
        return _call_on_batch(handler, batch, limit)
    except HandlerError as fault:
        raise HandlerError(f"handler {handler.name} {fault}") from None


def overrun_text(limit_ms: int) -> str:
    """The error of a record that took too long."""
    return f"time limit of {limit_ms} ms exceeded"


# ------------------------------------------------------------------------------ handlers of a batch


def _call_on_batch(handler: Handler, batch: pa.RecordBatch, limit: TimeLimit) -> Outcome:
    call = _limited(handler, limit, batch.num_rows)
    argument = _argument(handler, batch)
    try:
        answer = call(argument)
    except OverrunError:
        text = overrun_text((handler.record_timeout_ms or 0) * batch.num_rows)
        return _all_released(handler, batch, f"{text} by a batch of {batch.num_rows} records")
    except _FAULTS as fault:
        return _all_released(handler, batch, exception_text(fault))
    answers = batch_answers(answer, batch.num_rows)
    return Outcome(answers=answers, outputs=_batch_outputs(handler, answer, answers))


def _all_released(handler: Handler, batch: pa.RecordBatch, error: str) -> Outcome:
    outputs = handler.output.empty_table() if handler.output is not None else None
    return Outcome(answers=Answers.same(batch.num_rows, Ack.RELEASE, error), outputs=outputs)


def _argument(handler: Handler, batch: pa.RecordBatch) -> Any:
    """What the handler is given, with the columns it asked for only."""
    wanted = handler.columns or HANDLER_COLUMNS
    if batch.schema.names != list(wanted):
        batch = batch.select(list(wanted))
    if handler.kind is HandlerKind.PANDAS:
        return batch.to_pandas()
    return pa.Table.from_batches([batch]) if handler.kind is HandlerKind.TABLE else batch


def _batch_outputs(handler: Handler, answer: Any, answers: Answers) -> pa.Table | None:
    """Columns beside the acknowledgements, rows of accepted records. An answer without columns has
    no output."""
    if handler.output is None:
        return None
    columns = table_columns(answer)
    if columns is None:
        return handler.output.empty_table()
    table = column_table(answer, columns, handler.output)
    return table.filter(pa.array(answers.codes == Ack.ACCEPT))


# --------------------------------------------------------------------------- handlers of one record


def _call_per_record(handler: Handler, batch: pa.RecordBatch, limit: TimeLimit) -> Outcome:
    """The one loop over records. Accepts are what is expected, so only the others leave a mark."""
    call = _limited(handler, limit, 1)
    with_output = handler.output is not None
    codes = [int(Ack.ACCEPT)] * batch.num_rows
    errors: dict[int, str] = {}
    rows: list[Row] = []
    for position, record in enumerate(records_of(batch)):
        try:
            answer = call(record)
        except OverrunError:
            codes[position] = Ack.RELEASE
            errors[position] = overrun_text(handler.record_timeout_ms or 0)
            continue
        except _FAULTS as fault:
            codes[position] = Ack.RELEASE
            errors[position] = exception_text(fault)
            continue
        if answer is None or answer is Ack.ACCEPT:
            continue
        try:
            codes[position], error = _judged(answer, with_output, rows)
        except HandlerError as fault:
            raise HandlerError(f"on {record.topic}-{record.partition}@{record.offset}: {fault}") from None
        if error is not None:
            errors[position] = error
    outputs = row_table(rows, handler.output) if handler.output is not None else None
    return Outcome(answers=Answers.listed(codes, errors), outputs=outputs)


def _judged(answer: Any, with_output: bool, rows: list[Row]) -> tuple[int, str | None]:
    """(code, error) of a record's answer; its output rows are added to ``rows`` if it accepts."""
    if type(answer) is not tuple:
        return single_answer(answer)
    if not with_output:
        raise HandlerError("returned (acknowledgement, rows) but no output schema is declared")
    if len(answer) != 2:
        raise HandlerError(f"returned a tuple of {len(answer)}, not (acknowledgement, rows)")
    code, error = single_answer(Ack.ACCEPT if answer[0] is None else answer[0])
    returned = listed_rows(answer[1])
    if code == Ack.ACCEPT:
        rows.extend(returned)
    return code, error


def _limited(handler: Handler, limit: TimeLimit, records: int) -> Callable[[Any], Any]:
    """The handler's function, under its time limit for this many records if it has one."""
    if handler.record_timeout_ms is None:
        return handler.call
    limit_s = handler.record_timeout_ms * records / 1000
    return lambda argument: limit.run(handler.call, argument, limit_s)


# ----------------------------------------------------------------------------- records from columns


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of a batch. A column that was not read leaves its field at the default."""
    columns = [_VALUES[name](batch, name) for name in Record._fields]
    rows = zip(*columns, strict=False)
    return map(Record._make, itertools.islice(rows, batch.num_rows))


def _numbers(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if name not in batch.schema.names:
        return itertools.repeat(Record._field_defaults[name])
    values: list[int] = batch.column(name).to_numpy(zero_copy_only=False).tolist()
    return values


def _names(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    """Topics: few different ones, mostly one."""
    encoded = batch.column(name).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return itertools.repeat(names[0])
    return [names[index] for index in encoded.indices.to_numpy(zero_copy_only=False).tolist()]


def _bytes(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if not _filled(batch, name):
        return itertools.repeat(None)
    values: list[bytes | None] = batch.column(name).to_numpy(zero_copy_only=False).tolist()
    return values


def _times(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    """Aware datetimes in UTC. A producer may claim any year: what a datetime cannot hold is clipped to what it can."""
    if not _filled(batch, name):
        return itertools.repeat(None)
    column: Any = batch.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    seconds = np.clip(column.fill_null(0).to_numpy() / 1e6, *_SECONDS).tolist()
    times = map(datetime.fromtimestamp, seconds, itertools.repeat(UTC))
    if not column.null_count:
        return times
    return [time if known else None for time, known in zip(times, column.is_valid().to_pylist(), strict=True)]


def _headers(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if not _filled(batch, name):
        return itertools.repeat(())
    lists: Any = batch.column(name)
    if not len(lists.flatten()):
        return itertools.repeat(())
    return [tuple((header["key"], header["value"]) for header in each or ()) for each in lists.to_pylist()]


def _filled(batch: pa.RecordBatch, name: str) -> bool:
    """Whether the column was read and holds anything but nulls."""
    if name not in batch.schema.names:
        return False
    column = batch.column(name)
    return column.null_count < len(column)


_VALUES: dict[str, Callable[[pa.RecordBatch, str], Iterable[Any]]] = {
    **dict.fromkeys(("partition", "offset", "delivery_count"), _numbers),
    **dict.fromkeys(("key", "value"), _bytes),
    "topic": _names,
    "timestamp": _times,
    "headers": _headers,
}
