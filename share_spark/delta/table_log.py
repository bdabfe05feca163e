"""A Delta table's log without Spark: what an appending writer has to know, read from the files of the log.

    the newest checkpoint (protocol, metaData, txn)  +  the commits after it  =  the table at the newest version

The commits that follow keep it up to date: one request to the file system if there are none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.delta.checkpoint_files import TooLargeError, checkpoint_actions
from share_spark.delta.commit_files import CommitFile, CommitFiles, actions_in, parse_commit
from share_spark.delta.data_file import parquet_of
from share_spark.delta.noted_rows import (
    FILED,
    NOTED,
    NotedRows,
    by_partition,
    notes_after,
    notes_between,
    partition_of,
    table_of,
)
from share_spark.delta.table_features import (
    catalog_feature,
    has_limited_texts,
    refusal_of_changes,
    required_column,
    unsupported_feature,
)
from share_spark.delta.table_layout import TableColumns, TableLayout, unknown_partition_column
from share_spark.delta.table_schema import columns_of, fields_in
from share_spark.model.errors import ConfigError, StateError
from share_spark.spark.files import Ready, written

MOST_CHECKPOINT_BYTES = 64 << 20
"""The size of a checkpoint of some 500,000 files. Larger ones are left to Spark."""

_MOST_WITH_FILES = 4 << 20
"""The same where the files are kept: some 30,000, half a second."""

_READ_ATTEMPTS = 3

_OF_NOTES = "_noted/"
"""The beginning of the path of a file that stands for rows of notes."""


class ActiveFile(NamedTuple):
    """A file of the table. ``values``: those of the partition columns, as text. ``is_whole``: no row of it is deleted.
    ``stats``: Delta's statistics as JSON, if it has any. ``written_at_ms``: by its writer's clock."""

    values: Mapping[str, str]
    size: int
    is_whole: bool
    stats: str | None = None
    written_at_ms: int = 0


class UnknownTableError(NotImplementedError):
    """Raised if the table has something that only Spark's writer supports."""


class GoneFileError(UnknownTableError):
    """Raised if a file of the version that is read is not there any more."""


def is_elsewhere(path: str) -> bool:
    """Return whether a path in a log is that of another table's file: a shallow clone has such files."""
    return ":/" in path or path.startswith("/")


def _path_of_notes(some: Sequence[NotedRows]) -> str:
    return f"{_OF_NOTES}{some[0].version}-{some[-1].version}"


class OwnCommit(NamedTuple):
    """A commit file that was written here."""

    version: int
    text: str


