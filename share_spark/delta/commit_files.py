"""The newest commits of a Delta table, as the files of its log say them: no snapshot, no data read.

To learn that nothing has changed is one question to the file system; to learn what has, one small
file per commit. Delta's own snapshot of the same costs a Spark job. Through Hadoop's file system, so
on any storage that Spark can reach.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFile:
    """What one commit did, as far as this project asks.

    ``properties``: the table's properties if the commit set them, else None. ``note``: its
    ``userMetadata``. ``adds_data``: it holds rows that were not in the table before. ``blind``:
    Delta took it for an append that depends on nothing.
    """

    properties: dict[str, str] | None
    note: str | None
    adds_data: bool
    blind: bool


class CommitFiles:
    """The ``_delta_log`` of the table in ``directory``."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._jvm: Any = spark._jvm
        self._directory = f"{directory.rstrip('/')}/_delta_log"
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(self._directory).getFileSystem(configuration)

    def latest_version(self) -> int:
        """The newest version, -1 if there is none. Lists the directory."""
        names = (status.getPath().getName() for status in self._files.listStatus(self._path(self._directory)))
        versions = (int(name[:20]) for name in names if name[20:] == ".json")
        return max(versions, default=-1)

    def exists(self, version: int) -> bool:
        """Is the file of this commit there? Not after the table was removed, or much later."""
        return bool(self._files.exists(self._file(version)))

    def read(self, version: int) -> CommitFile | None:
        """The commit, None if there is no such version yet."""
        path = self._file(version)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            text = str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        return parse_commit(text)

    def _file(self, version: int) -> Any:
        return self._path(f"{self._directory}/{version:020d}.json")

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)


def parse_commit(text: str) -> CommitFile:
    """Read the actions of a commit file, one JSON object a line."""
    properties: dict[str, str] | None = None
    info: dict[str, Any] = {}
    adds_data = False
    for line in text.splitlines():
        action = json.loads(line) if line else {}
        if "metaData" in action:
            properties = dict(action["metaData"].get("configuration") or {})
        info = action.get("commitInfo", info)
        adds_data = adds_data or bool(action.get("add", {}).get("dataChange"))
    return CommitFile(
        properties=properties,
        note=info.get("userMetadata"),
        adds_data=adds_data,
        blind=bool(info.get("isBlindAppend")),
    )
