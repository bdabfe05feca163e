"""Values that Arrow takes for a type and a Delta table does not, and values that end Arrow's process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS = (date.min - _EPOCH.date()).days, (date.max - _EPOCH.date()).days
_MICROSECONDS = _DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1
"""The years 1 to 9999: the range of Spark's types, and of a text in Delta's log."""


def column_fault(column: Any, field: pa.Field[Any]) -> str | None:
    """Return the fault of a column of the field's type, None if it has none: a null where the field, or one inside of
    it, allows none; a date or a timestamp outside of the years 1 to 9999."""
    if column.null_count and not field.nullable:
        return f"null in output column {field.name}, which must not be null"
    if column.null_count and (required := _required(column.type)) is not None:
        return f"null in output column {required}, which must not be null (in {field.name})"
    if _is_outside(column):
        return f"output column {field.name} with a time outside of the years 1 to 9999"
    for inner, values in _inside(column):
        if (fault := column_fault(values, inner)) is not None:
            return f"{fault} (in {field.name})"
    return None


def _is_outside(column: Any) -> bool:
    if pa.types.is_date32(column.type):
        least, most = _DAYS
        numbers = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type) and column.type.unit == "us":  # Spark has no other unit
        least, most = _MICROSECONDS
        numbers = column.cast(pa.int64())
    else:
        return False
    found: Any = pc.min_max(numbers).as_py()
    return found["min"] is not None and (found["min"] < least or found["max"] > most)


def _required(kind: Any) -> str | None:
    """Return the first field of a struct that may not be null: Delta treats a null struct as one with a null in it."""
    fields = [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    return next((field.name for field in fields if not field.nullable), None)


def _inside(column: Any) -> Iterator[tuple[pa.Field[Any], Any]]:
    """Yield the fields inside of a column, with all of their values that are there."""
    kind: Any = column.type
    if not isinstance(kind, pa.StructType | pa.MapType | pa.ListType):
        return
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    there: Any = whole.drop_null()
    if isinstance(kind, pa.StructType):
        yield from ((kind.field(number), pc.struct_field(there, [number])) for number in range(kind.num_fields))
    elif isinstance(kind, pa.MapType):
        yield from ((kind.key_field, there.keys), (kind.item_field, there.items))
    else:
        yield kind.value_field, pc.list_flatten(there)


def refuse_null_entries(values: Iterable[Any], kind: Any) -> None:
    """Raise ValueError if a map in the values has an entry that is no pair of key and value: at a null there, Arrow
    ends the process. Raises whatever the user's objects raise."""
    if _has_map(kind) and any(_has_null_entry(value, kind) for value in values):
        raise ValueError("a map has an entry that is no pair of key and value")


def _has_map(kind: Any) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return pa.types.is_map(kind) or any(map(_has_map, inner))


def _has_null_entry(value: Any, kind: Any) -> bool:
    if not isinstance(value, Iterable):
        return False
    if isinstance(kind, pa.MapType):
        entries = list(value.items() if isinstance(value, Mapping) else value)
        if not all(isinstance(entry, tuple | dict) for entry in entries):
            return True
        contents = [tuple(entry.values() if isinstance(entry, dict) else entry)[1:] for entry in entries]
        return any(_has_null_entry(one, kind.item_type) for content in contents for one in content)
    if isinstance(kind, pa.StructType):
        fields = dict(value)
        return any(_has_null_entry(fields.get(field.name), field.type) for field in kind)
    return isinstance(kind, pa.ListType) and any(_has_null_entry(one, kind.value_type) for one in value)
