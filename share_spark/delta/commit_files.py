"""The newest commits of a Delta table, from the files of its log: no snapshot, no data read.

To see that nothing has changed takes one request to the file system; to see the changes, one small file per commit.
Delta's own snapshot of the same costs a Spark job.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from share_spark.spark.files import Ready, StorageFiles, written
from share_spark.spark.hadoop_files import files_at
from share_spark.spark.on_demand import AnySpark
from share_spark.spark.public_files import LocalFiles, local_path

_COMMIT = re.compile(r"\d{20}\.json")

_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(?:\.\d{10}\.(?P<of>\d{10})|\.(?P<uuid>[0-9a-f-]{36}))?\.(?:parquet|json)"
)
"""The name of a checkpoint: one file, one of several, or Delta's second form, which may be JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFile:
    """The parts of one commit that this project uses.

    ``properties``: the table's properties if the commit set them, else None. ``note``: its ``userMetadata``.
    ``adds_data``: it holds rows that were not in the table before. ``blind``: Delta treated it as an append that
    depends on nothing. ``actions``: those that change what an appending writer has to know of the table.
    ``committed_at_ms``: by its writer's clock, 0 if it has none. ``operation``: as Delta's history names it.
    """

    properties: dict[str, str] | None
    note: str | None
    adds_data: bool
    blind: bool
    actions: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)
    committed_at_ms: int = 0
    operation: str = ""

    @property
    def transactions(self) -> dict[str, int]:
        """The number of each writer that the commit has set (``txn`` actions)."""
        entries = (action["txn"] for action in self.actions if "txn" in action)
        return {entry["appId"]: int(entry["version"]) for entry in entries}


class CommitFiles:
    """The ``_delta_log`` of the table in ``directory`` (without a slash at its end), on ``storage``."""

    def __init__(self, storage: StorageFiles, directory: str) -> None:
        self.storage = storage
        self.directory = directory.rstrip("/")
        self._directory = f"{self.directory}/_delta_log"

    @classmethod
    def at(cls, spark: AnySpark, directory: str) -> CommitFiles:
        """Return the commit files of a directory on any storage."""
        return cls(files_at(spark, directory), directory)

    @property
    def local_directory(self) -> str | None:
        """The table's directory as a local path; None on another storage."""
        return local_path(self.directory) if isinstance(self.storage, LocalFiles) else None

    def latest_version(self) -> int:
        """Return the newest version, -1 if there is none. Lists the directory."""
        versions = (int(name[:20]) for name in self.storage.names(self._directory) if name[20:] == ".json")
        return max(versions, default=-1)

    def is_table(self) -> bool:
        """Return whether there is a commit, or a checkpoint that stands for commits."""
        names = self.storage.names(self._directory)
        return any(_COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in names)

    def make_directory(self) -> None:
        """Make the directory of the log, unless it is there."""
        self.storage.make_directory(self._directory)

    def exists(self, version: int) -> bool:
        """Return whether this commit's file is there: not after clean-up, or after the table was removed."""
        return self.storage.exists(self._file(version))

    def read(self, version: int) -> CommitFile | None:
        """Return the commit, None if there is no such version yet."""
        text = self.text(version)
        return None if text is None else parse_commit(text)

    def text(self, version: int) -> str | None:
        """Return the text of a commit file, None if there is none."""
        content = self.storage.read(self._file(version))
        return None if content is None else content.decode()

    def content(self, path: str, most_bytes: int) -> bytes | None:
        """Return the content of a file; None if it is larger, or gone."""
        size = self.storage.size(path)
        return None if size is None or size > most_bytes else self.storage.read(path)

    def sidecar(self, path: str) -> str:
        """Return the path of a sidecar of a checkpoint, as storage has it; ``path``: as the checkpoint has it."""
        return path if "/" in path else f"{self._directory}/_sidecars/{path}"

    def commit(self, version: int, text: str, ready: Ready = written) -> bool:
        """Write the file of this commit if there is none, as ``StorageFiles.commit``, and raise as that does."""
        return self.storage.commit(self._file(version), text.encode(), ready)

    def remove(self, version: int) -> None:
        """Delete the file of a commit."""
        self.storage.delete(self._file(version))

    def names(self) -> list[str]:
        """Return the names of all files of the log. Lists the directory."""
        return self.storage.names(self._directory)

    def remove_named(self, name: str) -> None:
        """Delete one of ``names``, if it is there."""
        self.storage.delete(f"{self._directory}/{name}")

    def put_checkpoint(self, version: int, content: bytes, actions: int) -> None:
        """Write a checkpoint of one Parquet file with so many actions, and let readers begin with it."""
        self._put(f"{version:020d}.checkpoint.parquet", content)
        self._put("_last_checkpoint", json.dumps({"version": version, "size": actions}).encode())

    def _put(self, name: str, content: bytes) -> None:
        aside = f"{self._directory}/.{name}.{uuid.uuid4().hex}.tmp"
        self.storage.put(f"{self._directory}/{name}", aside, content)

    def checkpoint(self, at_most: int | None = None) -> tuple[int, list[str]]:
        """Return the newest complete checkpoint (up to the version ``at_most``) as its version and its files; -1 and
        none if there is none."""
        known = {version: paths for version, paths in self.checkpoints() if at_most is None or version <= at_most}
        newest = max(known, default=-1)
        return newest, known.get(newest, [])

    def readable_versions(self) -> range:
        """Return the versions that can be built from the log; empty if there is no table. Lists the directory."""
        commits = {int(name[:20]) for name in self.storage.names(self._directory) if _COMMIT.fullmatch(name)}
        last = max(commits, default=-1)
        first = last
        while first - 1 in commits:
            first -= 1
        starts = [version for version, _ in self.checkpoints() if first - 1 <= version <= last]
        return range(0 if first <= 0 else min(starts, default=last + 1), last + 1)

    def checkpoints(self) -> list[tuple[int, list[str]]]:
        """Return the complete checkpoints, ascending: version and files."""
        parts: dict[tuple[int, str], list[str]] = {}
        for name in self.storage.names(self._directory):
            if found := _CHECKPOINT.fullmatch(name):
                kind = found["of"] or found["uuid"] or ""
                parts.setdefault((int(found["version"]), kind), []).append(f"{self._directory}/{name}")
        whole = {key: paths for key, paths in parts.items() if not key[1].isdecimal() or len(paths) == int(key[1])}
        return [(version, whole[version, kind]) for version, kind in sorted(whole)]

    def _file(self, version: int) -> str:
        return f"{self._directory}/{version:020d}.json"


