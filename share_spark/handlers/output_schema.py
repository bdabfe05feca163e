"""Output rows of handlers: the declared schema, and whether the returned rows fit it.

Output is written for accepted records only, together with their acknowledgements. Rows that a handler returns for a
record which it releases or rejects are dropped in the worker: a released record is delivered again and would give its
rows twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.handlers.batch_answers import column_of
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OutputSchema: TypeAlias = "str | StructType | pa.Schema"
"""A schema as users declare it: DDL (``"id bigint, delay double"``), a StructType, or an Arrow schema."""

Row: TypeAlias = Mapping[str, Any] | Sequence[Any]


def arrow_output(schema: str | StructType | pa.Schema, handler_name: str) -> pa.Schema:
    """The declared schema in Arrow's terms, in the types that Spark has. DDL is parsed by the session that runs. Raises
    HandlerError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    from share_spark.spark.arrow_types import arrow_schema, spark_schema

    try:
        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        spark_type = spark_schema(parsed) if isinstance(parsed, pa.Schema) else parsed
        if not isinstance(spark_type, StructType) or not spark_type.fields:
            raise HandlerError(f"handler {handler_name}: the output schema is not a list of columns")
        return arrow_schema(spark_type)
    except PySparkException as fault:
        reason = str(fault).strip().splitlines()[0]
        raise HandlerError(f"handler {handler_name}: the output schema is wrong: {reason}") from None


def listed_rows(rows: Any) -> list[Row]:
    """The rows a record handler returned: None, one dict or tuple, or a list of them. Raises HandlerError."""
    if rows is None:
        return []
    if isinstance(rows, Mapping | tuple):
        return [rows]
    if isinstance(rows, list) and all(isinstance(row, Mapping | tuple) for row in rows):
        return rows
    raise HandlerError(f"returned output of type {type(rows).__name__}: a row is a dict or a tuple")


def row_table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    """Rows of a record handler as a table of the schema. Raises HandlerError: a name, length or type that is not
    its."""
    names = schema.names
    for row in rows:
        if isinstance(row, Mapping) and (unknown := sorted(set(row) - set(names))):
            raise HandlerError(f"returned output column {', '.join(unknown)}, which is not in the schema")
        if not isinstance(row, Mapping) and len(row) != len(names):
            raise HandlerError(f"returned an output row of {len(row)} values for {len(names)} columns")
    dicts = [row if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in rows]
    columns = [_cast([row.get(name) for row in dicts], schema.field(name)) for name in names]
    return pa.Table.from_arrays(columns, schema=schema)


def column_table(
    answer: Any, columns: Sequence[str], schema: pa.Schema, wanted: npt.NDArray[np.int64]
) -> tuple[pa.Table, dict[int, str]]:
    """The output columns beside the acknowledgements of a batch, of the rows ``wanted`` as far as they fit the schema,
    and why the others do not, by row. Columns not in the schema are left out.

    Raises HandlerError: a column is missing.
    """
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise HandlerError(f"returned no output column {', '.join(missing)}, which the schema declares")
    chosen = {name: _taken(column_of(answer, name), wanted) for name in schema.names}
    misfits: dict[int, str] = {}
    for name, values in chosen.items():
        misfits = _misfits(values, schema.field(name)) | misfits
    fitting = np.array([at for at in range(len(wanted)) if at not in misfits], np.int64) if misfits else None
    kept = chosen if fitting is None else {name: _taken(values, fitting) for name, values in chosen.items()}
    table = pa.Table.from_arrays([_cast(kept[name], schema.field(name)) for name in schema.names], schema=schema)
    return table, {int(wanted[at]): text for at, text in misfits.items()}


def _taken(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    if len(rows) == len(values):
        return values
    return values.iloc[rows] if hasattr(values, "iloc") else values.take(pa.array(rows))


def _misfits(values: Any, field: pa.Field[Any]) -> dict[int, str]:
    """Which values do not fit a column: one by one, but only if the column as a whole does not fit."""
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
    """Values as a column of the field's type. Raises HandlerError."""
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            column: Any = values.cast(field.type)
        else:
            column = pa.array(values, field.type, from_pandas=not isinstance(values, list))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as fault:
        reason = " ".join(str(fault).split())
        raise HandlerError(f"returned output column {field.name} that is no {field.type}: {reason}") from None
    if column.null_count and not field.nullable:
        raise HandlerError(f"returned null in output column {field.name}, which must not be null")
    return column
