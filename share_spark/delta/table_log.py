"""A Delta table's log without Spark: what one who appends has to know of the table, read from the files of the log.

    the newest checkpoint (protocol, metaData, txn)  +  the commits after it  =  the table as of the newest version

Kept up to date by the commits that come after: one question to the file system if there are none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from share_spark.delta.checkpoint_files import TooLargeError, checkpoint_actions
from share_spark.delta.commit_files import CommitFile, CommitFiles, actions_in, parse_commit
from share_spark.delta.table_features import (
    catalog_feature,
    has_limited_texts,
    refusal_of_changes,
    required_column,
    unsupported_feature,
)
from share_spark.delta.table_layout import TableColumns, TableLayout, unknown_partition_column
from share_spark.model.errors import ConfigError, StateError

MOST_CHECKPOINT_BYTES = 64 << 20
"""The checkpoint of a table with some 500,000 files. What is larger is Spark's business."""

_MOST_WITH_FILES = 4 << 20
"""The same where the files are kept: of some 30,000, half a second."""

_READ_ATTEMPTS = 3


class ActiveFile(NamedTuple):
    """A file of the table. ``values``: of the partition columns, as text. ``is_whole``: none of its rows is deleted.
    ``stats``: Delta's statistics as JSON, if it has any. ``written_at_ms``: by its writer's clock."""

    values: Mapping[str, str]
    size: int
    is_whole: bool
    stats: str | None = None
    written_at_ms: int = 0


class UnknownTableError(NotImplementedError):
    """The table has something that only Spark's writer knows how to respect."""


class GoneFileError(UnknownTableError):
    """A file that belongs to the version that is read is not there any more."""


class OwnCommit(NamedTuple):
    """A commit file that was written here."""

    version: int
    text: str