def parse_commit(text: str) -> CommitFile:
    """Read the actions of a commit file, one JSON object a line."""
    properties: dict[str, str] | None = None
    info: dict[str, Any] = {}
    adds_data = False
    kept: list[Mapping[str, Any]] = []
    for action in actions_in(text):
        if not _OF_TABLE.isdisjoint(action):
            kept.append(action)
        if "metaData" in action:
            properties = dict(action["metaData"].get("configuration") or {})
        info = action.get("commitInfo", info)
        adds_data = adds_data or bool(action.get("add", {}).get("dataChange"))
    return CommitFile(
        properties=properties,
        note=note if isinstance(note := info.get("userMetadata"), str) else None,
        adds_data=adds_data,
        blind=bool(info.get("isBlindAppend")),
        actions=tuple(kept),
        committed_at_ms=at_ms if isinstance(at_ms := info.get("timestamp"), int) else 0,
        operation=str(info.get("operation") or ""),
    )


def commit_text(
    operation: str, parameters: Mapping[str, str], actions: Iterable[Mapping[str, Any]], *, blind: bool, **info: Any
) -> str:
    """Return the text of a commit file of ours. ``info``: further fields of its ``commitInfo``."""
    described = {
        "timestamp": int(time.time() * 1_000),
        "operation": operation,
        "operationParameters": dict(parameters),
        "isolationLevel": "Serializable",
        "isBlindAppend": blind,
        "engineInfo": "share_spark",
        "txnId": str(uuid.uuid4()),
        **info,
    }
    lines = [{"commitInfo": described}, *actions]
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in lines)


def note_fields(note: str | None) -> Mapping[str, Any]:
    """Return the fields of a commit's ``userMetadata`` that is a JSON object; none for any other text: every program
    may write what it likes there."""
    if not note or not note.startswith("{"):
        return {}
    try:
        found = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def actions_in(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the actions, one JSON object a line. Their texts may contain other line ends of Unicode."""
    return (json.loads(line) for line in text.split("\n") if line.strip())


_OF_TABLE = frozenset({"metaData", "protocol", "txn"})
