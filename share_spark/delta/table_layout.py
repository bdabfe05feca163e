"""The layout of rows in the files of a Delta table: under its names, and for each combination of values of its
partition columns in a file and a directory of their own. No Spark: workers lay out the rows that they write.

    id  day         country        day=2026-01-01/country=de/part-….parquet      id 1
     1  2026-01-01  de        ->   day=2026-01-01/country=__HIVE_DEFAULT_PARTITION__/part-….parquet
     2  2026-01-01  (null)                                                        id 2

What counts are the values in the log (Delta's protocol, "Partition Value Serialization"): files do not have the
partition columns, and the names of directories mean nothing to a reader of the table. So all special characters in them
are escaped, more than Hive escapes: a JVM in a locale without UTF-8 would not find the file otherwise.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_spark.model.errors import SinkError

_NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

_MOST_DIRECTORY_BYTES = 255
"""The length of one name, on the usual file systems and in a part of a key of an object store."""

_KNOWN_TYPES = re.compile(r"string|byte|short|integer|long|boolean|date|timestamp|timestamp_ntz|decimal\(\d+,\d+\)")
"""The types as a schema's JSON names them. Not binary, float and double: Spark and others write them differently."""


class Part(NamedTuple):
    """The ``rows`` of a file, all with these ``values`` of the partition columns. ``directory``: relative to the
    table's, empty for the table's own."""

    values: Mapping[str, str | None]
    directory: str
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The layout of a table. ``columns``: its names. ``partitioned_by``: those of them that its files do not have."""

    columns: tuple[str, ...]
    partitioned_by: tuple[str, ...] = ()

    def parts(self, rows: pa.Table) -> Iterator[Part]:
        """Yield the parts of ``rows``, whose columns have the table's names in any case. One part if it is not
        partitioned.

        Raises SinkError: a value that has no text in the log."""
        names = {name.lower(): name for name in self.columns}
        rows = rows.rename_columns([names.get(name.lower(), name) for name in rows.column_names])
        if not self.partitioned_by:
            yield Part({}, "", rows)
            return
        numbers = _group_numbers(rows, self.partitioned_by)
        order = np.argsort(numbers, kind="stable")
        if len(order) and numbers[order[0]] != numbers[order[-1]]:
            rows, numbers = rows.take(order), numbers[order]
        starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in itertools.pairwise(starts):
            values = {name: value_text(rows.column(name)[start]) for name in self.partitioned_by}
            yield Part(values, directory_name(values), self._in_file(rows.slice(start, end - start)))

    def _in_file(self, rows: pa.Table) -> pa.Table:
        """Remove the partition columns, unless there are no others: a file without columns would have no rows, and
        readers take these values from the log anyway."""
        others = [name for name in rows.column_names if name not in self.partitioned_by]
        return rows.select(others) if others else rows


class TableColumns(NamedTuple):
    """The columns of a table in its log: ``schema`` is JSON."""

    schema: str
    partitioned_by: tuple[str, ...]

    def take_files_of(self, before: TableColumns) -> bool:
        """Return whether files belong here that were written with the columns ``before``. Columns added since are null
        in these files."""
        if self == before:
            return True
        known, now = _fields(before.schema), _fields(self.schema)
        are_same = all(now.get(name) == field for name, field in known.items())
        are_free = all(field["nullable"] for name, field in now.items() if name not in known)
        return self.partitioned_by == before.partitioned_by and are_same and are_free


class FilePlace(NamedTuple):
    """The directory, on this machine, where Python writes the files of a table."""

    directory: str
    layout: TableLayout


def unknown_partition_column(schema: str, partitioned_by: Sequence[str]) -> str | None:
    """Return the first partition column whose values are not written here, with its type. ``schema``: as JSON."""
    fields = _fields(schema)
    for name in partitioned_by:
        kind = fields[name]["type"]
        if not isinstance(kind, str) or not _KNOWN_TYPES.fullmatch(kind):
            return f"{name} {kind}"
    return None


def _fields(schema: str) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in json.loads(schema)["fields"]}


def value_text(value: Any) -> str | None:
    """Return a value of a partition column (an Arrow scalar) in the form of the log; null and the empty text are the
    same there. Raises SinkError."""
    try:
        found = value.as_py()
    except (ValueError, OverflowError) as fault:
        raise SinkError(f"output rows have a partition value that has no text in the table's log: {fault}") from fault
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, datetime):
        return _moment(found)
    if isinstance(found, Decimal):
        return format(found, "f")
    return found.isoformat() if isinstance(found, date) else None if found is None else str(found) or None


def directory_name(values: Mapping[str, str | None]) -> str:
    """Return the directory of files with these values; empty, the table's own, if a name would be too long."""
    names = [
        f"{_escaped(name)}={_escaped(text) if text is not None else _NULL_DIRECTORY}" for name, text in values.items()
    ]
    return "/".join(names) if all(len(name) <= _MOST_DIRECTORY_BYTES for name in names) else ""


def _escaped(text: str) -> str:
    return quote(text, safe="")


def _moment(value: datetime) -> str:
    """Return the text, in UTC if it has a time zone: then it does not depend on that of the reader or the writer."""
    if value.tzinfo is None:
        return value.isoformat(sep=" ")
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _group_numbers(rows: pa.Table, columns: Sequence[str]) -> Any:
    """Return for each row a number that is equal in all rows with the same values."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        column: Any = rows.column(name).combine_chunks()
        if pa.types.is_string(column.type):
            column = pc.if_else(pc.equal(column, pa.scalar("")), pa.scalar(None, pa.string()), column)
        found = column.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
        together = numbers * (len(rows) + 1) + found + 1
        _, numbers = np.unique(together, return_inverse=True)
    return numbers
