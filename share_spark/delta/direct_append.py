"""Appends to a Delta table without a Spark job: Parquet by pyarrow, then one commit file, put only if there is none.

    version 7 is the newest one known here
    put version 8 if absent  ->  done: nothing came between, whatever was decided on version 7 still holds
                             ->  it is there: read it, and all that follow it; may we go on?  put the next version

So of two writers exactly one gets a version, and the other one learns it before it has written anything: where Spark's
append has to look afterwards who came before it, this one compares and swaps. Milliseconds on a local disk, whatever
the length of the log.

Not for every table: it may have features that ask something of a writer (``TableLog.check_can_append``), and not for
every storage (``StorageFiles.commit``). Such appends stay Spark's.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.delta.commit_files import CommitFile, CommitFiles, commit_text
from share_spark.delta.data_file import DataFile, made_in_memory
from share_spark.delta.native_checkpoint import write_natively
from share_spark.delta.table_layout import FilePlace, TableColumns, TableLayout
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.errors import StateError
from share_spark.spark.delta_log import write_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_COMMITS_PER_CHECKPOINT = 100
"""A reader that is new to the table reads so many small files, and twice as many at times: some tenths of a second."""

Meanwhile = Callable[[CommitFile], None]
"""Called with each commit of others that came before ours; raises if ours must not follow it."""

Replaced = Callable[[str, Mapping[str, str]], bool]
"""Does this file, by its path and the values of the partition columns, leave the table?"""


class MovedError(Exception):
    """A number (``txn``) that was to be set is higher already, or another writer has set it since it was read."""


@dataclass(slots=True, kw_only=True)
class DirectAppends:
    """Appends to the table in ``directory``, one at a time, as long as it has the columns that it has by now."""

    directory: str
    log: TableLog
    checkpoint: Callable[[], None] = lambda: None
    _commits: int = 0
    _columns: TableColumns = field(init=False)

    def __post_init__(self) -> None:
        self._columns = self.log.columns

    @classmethod
    def to(cls, spark: SparkSession, directory: str, *, replaces: bool = False) -> DirectAppends:
        """``replaces``: it will remove files, too. Raises UnknownTableError: only Spark's writer may append there."""
        return cls.of(spark, directory, TableLog.open(CommitFiles.at(spark, directory), keeps_files=replaces))

    @classmethod
    def of(cls, spark: SparkSession, directory: str, log: TableLog) -> DirectAppends:
        """With the table's log, which was opened before. Raises UnknownTableError."""
        log.check_can_append()
        return cls(
            directory=directory.rstrip("/"),
            log=log,
            checkpoint=lambda: _write_checkpoint(spark, directory, log),
        )

    @classmethod
    def of_files(cls, spark: SparkSession, directory: str, log: TableLog | None = None) -> DirectAppends:
        """Appends of rows of any table that asks nothing of them. ``log``: of the table, if it was opened before.
        Raises UnknownTableError: there it is Spark's writer that has to."""
        appends = cls.to(spark, directory) if log is None else cls.of(spark, directory, log)
        appends.log.check_has_plain_columns()
        if not appends.log.files.storage.can_commit:
            raise UnknownTableError("only Spark can commit to its storage")
        return appends

    @property
    def layout(self) -> TableLayout:
        """Of the files."""
        return self.log.layout

    @property
    def place_for_workers(self) -> FilePlace | None:
        """Where workers write files of the table; None if they do not reach it."""
        at = self.log.files.local_directory
        return FilePlace(at, self.layout) if at is not None else None

    def write(self, rows: pa.Table, values: Mapping[str, str | None], *, indexed: Sequence[str] = ()) -> DataFile:
        """A file with ``rows``, which have all columns but the table's partition columns. It is in no commit yet.
        ``indexed``: columns of which the log says the least and the greatest value.

        Raises StateError (the table is gone), and what the storage raises."""
        self._check_there()
        file, content = made_in_memory(rows, values, indexed)
        self.put(file, content)
        return file

    def put(self, file: DataFile, content: bytes) -> None:
        """Into the table's directory; it is in no commit yet. Raises what the storage raises."""
        self.log.files.storage.write(f"{self.directory}/{file.path}", content)

    def commit(
        self,
        files: Sequence[DataFile],
        *,
        note: str | None = None,
        transactions: Mapping[str, int] | None = None,
        meanwhile: Meanwhile | None = None,
        replaced: Replaced | None = None,
        operation: str = "WRITE",
        blind: bool = True,
    ) -> int:
        """One commit with these files and ``txn`` entries; ``note`` is its ``userMetadata``. ``replaced``: such files
        leave the table. ``operation``: as Delta's history names it. Not ``blind``: the rows depend on what was read.
        Returns its version.

        Raises what ``meanwhile`` raises, MovedError, UnknownTableError (the table has changed), StateError (it is
        gone), and then nothing has happened; what the storage raises, and then it may have happened all the same.
        """
        numbers = transactions or {}
        self._check_numbers(numbers)
        self._check_columns()
        if not files:
            self._check_there()
        while True:
            text = self._text(operation, files, note, numbers, self._removed(replaced), blind=blind)
            if self.log.files.commit(self.log.version + 1, text):
                self.log.take(text)
                self._count()
                return self.log.version
            for _, commit in self.log.catch_up():
                self._check_unchanged(commit)
                if not numbers.keys().isdisjoint(commit.transactions):
                    raise MovedError(f"another writer has set a number of {', '.join(numbers)}")
                if meanwhile is not None:
                    meanwhile(commit)

    def _check_numbers(self, numbers: Mapping[str, int]) -> None:
        """They only grow: Delta's writer would skip a lower one without a word."""
        for app_id, number in numbers.items():
            if self.log.transactions.get(app_id, number) > number:
                raise MovedError(f"the number of {app_id} is {self.log.transactions[app_id]} already")

    def _check_unchanged(self, commit: CommitFile) -> None:
        """The files were written for the columns that were there."""
        if commit.actions:
            self.log.check_can_append()
            self._check_columns()

    def _check_columns(self) -> None:
        """The log may have been read by others than ``commit`` since."""
        if not self.log.columns.take_files_of(self._columns):
            raise UnknownTableError("its columns have changed")

    def _count(self) -> None:
        """Delta's writer would now see whether a checkpoint is due; it takes time, so not here."""
        self._commits += 1
        if self._commits % _COMMITS_PER_CHECKPOINT == 0:
            threading.Thread(target=self.checkpoint, name="share-spark-checkpoint", daemon=True).start()

    def _check_there(self) -> None:
        """Of a table that was removed, or made again since, version + 1 would be the only commit, or a gap."""
        if not self.log.files.exists(self.log.version):
            raise StateError(f"the Delta table in {self.directory} is gone, or another one is in its place")

    def _removed(self, replaced: Replaced | None) -> dict[str, Mapping[str, str]]:
        """As of the newest version that is known."""
        if replaced is None:
            return {}
        return {path: file.values for path, file in self.log.active.items() if replaced(path, file.values)}

    def _text(
        self,
        operation: str,
        files: Sequence[DataFile],
        note: str | None,
        transactions: Mapping[str, int],
        removed: Mapping[str, Mapping[str, str]],
        *,
        blind: bool,
    ) -> str:
        now_ms = int(time.time() * 1_000)
        entries = [
            {"txn": {"appId": app_id, "version": number, "lastUpdated": now_ms}}
            for app_id, number in transactions.items()
        ]
        removes = [
            {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": True, "partitionValues": dict(values)}}
            for path, values in removed.items()
        ]
        partition_by = json.dumps(list(self.log.partition_columns))
        metrics = {
            "numFiles": str(len(files)),
            "numOutputRows": str(sum(file.rows for file in files)),
            "numOutputBytes": str(sum(file.size for file in files)),
        }
        return commit_text(
            operation,
            {"mode": "Overwrite" if removed else "Append", "partitionBy": partition_by},
            [*entries, *removes, *(file.to_action(now_ms) for file in files)],
            blind=blind and not removed,
            readVersion=self.log.version,
            operationMetrics=metrics,
            **({} if note is None else {"userMetadata": note}),
        )


def _write_checkpoint(spark: SparkSession, directory: str, log: TableLog) -> None:
    try:
        if not write_natively(log, cleans=True):
            write_checkpoint(spark, directory)
    except Exception:  # noqa: BLE001 - late is allowed, stopping the engine is not
        _log.info("no checkpoint of %s was written; it will be tried again", directory, exc_info=True)
