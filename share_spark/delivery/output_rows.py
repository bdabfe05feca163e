"""Output rows of a record handler, collected while it is called, and written to the ledger every 50 ms.

Rows that are only in the worker's memory are lost with it, and their records are delivered again. With this interval a
slow handler loses only its present record, and a fast handler little work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from share_spark.delivery.ledger import CallStatus
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.output_schema import Row, row_table
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from share_spark.delivery.calls import Calls

_WRITE_EVERY_S = 0.05


MOST_LEFT_BYTES = 64 << 20
"""The most bytes of rows that an engine takes over from a dead one: they pass through its driver."""


def left_rows(tables: Iterable[pa.Table], output: pa.Schema | None) -> pa.Table | None:
    """Return rows from the ledgers of another engine as one table; None if they are too many, or of another schema than
    ``output``, that of the present handler."""
    if output is None:
        return None
    found, size = [output.empty_table()], 0
    for table in tables:
        size += table.nbytes
        if table.schema != output or size > MOST_LEFT_BYTES:
            return None
        found.append(table)
    return pa.concat_tables(found)


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

    def write(self, now: float) -> float:
        """Write the collected rows if it is time. Return the time of the next write."""
        if now >= self._due:
            if self._due:
                self.write_all()
            self._due = now + _WRITE_EVERY_S
        return self._due

    def finish(self) -> pa.Table:
        """Write the collected rows, and return all rows that fit."""
        self.write_all()
        return pa.concat_tables(self._tables)

    def write_all(self) -> None:
        """Write the collected rows now. Records whose rows do not fit are then released."""
        table, owners = fitting_rows(self._rows, self._owners, self._schema, self._answers.release)
        self._rows, self._owners = [], []
        self._tables.append(table)
        if self._answers.calls.ledger is not None:
            self._answers.calls.ledger.write_rows(table, owners)


class FittingRows(NamedTuple):
    """Rows that fit their schema. ``owners``: of each row the number of the record that it is of."""

    rows: pa.Table
    owners: Sequence[int]


def fitting_rows(
    rows: Sequence[Row], owners: Sequence[int], schema: pa.Schema, release: Callable[[int, str], None]
) -> FittingRows:
    """Return the rows of all ``owners`` whose rows fit; ``release`` is called with each of the others, and the
    error."""
    # One conversion for all rows; only if it fails, one for each record.
    try:
        return FittingRows(row_table(rows, schema), owners)
    except HandlerError:
        found = list(_one_by_one(rows, owners, schema, release))
        table = pa.concat_tables([schema.empty_table(), *(some for _, some in found)])
        return FittingRows(table, [owner for owner, some in found for _ in range(some.num_rows)])


def _one_by_one(
    rows: Sequence[Row], owners: Sequence[int], schema: pa.Schema, release: Callable[[int, str], None]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield each owner with its rows, converted one owner after another, as those of one do not fit."""
    by_owner: dict[int, list[Row]] = {}
    for owner, row in zip(owners, rows, strict=True):
        by_owner.setdefault(owner, []).append(row)
    for owner, some in by_owner.items():
        try:
            yield owner, row_table(some, schema)
        except HandlerError as fault:
            release(owner, str(fault))
