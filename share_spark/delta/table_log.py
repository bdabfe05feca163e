"""A Delta table's log without Spark: what one who appends has to know of the table, read from the files of the log.

    the newest checkpoint (protocol, metaData, txn)  +  the commits after it  =  the table as of the newest version

Kept up to date by the commits that come after: one question to the file system if there are none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from share_spark.delta.commit_files import CommitFile, CommitFiles, actions_in, parse_commit
from share_spark.delta.table_layout import TableColumns, TableLayout, unknown_partition_column

MOST_CHECKPOINT_BYTES = 64 << 20
"""The checkpoint of a table with some 500,000 files. What is larger is Spark's business."""

_MOST_WITH_FILES = 4 << 20
"""The same where the files are kept: of some 30,000, half a second."""

_CHECKPOINT_COLUMNS = ("protocol", "metaData", "txn")

_HARMLESS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "domainMetadata",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Writer features that ask nothing of an append."""

_MARKS = {
    "invariants": "delta.invariants",
    "checkConstraints": "delta.constraints.",
    "generatedColumns": "delta.generationExpression",
    "allowColumnDefaults": "CURRENT_DEFAULT",
    "identityColumns": "delta.identity.",
    "columnMapping": "delta.columnMapping.mode",
}
"""Those that do if the table uses them, with the beginning of the property or column metadata that shows it."""

_REFUSING = {
    "delta.appendOnly": "its rows must not be changed (delta.appendOnly)",
    "delta.enableChangeDataFeed": "it has a change data feed",
}

_OF_WRITER_VERSION = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""What the writer versions before feature lists (7) have added."""

_FEATURE_LISTS = 7


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


@dataclass(slots=True, kw_only=True)
class TableLog:
    """The table in the directory of ``files``, as of ``version``. ``metadata`` and ``protocol``: Delta's actions.
    ``transactions``: the number of each writer (``txn`` actions). ``active``: the table's files by their path as the
    log has it, if it ``keeps_files``: for small tables."""

    files: CommitFiles
    version: int = -1
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    keeps_files: bool = False
    active: dict[str, ActiveFile] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        files: CommitFiles,
        *,
        keeps_files: bool = False,
        most_bytes: int | None = None,
        version: int | None = None,
    ) -> TableLog:
        """As of the newest version, or of ``version``. ``most_bytes``: of a file of its checkpoint. Raises
        UnknownTableError (no table, a checkpoint that is too large), GoneFileError (a commit that it takes is gone),
        and what the storage raises."""
        log = cls(files=files, keeps_files=keeps_files)
        log.version, paths = files.checkpoint(version)
        for path in paths:
            log._take(_checkpoint_actions(files, path, keeps_files, most_bytes))
        if version is None:
            log.refresh()
        else:
            log._go_to(version)
        if not log.metadata or not log.protocol:
            raise UnknownTableError("the table's log does not begin with its metadata")
        return log

    def forget_files(self) -> None:
        """They are not needed any more."""
        self.keeps_files = False
        self.active = {}

    def catch_up(self) -> Iterator[tuple[int, CommitFile]]:
        """The commits since, oldest first; each counts for this view when it is yielded."""
        while (text := self.files.text(self.version + 1)) is not None:
            yield self.version + 1, self.take(text)

    def refresh(self) -> None:
        """As of the newest version now."""
        for _ in self.catch_up():
            pass

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
        return pq.ParquetFile(io.BytesIO(content))

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
        """Raises UnknownTableError, with what it is that only Spark's writer respects."""
        for feature in sorted(_writer_features(self.protocol) - _HARMLESS):
            mark = _MARKS.get(feature)
            if mark is None or any(name.startswith(mark) for name in self._marks()):
                raise UnknownTableError(f"the table has the feature {feature}")

    def check_can_replace(self) -> None:
        """May its files be taken out, or exchanged for others? As ``check_can_append``; ``active`` is known."""
        self.check_can_append()
        for name, reason in _REFUSING.items():
            if self.properties.get(name) == "true":
                raise UnknownTableError(reason)
        if not all(file.is_whole for file in self.active.values()):
            raise UnknownTableError("it has deletion vectors (REORG TABLE ... APPLY (PURGE) removes them)")

    def check_has_plain_columns(self) -> None:
        """For files that others write: nothing has to be worked out or checked for a row. Raises UnknownTableError."""
        unknown = unknown_partition_column(self.metadata["schemaString"], self.partition_columns)
        if unknown is not None:
            raise UnknownTableError(f"the table is partitioned by {unknown}")
        schema = json.loads(self.metadata["schemaString"])
        if (column := _required_column(schema)) is not None:
            raise UnknownTableError(f"column {column} must not be null")
        if any(name == "__CHAR_VARCHAR_TYPE_STRING" for name in _column_metadata(schema)):
            raise UnknownTableError("the table has columns of limited length")

    def _marks(self) -> Iterator[str]:
        for name, value in self.properties.items():
            if (name, value) != (_MARKS["columnMapping"], "none"):
                yield name
        yield from _column_metadata(json.loads(self.metadata["schemaString"]))

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


def _writer_features(protocol: Mapping[str, Any]) -> frozenset[str]:
    version = int(protocol["minWriterVersion"])
    if version > _FEATURE_LISTS:
        return frozenset({f"writer version {version}"})
    listed = protocol.get("writerFeatures") or ()
    implied = (name for added, names in _OF_WRITER_VERSION.items() if added <= version for name in names)
    return frozenset(listed) if version == _FEATURE_LISTS else frozenset(implied)


def _column_metadata(kind: Any) -> Iterator[str]:
    """The names of the metadata of all columns, nested ones too, in a schema's JSON."""
    if not isinstance(kind, dict):
        return
    for column in kind.get("fields", ()):
        yield from column.get("metadata", {})
        yield from _column_metadata(column["type"])
    for inside in ("elementType", "keyType", "valueType"):
        yield from _column_metadata(kind.get(inside))


def _required_column(kind: Any) -> str | None:
    """The first one that may not be null, in a schema's JSON."""
    for column in kind.get("fields", ()) if isinstance(kind, dict) else ():
        if not column["nullable"]:
            return str(column["name"])
        if (inside := _required_column(column["type"])) is not None:
            return inside
    return None


def _checkpoint_actions(
    files: CommitFiles, path: str, keeps_files: bool, most_bytes: int | None
) -> Iterable[Mapping[str, Any]]:
    content = files.content(path, most_bytes or (_MOST_WITH_FILES if keeps_files else MOST_CHECKPOINT_BYTES))
    if content is None:
        raise UnknownTableError(f"checkpoint {path} is too large to be read here, or gone")
    if path.endswith(".json"):
        return actions_in(content.decode())
    file = pq.ParquetFile(io.BytesIO(content))
    wanted = (*_CHECKPOINT_COLUMNS, "add") if keeps_files else _CHECKPOINT_COLUMNS
    columns = [name for name in wanted if name in file.schema_arrow.names]
    return [_with_maps(row) for row in file.read(columns=columns).to_pylist() if any(row.values())]


def _with_maps(action: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arrow gives a map as pairs."""
    if metadata := action.get("metaData"):
        kind = metadata.get("format") or {"provider": "parquet"}
        maps = {"format": {**kind, "options": dict(kind.get("options") or ())}}
        maps["configuration"] = dict(metadata.get("configuration") or ())
        return {**action, "metaData": {**metadata, **maps}}
    if added := action.get("add"):
        return {**action, "add": {**added, "partitionValues": dict(added["partitionValues"] or ())}}
    return action