@dataclass(slots=True, kw_only=True)
class TableLog:
    """The table in the directory of ``files``, as of ``version``. ``metadata`` and ``protocol``: Delta's actions.
    ``transactions``: the number of each writer (``txn`` actions). ``active``: the table's files by their path as the
    log has it, if it ``keeps_files``: for small tables. ``most_bytes``: of a checkpoint. ``own``: the last commit from
    here, where another writer could overwrite it. ``_checkpoint``: what it was read from, version and files."""

    files: CommitFiles
    version: int = -1
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    keeps_files: bool = False
    active: dict[str, ActiveFile] = field(default_factory=dict)
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
        """As of the newest version, or of ``version``. ``most_bytes``: of its checkpoint. Raises UnknownTableError (no
        table, a checkpoint that is too large), GoneFileError (a commit that it takes is gone), ConfigError (a catalog
        has its commits), and what the storage raises."""
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
        """Clean-up may take files meanwhile."""
        self._checkpoint = self.files.checkpoint(version)
        self.version, paths = self._checkpoint
        most_bytes = self.most_bytes or (_MOST_WITH_FILES if self.keeps_files else MOST_CHECKPOINT_BYTES)
        try:
            self._take(checkpoint_actions(self.files, paths, with_files=self.keeps_files, most_bytes=most_bytes))
        except TooLargeError as reason:
            raise UnknownTableError(str(reason)) from reason
        if version is None:
            self._follow()
        else:
            self._go_to(version)

    def forget_files(self) -> None:
        """They are not needed any more."""
        self.keeps_files = False
        self.active = {}

    def catch_up(self) -> Iterator[tuple[int, CommitFile]]:
        """The commits since, oldest first; each counts for this view when it is yielded."""
        while (text := self.files.text(self.version + 1)) is not None:
            yield self.version + 1, self.take(text)

    def refresh(self) -> None:
        """As of the newest version now. Raises as ``reopen``, where that is needed."""
        self._follow()
        if not self.is_there():
            self.reopen()

    def _follow(self) -> None:
        for _ in self.catch_up():
            pass

    def is_there(self) -> bool:
        """Is this version in the log, as a commit or as a checkpoint? If not nobody can say which one is the next:
        clean-up may have removed it with others that followed it, or the table was removed, or made again."""
        version, paths = self._checkpoint
        if self.files.exists(self.version):
            return True
        return self.version == version and all(self.files.storage.exists(path) for path in paths)

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

    def put(self, text: str) -> bool:
        """Commit ``text`` as the next version, if there is none of that number; was it done?

        Raises StateError: clean-up went on at this moment, and it is certain that nothing has happened, or not certain
        what has; and what the storage raises.
        """
        version = self.version + 1
        if not self.files.commit(version, text):
            return False
        if not self.is_there():
            self._check_counts(version, text)
        self.take(text)
        self.own = None if self.files.storage.keeps_commits else OwnCommit(version, text)
        return True

    def overwritten_version(self) -> int | None:
        """Return the version of our last commit, if another writer has put a file of its own over it. Delta's does so
        on a local disk, where it had looked before ours was there."""
        if self.own is None:
            return None
        found = self.files.text(self.own.version)
        return None if found in (None, self.own.text) else self.own.version

    def _check_counts(self, version: int, text: str) -> None:
        """The commit before ours is gone. Was ours put below a checkpoint, where nobody will ever read it?"""
        found = TableLog.open(self.files, keeps_files=True)
        actions = tuple(actions_in(text))
        added = {action["add"]["path"] for action in actions if "add" in action}
        numbers = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
        if found._checkpoint[0] < version or (added and added <= found.active.keys()):
            return
        if numbers and all(found.transactions.get(app_id) == number for app_id, number in numbers.items()):
            return
        self.files.remove(version)  # below a checkpoint it decides nothing, but it could be taken for one that counts
        raise StateError(
            f"the log of the Delta table in {self.files.directory} was cleaned up beyond version {version} while that "
            "was committed: whether it counts is not known; start again"
        )

    def _go_to(self, version: int) -> None:
        for _ in self.catch_up():
            if self.version == version:
                break
        if self.version != version:
            raise GoneFileError(f"commit {self.version + 1} is gone")

    def take(self, text: str) -> CommitFile:
        """The file of the next version says this. Raises UnknownTableError."""
        try:
            commit = parse_commit(text)
        except ValueError as fault:
            raise UnknownTableError(f"commit {self.version + 1} cannot be read: {fault}") from fault
        self._take(actions_in(text) if self.keeps_files else commit.actions)
        self.version += 1
        return commit

    def data_file(self, path: str) -> pq.ParquetFile:
        """One of ``active``, by its path there. Raises UnknownTableError: it is another table's, or gone."""
        if ":/" in path or path.startswith("/"):
            raise UnknownTableError("it has files of another table")
        content = self.files.storage.read(f"{self.files.directory}/{unquote(path)}")
        if content is None:
            raise GoneFileError(f"its file {path} is gone")
        return pq.ParquetFile(io.BytesIO(content), coerce_int96_timestamp_unit="us")

    @property
    def table_id(self) -> str:
        """A table that is removed and made again has another one."""
        return str(self.metadata["id"])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """In the table's order."""
        return tuple(self.metadata["partitionColumns"])

    @property
    def schema(self) -> StructType:
        """The columns, in Spark's terms."""
        return StructType.fromJson(json.loads(self.metadata["schemaString"]))

    @property
    def layout(self) -> TableLayout:
        """How its files are laid out."""
        return TableLayout(columns=tuple(self.schema.names), partitioned_by=self.partition_columns)

    @property
    def columns(self) -> TableColumns:
        """To be compared."""
        return TableColumns(self.metadata["schemaString"], self.partition_columns)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def rows(self) -> int | None:
        """Of the files that it keeps, by their statistics; None if these do not say it."""
        found = [json.loads(file.stats or "{}").get("numRecords") for file in self.active.values() if file.is_whole]
        is_known = self.keeps_files and len(found) == len(self.active) and None not in found
        return sum(found) if is_known else None

    def check_can_append(self) -> None:
        """Raises UnknownTableError, with what it is that only Spark's writer respects; ConfigError (a catalog's)."""
        self._refuse_catalog()
        if (feature := unsupported_feature(self.protocol, self.metadata)) is not None:
            raise UnknownTableError(f"the table has the feature {feature}")

    def check_can_replace(self) -> None:
        """May its files be taken out, or exchanged for others? As ``check_can_append``; ``active`` is known."""
        self.check_can_append()
        if (reason := refusal_of_changes(self.metadata)) is not None:
            raise UnknownTableError(reason)
        if not all(file.is_whole for file in self.active.values()):
            raise UnknownTableError("it has deletion vectors (REORG TABLE ... APPLY (PURGE) removes them)")

    def check_has_plain_columns(self) -> None:
        """For files that others write: nothing has to be worked out or checked for a row. Raises UnknownTableError."""
        unknown = unknown_partition_column(self.metadata["schemaString"], self.partition_columns)
        if unknown is not None:
            raise UnknownTableError(f"the table is partitioned by {unknown}")
        if (column := required_column(self.metadata)) is not None:
            raise UnknownTableError(f"column {column} must not be null")
        if has_limited_texts(self.metadata):
            raise UnknownTableError("the table has columns of limited length")

    def _refuse_catalog(self) -> None:
        """A commit that only the catalog knows would not be seen here, nor would ours be seen there."""
        if (feature := catalog_feature(self.protocol)) is not None:
            raise ConfigError(
                f"the table in {self.files.directory} is managed by its catalog (feature {feature}), whose commits "
                "need not be in its log, where engines look for each other's claims; use a table without that feature"
            )

    def _take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Of one commit, or of a part of a checkpoint: all files that leave go before those that come, as a file that
        gets a deletion vector does both."""
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
