"""The rows of a small Delta table without Spark: read file by file, changed or deleted in one commit.

    read the files with such rows -> write them anew with the rest -> exchange old for new, if no commit came between
                                                                   -> one did: an append is none of our business;
                                                                      files of ours are gone: begin again with those

Rows are chosen one by one, so appends of others meanwhile do not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from share_spark.delta.commit_files import CommitFile
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.spark.public_files import local_path

_TRIES = 20


class FileRows(NamedTuple):
    """The rows of a file. ``path``: as in the log; empty where the rows are of several files."""

    path: str
    rows: pa.Table


class Change(NamedTuple):
    """The new ``rows`` of a file. ``changed``: the number of rows that differ, or are left out."""

    rows: pa.Table
    changed: int


class _Rewritten(NamedTuple):
    """A rewritten file: ``changed`` as in ``Change``, ``file`` if any row of it is left."""

    changed: int
    file: DataFile | None


class OvertakenError(Exception):
    """Raised if another writer has replaced a file that was read."""


@dataclass(slots=True)
class TableRows:
    """The rows of the table in ``directory``. ``log``: with its files."""

    directory: str
    log: TableLog

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return self.log.schema

    def read(self, columns: Collection[str], paths: Collection[str] | None = None) -> Iterator[FileRows]:
        """Yield the rows file by file, at the log's version; ``paths``: only of these. Raises UnknownTableError."""
        self._check_unpartitioned()
        schema = self._schema_of(columns)
        if not all(file.is_whole for file in self.log.active.values()):
            yield FileRows("", self._read_by_delta_rs(schema))
            return
        for path in self.log.active if paths is None else paths:
            yield FileRows(path, self._file(path, schema))

    def change(self, operation: str, judge: Callable[[pa.Table], Change], paths: Collection[str] | None = None) -> int:
        """Apply ``judge`` to each file (all columns) of the newest version, or to those of ``paths`` that are in it.
        Makes one commit, ``operation`` by name; none if nothing changes. Returns the number of changed rows.

        Raises UnknownTableError (only Spark can do it), OvertakenError (others were always first), and then nothing has
        happened; what the storage raises, and then it may have happened.
        """
        rewritten: dict[str, _Rewritten] = {}
        for _ in range(_TRIES):
            self.log.refresh()
            self.check_can_change()
            appends = DirectAppends(directory=self.directory, log=self.log)
            wanted, schema = [path for path in self.log.active if paths is None or path in paths], self.schema
            rewritten = {path: rewritten.get(path) or self._rewritten(appends, path, schema, judge) for path in wanted}
            found = {path: file for path, (changed, file) in rewritten.items() if changed}
            if not found or self._exchanged(appends, operation, found):
                return sum(changed for changed, _ in rewritten.values())
        raise OvertakenError(f"other writers were first {_TRIES} times")

    def _rewritten(
        self, appends: DirectAppends, path: str, schema: pa.Schema, judge: Callable[[pa.Table], Change]
    ) -> _Rewritten:
        rows, changed = judge(self._file(path, schema))
        return _Rewritten(changed, appends.write(rows, {}) if changed and rows.num_rows else None)

    def _exchanged(self, appends: DirectAppends, operation: str, found: Mapping[str, DataFile | None]) -> bool:
        """Replace the files in one commit; return False if another writer was first."""

        def check(_commit: CommitFile | None) -> None:
            if not found.keys() <= self.log.active.keys():
                raise OvertakenError

        files = [file for file in found.values() if file is not None]
        try:
            appends.commit(files, replaced=lambda path, _: path in found, meanwhile=check, operation=operation)
        except OvertakenError:
            return False
        return True

    def check_can_change(self) -> None:
        """Raise UnknownTableError if only Spark can change the table."""
        self._check_unpartitioned()
        self.log.check_can_replace()

    def _check_unpartitioned(self) -> None:
        if self.log.partition_columns:
            raise UnknownTableError(f"it is partitioned by {', '.join(self.log.partition_columns)}")

    def _schema_of(self, columns: Collection[str]) -> pa.Schema:
        schema = self.schema
        return pa.schema([schema.field(name) for name in columns])

    def _file(self, path: str, schema: pa.Schema) -> pa.Table:
        file = self.log.data_file(path)
        there = set(file.schema_arrow.names)
        return _conformed(file.read([name for name in schema.names if name in there]), schema)

    def _read_by_delta_rs(self, schema: pa.Schema) -> pa.Table:
        """Read the rows by delta-rs, which knows deletion vectors."""
        from deltalake import DeltaTable, QueryBuilder  # takes a fraction of a second
        from deltalake.exceptions import DeltaError

        names = ", ".join(f'"{name}"' for name in schema.names)
        try:
            table = DeltaTable(local_path(self.directory) or self.directory, version=self.log.version)
            found = QueryBuilder().register("rows", table).execute(f"SELECT {names} FROM rows").read_all()
        except (DeltaError, OSError) as fault:
            raise UnknownTableError(f"it has deletion vectors: {fault}") from fault
        return _conformed(pa.table(found), schema)


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the table's types (Spark's own times have another in Parquet), and null for missing columns:
    added later, or left out by the writer."""
    there = set(rows.column_names)
    arrays = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
