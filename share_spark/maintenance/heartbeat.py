"""Small files beside the state log that say who works on it: an engine's heartbeat, the lock of a compaction.

They lie in ``_share_spark`` in the log's directory, beside the journals (Delta passes over names that begin with an
underscore, VACUUM too), so a schema has a place for them as well as a directory. A thread writes a file again and
again; a file that has not been written for long is that of a process that has ended. Correctness does not depend on
them, but on the log: they keep a running engine from being fenced, and two compactions from conflicting.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from share_spark.delivery.ledger_place import LEDGERS
from share_spark.delta.location import Location
from share_spark.model.ids import NO_STAMP
from share_spark.state.tables import log_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

BEAT_MS = 10_000
"""How often a heartbeat file is written."""

_SETTLE_S = 1.0
"""An object store (s3a) only looks whether there is a file, then writes: of those who have done so at once the last one
has it, and a reader that waits so long sees that."""


@dataclass(frozen=True, slots=True, eq=False)
class SmallFile:
    """A file with a line of text, through Hadoop's file system, so on any storage that Spark can reach."""

    path: Any
    _files: Any
    _jvm: Any

    @classmethod
    def of(cls, spark: SparkSession, path: str) -> SmallFile:
        """Nothing is opened or made."""
        jvm: Any = spark._jvm
        place = jvm.org.apache.hadoop.fs.Path(path)
        return cls(place, place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), jvm)

    def write(self, text: str) -> None:
        """Over whatever is there."""
        self._write(text, True)

    def create(self, text: str) -> bool:
        """Only if there is none; did it? Two at once: one does, if they say different things."""
        self._files.mkdirs(self.path.getParent())
        try:
            if self._files.getUri().getScheme() == "file":  # Hadoop's own create is not atomic here
                with Path(self.path.toUri().getPath()).open("x", encoding="utf-8") as file:
                    file.write(text)
                return True
            self._write(text, False)
        except Exception:
            if self.modified_at_ms() is None:
                raise
            return False
        time.sleep(_SETTLE_S)
        return self.read() == text

    def read(self) -> str:
        """The text; empty if there is none, or if it is being written just now."""
        try:
            stream = self._files.open(self.path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Exception:  # noqa: BLE001 - the text is only shown, nothing is decided by it
            return ""

    def modified_at_ms(self) -> int | None:
        """When it was written last; None if there is none."""
        if not self._files.exists(self.path):
            return None
        return int(self._files.getFileStatus(self.path).getModificationTime())

    def delete(self) -> None:
        """If it is there."""
        self._files.delete(self.path, False)

    def _write(self, text: str, overwrite: bool) -> None:
        stream = self._files.create(self.path, overwrite)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()


@dataclass(slots=True, kw_only=True, eq=False)
class Heartbeat:
    """Writes ``file`` again and again from ``start`` to ``close``. ``close`` does not delete it: a successor may own
    the heartbeat by then. A write that fails is only late."""

    file: SmallFile
    text: str
    every_ms: int = BEAT_MS
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """The first write is done when this returns."""
        self._beat()
        self._thread = threading.Thread(target=self._run, name="share-spark-heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stop.wait(self.every_ms / 1_000):
            self._beat()

    def _beat(self) -> None:
        try:
            self.file.write(self.text)
        except Exception:  # noqa: BLE001 - a failed heartbeat must not end the engine
            _log.warning("%s could not be written; it will be tried again", self.file.path, exc_info=True)


def heartbeat_file(spark: SparkSession, location: Location, group_id: str) -> SmallFile:
    """The heartbeat of a group's engine: written within the last seconds while one runs."""
    return SmallFile.of(spark, f"{_directory(spark, location)}/alive/{quote(group_id, safe='')}")


_CLAIM = f"-{NO_STAMP.batch_id}"
"""How the name of a claim's entry ends (``journal``)."""

_ASIDE = "."
"""How the name of an entry begins that was never finished, so that nothing can have followed it."""


def has_journals(spark: SparkSession, location: Location, group_id: str) -> bool:
    """Has an engine of the group left work in a journal, of whatever purpose? An entry of a claim is none, nor is a
    temporary file that was not renamed (``Journal.put``)."""
    jvm: Any = spark._jvm
    directory = jvm.org.apache.hadoop.fs.Path(_directory(spark, location))
    files = directory.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    found = [status.getPath() for status in files.listStatus(directory)] if files.exists(directory) else []
    purposes = [at for at in found if at.getName() != LEDGERS]
    journals = [jvm.org.apache.hadoop.fs.Path(purpose, quote(group_id, safe="")) for purpose in purposes]
    left = [status.getPath().getName() for at in journals if files.isDirectory(at) for status in files.listStatus(at)]
    return any(not name.startswith(_ASIDE) and not name.endswith(_CLAIM) for name in left)


def lock_file(spark: SparkSession, location: Location) -> SmallFile:
    """The lock that one compaction at a time holds on a state location."""
    return SmallFile.of(spark, f"{_directory(spark, location)}/compaction")


def age_ms(file: SmallFile) -> int | None:
    """Milliseconds since it was last written; None if there is no such file."""
    at = file.modified_at_ms()
    return None if at is None else int(time.time() * 1_000) - at


def _directory(spark: SparkSession, location: Location) -> str:
    return f"{log_table(location).directory(spark).rstrip('/')}/_share_spark"