@dataclass(slots=True, kw_only=True)
class TableLog:
    """The table in the directory of ``files``, at ``version``. ``metadata``, ``protocol``: Delta's actions. ``active``:
    the table's files by their path in the log, if it ``keeps_files``: for small tables. ``transactions``: the number of
    each writer (``txn`` actions). ``noted``: the rows of notes that are in no file yet, by version. ``most_bytes``: the
    limit of a checkpoint. ``own``: the last commit from here, if others could overwrite it. ``_checkpoint``: the
    version and files of the checkpoint that was read."""

    files: CommitFiles
    version: int = -1
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    keeps_files: bool = False
    active: dict[str, ActiveFile] = field(default_factory=dict)
    noted: list[NotedRows] = field(default_factory=list)
    most_bytes: int | None = None
    own: OwnCommit | None = None
    _checkpoint: tuple[int, Sequence[str]] = (-1, ())

    @classmethod
    def open(
        cls,
        files: CommitFiles,
        *,
        keeps_files: bool = False,
        most_bytes: int | None = None,
        version: int | None = None,
    ) -> TableLog:
        """Read the log at the newest version, or at ``version``. ``most_bytes``: the limit of its checkpoint. Raises
        UnknownTableError (no table, a checkpoint that is too large), GoneFileError (a needed commit is gone),
        ConfigError (a catalog has its commits), and what the storage raises."""
        for _ in range(_READ_ATTEMPTS):
            log = cls(files=files, keeps_files=keeps_files, most_bytes=most_bytes)
            log._read(version)
            if version is not None or log.is_there():
                break
        if not log.metadata or not log.protocol:
            raise UnknownTableError("the table's log does not begin with its metadata")
        log._refuse_catalog()
        return log

    def _read(self, version: int | None) -> None:
        """Read the log; clean-up may remove files meanwhile."""
        self._checkpoint = self.files.checkpoint(version)
        self.version, paths = self._checkpoint
        most_bytes = self.most_bytes or (_MOST_WITH_FILES if self.keeps_files else MOST_CHECKPOINT_BYTES)
        try:
            self._take(checkpoint_actions(self.files, paths, with_files=self.keeps_files, most_bytes=most_bytes))
        except TooLargeError as reason:
            raise UnknownTableError(str(reason)) from reason
        filed = self.transactions.get(FILED, -1)
        if self.transactions.get(NOTED, -1) > filed:
            self.noted = notes_between(self.files, filed + 1, self.version, self.partition_columns)
        if version is None:
            self._follow()
        else:
            self._go_to(version)

    def forget_files(self) -> None:
        """Drop the list of files, which is not needed any more."""
        self.keeps_files = False
        self.active = {}

    def catch_up(self) -> Iterator[tuple[int, CommitFile]]:
        """Yield the commits since, oldest first; each is applied to this view when it is yielded."""
        while (text := self.files.text(self.version + 1)) is not None:
            yield self.version + 1, self.take(text)

    def refresh(self) -> None:
        """Read the commits up to the newest version. Raises as ``reopen``, where that is needed."""
        self._follow()
        if not self.is_there():
            self.reopen()

    def _follow(self) -> None:
        for _ in self.catch_up():
            pass

    def is_there(self) -> bool:
        """Return whether this version is in the log, as a commit or as a checkpoint. If not, the next version is
        unknown: clean-up may have removed it with others that followed it, or the table was removed, or made again."""
        if self.files.exists(self.version):
            return True
        _, paths = self._checkpoint
        return self.is_checkpointed and all(self.files.storage.exists(path) for path in paths)

    def reopen(self) -> None:
        """Read the log anew, from its newest checkpoint on: commits that followed are gone.

        Raises StateError (the table is gone, or it is another one), and as ``open``.
        """
        if not self.files.is_table():
            raise self._gone()
        found = TableLog.open(self.files, keeps_files=self.keeps_files, most_bytes=self.most_bytes)
        if found.table_id != self.table_id:
            raise self._gone()
        for name in (column.name for column in fields(self) if column.name != "files"):
            setattr(self, name, getattr(found, name))

    def _gone(self) -> StateError:
        return StateError(f"the Delta table in {self.files.directory} is gone, or another one is in its place")

    def put(self, text: str, ready: Ready = written) -> bool:
        """Commit ``text`` as the next version, if there is none of that number, after ``ready``; return whether it did.

        Raises StateError: clean-up ran at this moment, and either nothing has happened or the outcome is unknown; and
        what the storage raises.
        """
        version = self.version + 1
        if not self.files.commit(version, text, ready):
            return False
        if not self.is_there():
            self._check_counts(version, text)
        self.take(text)
        self.own = None if self.files.storage.keeps_commits else OwnCommit(version, text)
        return True

    def overwritten_version(self) -> int | None:
        """Return the version of our last commit, if another writer has put its own file over it. Delta's writer does so
        on a local disk, if it had looked before ours was there."""
        if self.own is None:
            return None
        found = self.files.text(self.own.version)
        return None if found in (None, self.own.text) else self.own.version

    def _check_counts(self, version: int, text: str) -> None:
        """Refuse our commit if it was put below a checkpoint, where nobody reads it. Raises StateError."""
        found = TableLog.open(self.files, keeps_files=True)
        actions = tuple(actions_in(text))
        added = {action["add"]["path"] for action in actions if "add" in action}
        numbers = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
        if found._checkpoint[0] < version or (added and added <= found.active.keys()):
            return
        if numbers and all(found.transactions.get(app_id) == number for app_id, number in numbers.items()):
            return
        self.files.remove(version)  # below a checkpoint it has no effect, but could look valid
        raise StateError(
            f"the log of the Delta table in {self.files.directory} was cleaned up beyond version {version} while that "
            "was committed: whether it counts is not known; start again"
        )

    def _go_to(self, version: int) -> None:
        commits = self.catch_up()
        while self.version < version and next(commits, None) is not None:
            pass
        if self.version != version:
            raise GoneFileError(f"commit {self.version + 1} is gone")

    def take(self, text: str) -> CommitFile:
        """Apply the file of the next version. Raises UnknownTableError."""
        try:
            commit = parse_commit(text)
        except ValueError as fault:
            raise UnknownTableError(f"commit {self.version + 1} cannot be read: {fault}") from fault
        self._take(actions_in(text) if self.keeps_files else commit.actions)
        self.version += 1
        self.noted = notes_after(self.noted, self.version, commit, self.metadata.get("partitionColumns") or ())
        return commit

    @property
    def row_files(self) -> Mapping[str, ActiveFile]:
        """The files of all rows: ``active``, and one for the rows of notes in each partition, for ``data_file`` alone.
        Its path changes with these rows."""
        return self.active | {
            _path_of_notes(some): ActiveFile(some[0].values, 0, True) for some in by_partition(self.counting_notes())
        }

    def counting_notes(self) -> Sequence[NotedRows]:
        """Return the rows of notes without those of partitions that were dropped. A partition begins with a file; one
        that has none any more was dropped, and is not begun again."""
        if not (self.noted and self.keeps_files and self.partition_columns):
            return self.noted
        partitions = {partition_of(file.values) for file in self.active.values()}
        return [one for one in self.noted if partition_of(one.values) in partitions]

    def data_file(self, path: str) -> pq.ParquetFile:
        """Open one of ``row_files``, by its path there. Raises UnknownTableError: it is another table's, or gone."""
        if path.startswith(_OF_NOTES):
            return self._file_of_notes(path)
        if is_elsewhere(path):
            raise UnknownTableError("it has files of another table")
        content = self.files.storage.read(f"{self.files.directory}/{unquote(path)}")
        if content is None:
            raise GoneFileError(f"its file {path} is gone")
        return pq.ParquetFile(io.BytesIO(content), coerce_int96_timestamp_unit="us")

    def _file_of_notes(self, path: str) -> pq.ParquetFile:
        for some in by_partition(self.noted):
            if _path_of_notes(some) == path:
                content, _ = parquet_of(table_of(some, self.columns_of_files))
                return pq.ParquetFile(io.BytesIO(content))
        raise GoneFileError(f"the rows {path} are in a file by now")

    @property
    def is_checkpointed(self) -> bool:
        """Whether the checkpoint that was read is of this version."""
        return self._checkpoint[0] == self.version

    @property
    def table_id(self) -> str:
        """The id of the table; a table that is removed and made again has another one."""
        return str(self.metadata["id"])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns, in the table's order."""
        return tuple(self.metadata["partitionColumns"])

    @property
    def schema_text(self) -> str:
        """The columns, as the metadata has them."""
        return str(self.metadata["schemaString"])

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow's types. Raises UnknownTableError: only Spark knows the type of one."""
        try:
            return columns_of(self.schema_text)
        except ValueError as fault:
            raise UnknownTableError(str(fault)) from None

    @property
    def columns_of_files(self) -> pa.Schema:
        """The columns of its files, which do not have the partition columns. Raises as ``schema``."""
        return pa.schema([one for one in self.schema if one.name not in self.partition_columns])

    @property
    def layout(self) -> TableLayout:
        """The layout of its files."""
        names = tuple(field["name"] for field in fields_in(self.schema_text))
        return TableLayout(columns=names, partitioned_by=self.partition_columns)

    @property
    def columns(self) -> TableColumns:
        """The columns, for comparisons."""
        return TableColumns(self.schema_text, self.partition_columns)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def rows(self) -> int | None:
        """The number of rows in the files that it keeps, by their statistics; None if these do not have it."""
        found = [json.loads(file.stats or "{}").get("numRecords") for file in self.active.values() if file.is_whole]
        is_known = self.keeps_files and len(found) == len(self.active) and None not in found
        return sum(found) if is_known else None

    def check_can_append(self) -> None:
        """Raise UnknownTableError for a table that only Spark's writer supports, ConfigError for a catalog's."""
        self._refuse_catalog()
        if (feature := unsupported_feature(self.protocol, self.metadata)) is not None:
            raise UnknownTableError(f"the table has the feature {feature}")

    def check_can_replace(self) -> None:
        """Check that files may be removed or replaced, by ``active``. Raises as ``check_can_append``."""
        self.check_can_append()
        if (reason := refusal_of_changes(self.metadata)) is not None:
            raise UnknownTableError(reason)
        if not all(file.is_whole for file in self.active.values()):
            raise UnknownTableError("it has deletion vectors (REORG TABLE ... APPLY (PURGE) removes them)")

    def check_has_plain_columns(self) -> None:
        """Check that rows of others need no computed values and no checks. Raises UnknownTableError."""
        unknown = unknown_partition_column(self.schema_text, self.partition_columns)
        if unknown is not None:
            raise UnknownTableError(f"the table is partitioned by {unknown}")
        if (column := required_column(self.metadata)) is not None:
            raise UnknownTableError(f"column {column} must not be null")
        if has_limited_texts(self.metadata):
            raise UnknownTableError("the table has columns of limited length")

    def _refuse_catalog(self) -> None:
        """Refuse a catalog's table, whose commits would not be seen here, nor ours there. Raises ConfigError."""
        if (feature := catalog_feature(self.protocol)) is not None:
            raise ConfigError(
                f"the table in {self.files.directory} is managed by its catalog (feature {feature}), whose commits "
                "need not be in its log, where engines look for each other's claims; use a table without that feature"
            )

    def _take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the actions of one commit, or of a part of a checkpoint: removed files go before added ones, as a file
        that gets a deletion vector is in both."""
        came: dict[str, ActiveFile] = {}
        for action in actions:
            self.metadata = action.get("metaData") or self.metadata
            self.protocol = action.get("protocol") or self.protocol
            if transaction := action.get("txn"):
                self.transactions[transaction["appId"]] = int(transaction["version"])
            if self.keeps_files and (added := action.get("add")):
                came[added["path"]] = ActiveFile(
                    added["partitionValues"],
                    int(added["size"]),
                    added.get("deletionVector") is None,
                    added.get("stats"),
                    int(added.get("modificationTime") or 0),
                )
            if self.keeps_files and (removed := action.get("remove")):
                self.active.pop(removed["path"], None)
        self.active |= came
