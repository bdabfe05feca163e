"""Output rows of a record handler, collected while it is called, and written to the ledger every 50 ms.

Rows that are only in the worker's memory are lost with it, and their records are delivered again. With this interval a
slow handler loses only its present record, and a fast handler little work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from share_spark.delivery.arrow_stream import table_in
from share_spark.delivery.ledger import CallStatus
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.output_schema import Row, row_table
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from share_spark.delivery.calling import Calls

_WRITE_EVERY_S = 0.05


MOST_LEFT_BYTES = 64 << 20
"""The most bytes of rows that an engine takes over from a dead one: they pass through its driver."""


def rows_in(chunks: Sequence[bytes], output: pa.Schema | None) -> pa.Table | None:
    """Return the rows that are in the ledgers of another engine; None if they are too many, or of another schema than
    ``output``, that of the present handler."""
    if output is None or sum(map(len, chunks)) > MOST_LEFT_BYTES:
        return None
    tables = [*map(table_in, chunks)]
    if any(table.schema != output for table in tables):
        return None
    return pa.concat_tables([output.empty_table(), *tables])


class RecordAnswers(NamedTuple):
    """The answers of a batch while they are collected: code, error and status by position."""

    codes: list[int]
    errors: dict[int, str]
    status: memoryview
    calls: Calls

    def release(self, position: int, error: str) -> None:
        """Release the record at ``position``: its output does not fit."""
        self.codes[position], self.errors[position] = int(Ack.RELEASE), error
        self.calls.note_misfit(error)
        self.calls.note_errors({position: error})
        self.status[position] = CallStatus.RELEASED


class OutputRows:
    """Rows of the records of one batch. A record with a row that does not fit the schema is released."""

    def __init__(self, schema: pa.Schema, answers: RecordAnswers) -> None:
        self._schema, self._answers = schema, answers
        self.names = dict.fromkeys(schema.names)
        self._rows: list[Row] = []
        self._owners: list[int] = []
        self._tables: list[pa.Table] = []
        self._due = 0.0

    def add(self, position: int, rows: list[Row]) -> None:
        """Add the rows of the record at ``position``, which has been accepted."""
        self._rows += rows
        self._owners += [position] * len(rows)

    def write(self, now: float, complete: int) -> float:
        """Write the collected rows if it is time; all records below ``complete`` are finished. Return the time of the
        next write."""
        if now >= self._due:
            if self._due:
                self.write_all(complete)
            self._due = now + _WRITE_EVERY_S
        return self._due

    def finish(self, complete: int) -> pa.Table:
        """Write the collected rows, and return all rows that fit."""
        self.write_all(complete)
        return pa.concat_tables(self._tables)

    def write_all(self, complete: int) -> None:
        """Write the collected rows now. Records whose rows do not fit are then released."""
        table = fitting_rows(self._rows, self._owners, self._schema, self._answers.release)
        self._rows, self._owners = [], []
        self._tables.append(table)
        if self._answers.calls.ledger is not None:
            self._answers.calls.ledger.write_rows(table, complete)


def fitting_rows(
    rows: Sequence[Row], owners: Sequence[int], schema: pa.Schema, release: Callable[[int, str], None]
) -> pa.Table:
    """Return the rows as a table; ``release`` is called with each owner that has a row that does not fit, and the
    error."""
    # One conversion for all rows; only if it fails, one for each record.
    try:
        return row_table(rows, schema)
    except HandlerError:
        return pa.concat_tables([schema.empty_table(), *_one_by_one(rows, owners, schema, release)])


def _one_by_one(
    rows: Sequence[Row], owners: Sequence[int], schema: pa.Schema, release: Callable[[int, str], None]
) -> list[pa.Table]:
    """Convert the rows record by record, as those of one do not fit."""
    tables = []
    by_owner: dict[int, list[Row]] = {}
    for owner, row in zip(owners, rows, strict=True):
        by_owner.setdefault(owner, []).append(row)
    for owner, some in by_owner.items():
        try:
            tables.append(row_table(some, schema))
        except HandlerError as fault:
            release(owner, str(fault))
    return tables
