"""Rows in the notes of commits: such a commit is one file and one wait for the disk, where a Parquet file doubles both.

    version      7          8             9             10                          11
    commit       a file     note, rows    note, rows    a file with rows of 8, 9    note, rows
    number       filed 7    noted 8       noted 9       filed 9                     noted 11

Readers here find the rows of notes beside those of files (``TableLog.row_files``), Spark finds them once they are in a
file (``file_noted_rows``, about a second later). Two numbers in the log (``txn``), which each writer's checkpoints
keep, say where to look for them: in the commits after the version ``filed``, if the version ``noted`` is a later one.

A note is a JSON object. Its fields that are columns of the table hold for each of its rows, and name the partition,
which has begun with a file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from share_spark.delta.commit_files import CommitFile, CommitFiles, note_fields

if TYPE_CHECKING:
    from share_spark.delta.direct_append import DirectAppends

_log = logging.getLogger(__name__)

NOTED, FILED = "share_spark-noted", "share_spark-filed"
"""The names of the numbers: the newest version with rows in its note, and the one up to which they are in files."""

_ROWS = "rows"
_MARK = f'"{_ROWS}":['


class NotedRows(NamedTuple):
    """The rows of the commit ``version``. ``values``: those of the partition columns, as text. ``fields``: of the note;
    columns that a row does not have are taken from them."""

    version: int
    values: Mapping[str, str]
    fields: dict[str, Any]
    rows: Sequence[Mapping[str, Any]]


def note_with_rows(fields: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the note (``userMetadata``) of a commit that has rows, as values of JSON, times in microseconds."""
    return json.dumps({**fields, _ROWS: rows}, separators=(",", ":"))


def has_rows(note: str | None) -> bool:
    """Return whether a note has rows, without parsing it."""
    return note is not None and _MARK in note


def noted_rows(version: int, note: str | None, partition_columns: Iterable[str]) -> NotedRows | None:
    """Return the rows of a commit's note; None if it has none."""
    if not has_rows(note):
        return None
    fields = dict(note_fields(note))
    rows = fields.pop(_ROWS, None)
    if not isinstance(rows, list):
        return None
    values = {name: str(fields[name]) for name in partition_columns if name in fields}
    return NotedRows(version, values, fields, rows)


def notes_after(
    noted: list[NotedRows], version: int, commit: CommitFile, partition_columns: Iterable[str]
) -> list[NotedRows]:
    """Return the rows of notes that are in no file after a commit, from those before it: with the rows of its own note,
    and without those that are in a file now, or that RESTORE has taken back."""
    if commit.operation == "RESTORE":
        noted = []
    if (filed := commit.transactions.get(FILED)) is not None:
        noted = [one for one in noted if one.version > filed]
    found = noted_rows(version, commit.note, partition_columns)
    return noted if found is None else [*noted, found]


def notes_between(files: CommitFiles, first: int, last: int, partition_columns: Sequence[str]) -> list[NotedRows]:
    """Return the rows in the notes of these commits that are in no file after the last of them; no rows at all if one
    of them was removed: a reader that misses rows says so."""
    noted: list[NotedRows] = []
    for version in range(first, last + 1):
        if (commit := files.read(version)) is None:
            _log.warning("%s: rows are gone with commit %s, which was removed", files.directory, version)
            return []
        noted = notes_after(noted, version, commit, partition_columns)
    return noted


def partition_of(values: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return a partition by the values of its columns, in whatever order a writer has them."""
    return frozenset(values.items())


def table_of(noted: Iterable[NotedRows], columns: pa.Schema) -> pa.Table:
    """Return the rows with these columns, in the order of their versions; a column that is nowhere is null."""
    rows = [one.fields | dict(row) for one in noted for row in one.rows]
    return pa.Table.from_pylist([{name: row.get(name) for name in columns.names} for row in rows], columns)


def by_partition(noted: Iterable[NotedRows]) -> list[list[NotedRows]]:
    """Return the notes of each partition together, in the order of their versions."""
    found: dict[frozenset[tuple[str, str]], list[NotedRows]] = {}
    for one in noted:
        found.setdefault(partition_of(one.values), []).append(one)
    return list(found.values())


def file_noted_rows(appends: DirectAppends) -> int:
    """Write all rows of notes into files of the table, one for each partition, in one commit. Return their number.

    Whoever dies before the commit leaves files that no version names. Raises MovedError: another program has filed them
    at this moment; and as ``DirectAppends.commit``.
    """
    log = appends.log
    log.refresh()
    noted, filed_to = log.counting_notes(), log.version
    if not log.noted:
        return 0
    tables = [(some[0].values, table_of(some, log.columns_of_files)) for some in by_partition(noted)]
    files = [appends.write(rows, values) for values, rows in tables]
    appends.commit(files, transactions={FILED: filed_to})
    return sum(len(one.rows) for one in noted)
