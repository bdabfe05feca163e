"""Appends to a Delta table without a Spark job: Parquet by pyarrow, then one commit file, put only if there is none.

    version 7 is the newest one known here
    put version 8 if absent  ->  done: nothing came between, whatever was decided on version 7 still holds
                             ->  it is there: read it, and all that follow it; may we go on?  put the next version

So of two writers exactly one gets a version, and the other one learns it before it has written anything: where Spark's
append has to check afterwards who came before it, this one compares and swaps. It takes milliseconds on a local disk,
whatever the length of the log, most of which is the disk's: so a file may be written beside its commit (``begin``),
which appears when both are safe.

Two things make an absent version another one than the next, and are checked at each commit:

    clean-up     7 | 8 ... 90 | checkpoint 90: "8" is absent again, below the checkpoint, and read by nobody. So the
                 version that is known has to be there; else the log is read anew, and all is checked again
    overwriting  on a local disk Delta's writer looks, and then renames over what has come between. So the last
                 commit has to be ours still; else it is made again, as the newest one

Not for every table: it may have features that its writers have to respect (``TableLog.check_can_append``), and not for
every storage (``StorageFiles.commit``). Such appends are left to Spark.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from share_spark.delta.commit_files import CommitFile, CommitFiles, commit_text
from share_spark.delta.data_file import DataFile, made_in_memory
from share_spark.delta.native_changes import cleans_natively, write_natively
from share_spark.delta.noted_rows import FILED, NOTED, has_rows
from share_spark.delta.own_checkpoints import write_own_checkpoint
from share_spark.delta.table_layout import FilePlace, TableColumns, TableLayout
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.errors import StateError
from share_spark.spark.delta_log import clean_log, write_checkpoint
from share_spark.spark.files import Ready, written
from share_spark.spark.on_demand import AnySpark, given_session

_log = logging.getLogger(__name__)

_COMMITS_PER_CHECKPOINT = 100
"""A new reader of the table reads this many small files, and twice as many at times: 0.1 s or more."""

_CHECKPOINT_INTERVAL_S = 1.0
"""The least time between two checkpoints, which cost as much as some fifty commits."""

Meanwhile = Callable[[CommitFile | None], None]
"""A function called with each commit of others that came before ours, and with None for those that clean-up has
removed before they were seen; raises if ours must not follow them."""

Replaced = Callable[[str, Mapping[str, str]], bool]
"""A function: does this file, by its path and the values of the partition columns, leave the table?"""


class MovedError(Exception):
    """Raised if a number (``txn``) to be set is higher already, or another writer has set it since it was read."""


class _Change(NamedTuple):
    """A change to be committed."""

    files: Sequence[DataFile]
    note: str | None
    numbers: Mapping[str, int]
    replaced: Replaced | None
    operation: str
    is_blind: bool
    files_are_ready: Ready


@dataclass(slots=True, kw_only=True)
class DirectAppends:
    """Appends to the table in ``directory``, one at a time, while the table keeps its present columns. ``_last``: the
    last change that was committed here."""

    directory: str
    log: TableLog
    checkpoint: Callable[[], None] = lambda: None
    _commits: int = 0
    _checkpoint_at_s: float = 0.0
    _columns: TableColumns = field(init=False)
    _last: _Change | None = None
    _begun: Ready = written

    def __post_init__(self) -> None:
        self._columns = self.log.columns

    @classmethod
    def to(
        cls, spark: AnySpark, directory: str, *, replaces: bool = False, names_removed: bool = True
    ) -> DirectAppends:
        """Open the table; ``replaces``: files are removed, too. ``names_removed``: see ``of``. Raises
        UnknownTableError: only Spark may append."""
        log = TableLog.open(CommitFiles.at(spark, directory), keeps_files=replaces)
        return cls.of(spark, directory, log, names_removed=names_removed)

    @classmethod
    def of(cls, spark: AnySpark, directory: str, log: TableLog, *, names_removed: bool = True) -> DirectAppends:
        """Return appends with the table's log, which was opened before. ``names_removed``: its checkpoints name the
        files that have left the table. Raises UnknownTableError."""
        log.check_can_append()
        return cls(
            directory=directory.rstrip("/"),
            log=log,
            checkpoint=lambda: _write_checkpoint(spark, directory, log, names_removed=names_removed),
        )

    @classmethod
    def of_files(cls, spark: AnySpark, directory: str, log: TableLog | None = None) -> DirectAppends:
        """Return appends of rows to a table without constraints on them. ``log``: the table's, if it was opened before.
        Raises UnknownTableError: only Spark's writer can append there."""
        appends = cls.to(spark, directory) if log is None else cls.of(spark, directory, log)
        appends.log.check_has_plain_columns()
        if not appends.log.files.storage.can_commit:
            raise UnknownTableError("only Spark can commit to its storage")
        return appends

    @property
    def layout(self) -> TableLayout:
        """The layout of the files."""
        return self.log.layout

    @property
    def place_for_workers(self) -> FilePlace | None:
        """The directory where workers write files of the table; None if they do not reach it."""
        at = self.log.files.local_directory
        return FilePlace(at, self.layout) if at is not None else None

    def write(self, rows: pa.Table, values: Mapping[str, str | None], *, indexed: Sequence[str] = ()) -> DataFile:
        """Write a file with ``rows``, which have all columns but the table's partition columns. It is in no commit yet.
        ``indexed``: columns whose least and greatest value are in the log.

        Raises StateError (the table is gone), and what the storage raises."""
        self._check_there()
        file, content = made_in_memory(rows, values, indexed)
        self.put(file, content)
        return file

    def begin(self, rows: pa.Table, values: Mapping[str, str | None]) -> DataFile:
        """Begin to write a file as ``write`` does. It is there before the next commit is."""
        self._check_there()
        file, content = made_in_memory(rows, values, ())
        self._begun = self.log.files.storage.begin_write(f"{self.directory}/{file.path}", content)
        return file

    def put(self, file: DataFile, content: bytes) -> None:
        """Put the file into the table's directory; it is in no commit yet. Raises what the storage raises."""
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
        """Make one commit with these files and ``txn`` entries; return its version. ``note``: its ``userMetadata``,
        perhaps with rows (``noted_rows``). ``replaced``: such files leave the table. ``operation``: as Delta's history
        names it. Not ``blind``: the rows depend on what was read.

        Raises what ``meanwhile`` raises, MovedError, UnknownTableError (the table has changed), StateError (it is gone,
        or another writer has overwritten the commit before), and then nothing has happened; what the storage raises,
        and then it may have happened.
        """
        change = _Change(files, note, transactions or {}, replaced, operation, blind, self._begun)
        self._begun = written
        self._check_numbers(change)
        self._check_columns()
        self.make_good(meanwhile)
        return self._commit(change, meanwhile)

    def make_good(self, meanwhile: Meanwhile | None = None) -> None:
        """Commit the last change again, if another writer has overwritten it. ``meanwhile`` and errors as in
        ``commit``; StateError also where it cannot be done."""
        version = self.log.overwritten_version()
        if version is None:
            return
        last, self._last = self._last, None
        _log.warning("%s: another writer has overwritten version %s", self.directory, version)
        self.log.reopen()
        if last is None or last.replaced is not None or not last.is_blind:
            raise StateError(f"another writer has overwritten a commit to the Delta table in {self.directory}")
        self._check_all(last, meanwhile)
        self._commit(last, meanwhile)

    def _commit(self, change: _Change, meanwhile: Meanwhile | None) -> int:
        while True:
            if not self.log.is_there():
                self._open_again(change, meanwhile)
            if self.log.put(self._text(change), change.files_are_ready):
                self._last = change
                self._count()
                return self.log.version
            for _, commit in self.log.catch_up():
                if commit.actions or change.replaced is not None:
                    self._check_unchanged(change)
                if not change.numbers.keys().isdisjoint(commit.transactions):
                    raise MovedError(f"another writer has set a number of {', '.join(change.numbers)}")
                if meanwhile is not None:
                    meanwhile(commit)

    def _open_again(self, change: _Change, meanwhile: Meanwhile | None) -> None:
        """Read the log again: clean-up has removed commits that were not seen, and their effects show in the table."""
        before = {app_id: self.log.transactions.get(app_id) for app_id in change.numbers}
        self.log.reopen()
        if before != {app_id: self.log.transactions.get(app_id) for app_id in change.numbers}:
            raise MovedError(f"another writer has set a number of {', '.join(change.numbers)}")
        self._check_all(change, meanwhile)

    def _check_all(self, change: _Change, meanwhile: Meanwhile | None) -> None:
        self._check_unchanged(change)
        self._check_numbers(change)
        if meanwhile is not None:
            meanwhile(None)

    def _check_numbers(self, change: _Change) -> None:
        """Raise MovedError for a number below the table's: Delta's writer would skip it silently."""
        for app_id, number in change.numbers.items():
            if self.log.transactions.get(app_id, number) > number:
                raise MovedError(f"the number of {app_id} is {self.log.transactions[app_id]} already")

    def _check_unchanged(self, change: _Change) -> None:
        """Check the table again: the files were written for its former columns, and removed from its former files."""
        if change.replaced is None:
            self.log.check_can_append()
        else:
            self.log.check_can_replace()
        self._check_columns()

    def _check_columns(self) -> None:
        """Check the columns: others than ``commit`` may have read the log since."""
        if not self.log.columns.take_files_of(self._columns):
            raise UnknownTableError("its columns have changed")

    def _count(self) -> None:
        """Write a checkpoint now and then, in a thread: Delta's writer would do so at this point, and it takes time."""
        self._commits += 1
        if self._commits >= _COMMITS_PER_CHECKPOINT and time.monotonic() >= self._checkpoint_at_s:
            self._commits, self._checkpoint_at_s = 0, time.monotonic() + _CHECKPOINT_INTERVAL_S
            threading.Thread(target=self.checkpoint, name="share-spark-checkpoint", daemon=True).start()

    def _check_there(self) -> None:
        """Raise StateError if the table was removed: a file would make its directory again."""
        if not self.log.is_there() and not self.log.files.is_table():
            raise StateError(f"the Delta table in {self.directory} is gone")

    def _removed(self, replaced: Replaced | None) -> dict[str, Mapping[str, str]]:
        """Return the files to be removed, at the newest known version."""
        if replaced is None:
            return {}
        return {path: file.values for path, file in self.log.active.items() if replaced(path, file.values)}

    def _numbers_of_notes(self, change: _Change) -> Iterator[tuple[str, int]]:
        """Yield the numbers by which readers find the rows of a note."""
        if has_rows(change.note):
            yield NOTED, self.log.version + 1
            if not self.log.noted:  # the commits before need not be looked at, and may be removed
                yield FILED, self.log.version

    def _text(self, change: _Change) -> str:
        now_ms = int(time.time() * 1_000)
        entries = [
            {"txn": {"appId": app_id, "version": number, "lastUpdated": now_ms}}
            for app_id, number in (*change.numbers.items(), *self._numbers_of_notes(change))
        ]
        removed = self._removed(change.replaced)
        removes = [
            {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": True, "partitionValues": dict(values)}}
            for path, values in removed.items()
        ]
        metrics = {
            "numFiles": str(len(change.files)),
            "numOutputRows": str(sum(file.rows for file in change.files)),
            "numOutputBytes": str(sum(file.size for file in change.files)),
        }
        return commit_text(
            change.operation,
            {
                "mode": "Overwrite" if removed else "Append",
                "partitionBy": json.dumps(list(self.log.partition_columns)),
            },
            [*entries, *removes, *(file.to_action(now_ms) for file in change.files)],
            blind=change.is_blind and not removed,
            readVersion=self.log.version,
            operationMetrics=metrics,
            **({} if change.note is None else {"userMetadata": change.note}),
        )


def _write_checkpoint(spark: AnySpark, directory: str, log: TableLog, *, names_removed: bool) -> None:
    try:
        if not names_removed and write_own_checkpoint(log.files):
            return
        session, is_written = given_session(spark), write_natively(log, cleans=True)
        if session is None:
            return
        if not is_written:
            write_checkpoint(session, directory)
        elif not cleans_natively(log):
            clean_log(session, directory, has_checkpoint=True, retention_ms=None)
    except Exception:  # noqa: BLE001 - late is allowed, stopping the engine is not
        _log.info("no checkpoint of %s was written; it will be tried again", directory, exc_info=True)
