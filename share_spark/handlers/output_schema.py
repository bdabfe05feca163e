"""Output rows of handlers: the declared schema, and whether the returned rows fit it.

Output is written for accepted records only, together with their acknowledgements. The worker drops the rows of a record
that a handler releases or rejects: a released record is delivered again and would give its rows twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.handlers.acknowledgement import refuse_coroutine
from share_spark.handlers.batch_answers import column_of
from share_spark.handlers.column_faults import column_fault, refuse_null_entries
from share_spark.handlers.error_texts import NO_FAULTS, exception_text, shown
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OutputSchema: TypeAlias = "str | StructType | pa.Schema"
"""A schema as users declare it: DDL (``"id bigint, delay double"``), a StructType, or an Arrow schema."""

Row: TypeAlias = tuple[Any, ...]
"""A value for each column."""


def arrow_output(schema: str | StructType | pa.Schema, handler_name: str) -> pa.Schema:
    """Return the declared schema as an Arrow schema, in the types that Spark has. A running session parses what is rare
    in DDL. Raises HandlerError."""
    from share_spark.spark.schemas import declared_schema

    try:
        return declared_schema(schema)
    except ValueError as reason:
        raise HandlerError(f"handler {handler_name}: the output schema {reason}") from None


def rows_of_answer(rows: Any, names: Mapping[str, None]) -> list[Row]:
    """Return the rows that a record handler returned: None, one dict or tuple, or a list of them. They are copies, as
    the handler may use its dict again. ``names``: those of the columns. Raises HandlerError: no such rows, a name or a
    length that is not the schema's."""
    if rows is None:
        return []
    try:
        if isinstance(rows, list):
            return [_row(row, names) for row in rows]
        return [_row(rows, names)]
    except (HandlerError, *NO_FAULTS):
        raise
    except BaseException as fault:  # noqa: BLE001 - the user's code runs when its objects are looked at
        raise HandlerError(f"returned output that cannot be looked at: {exception_text(fault)}") from None


def _row(row: Any, names: Mapping[str, None]) -> Row:
    """Return a row's values in the order of ``names``. Raises HandlerError, and whatever the user's object raises."""
    if type(row) is dict or isinstance(row, Mapping):
        fields: dict[Any, Any] = row if type(row) is dict else dict(row)
        if not fields.keys() <= names.keys():
            unknown = ", ".join(name if isinstance(name, str) else shown(name) for name in fields if name not in names)
            raise HandlerError(f"returned output column {unknown}, which is not in the schema")
        return tuple(map(fields.get, names))
    if not isinstance(row, tuple):
        refuse_coroutine(row)
        raise HandlerError(f"returned output of type {type(row).__name__}: a row is a dict or a tuple")
    values = tuple(row)
    if len(values) != len(names):
        raise HandlerError(f"returned an output row of {len(values)} values for {len(names)} columns")
    return values


def row_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """Return the rows of a record handler as a table of the schema. Raises HandlerError: a value of another type."""
    if not rows:
        return schema.empty_table()
    columns = zip(*rows, strict=True)
    arrays = [_cast(list(values), field) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def column_table(
    answer: Any, columns: Sequence[str], schema: pa.Schema, wanted: npt.NDArray[np.int64]
) -> tuple[pa.Table, dict[int, str]]:
    """Return the output columns of a batch's answer for the rows ``wanted`` that fit the schema, and the errors of the
    others by row. Columns not in the schema are left out.
    Raises HandlerError: a column is missing.
    """
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise HandlerError(f"returned no output column {', '.join(missing)}, which the schema declares")
    chosen = {name: _taken(column_of(answer, name), wanted) for name in schema.names}
    misfits: dict[int, str] = {}
    for name, values in chosen.items():
        misfits = _misfits(values, schema.field(name)) | misfits
    return _fitting_rows(chosen, schema, misfits), {int(wanted[at]): text for at, text in misfits.items()}


def _fitting_rows(columns: Mapping[str, Any], schema: pa.Schema, misfits: Collection[int]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    if len(misfits) == rows:  # some types cannot be converted, even without rows
        return schema.empty_table()
    fitting = np.array([at for at in range(rows) if at not in misfits], np.int64) if misfits else None
    kept = columns if fitting is None else {name: _taken(values, fitting) for name, values in columns.items()}
    return pa.Table.from_arrays([_cast(kept[name], schema.field(name)) for name in schema.names], schema=schema)


def _taken(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    if len(rows) == len(values):
        return values
    return values.iloc[rows] if hasattr(values, "iloc") else values.take(pa.array(rows))


def _misfits(values: Any, field: pa.Field[Any]) -> dict[int, str]:
    """Return the errors of values that do not fit a column: one by one, but only if the column as a whole does not
    fit."""
    try:
        _cast(values, field)
        return {}
    except HandlerError:
        found = {}
        for at in range(len(values)):
            try:
                _cast(values.iloc[at : at + 1] if hasattr(values, "iloc") else values.slice(at, 1), field)
            except HandlerError as fault:
                found[at] = str(fault)
        return found


def _cast(values: Any, field: pa.Field[Any]) -> Any:
    """Return the values as a column of the field's type. Raises HandlerError."""
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            column: Any = values.cast(field.type)
        else:
            refuse_null_entries(values, field.type)
            column = pa.array(values, field.type, from_pandas=not isinstance(values, list))
    except NO_FAULTS:
        raise
    except BaseException as fault:  # noqa: BLE001 - the user's code runs when its objects are converted
        reason = " ".join(exception_text(fault).split())
        raise HandlerError(f"returned output column {field.name} that is no {field.type}: {reason}") from None
    if (fault_text := column_fault(column, field)) is not None:
        raise HandlerError(f"returned {fault_text}")
    return column
