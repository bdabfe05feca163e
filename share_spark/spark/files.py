"""Small files on whatever storage Spark can reach: one face, two ways.

``StorageFiles`` goes through Hadoop's file systems, with the settings and credentials of the session. Where that is not
to be had (``capabilities.HADOOP_FILES``), ``PublicFiles`` goes by Python for local paths and by pyarrow for others.
``files_at`` chooses. Paths are texts with or without a scheme, all on the storage of the path it was called with.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from share_spark.spark.capabilities import HADOOP_FILES, LOG_STORE, PARTIAL_WRITES, use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE_S = 1.0
"""An object store only looks whether there is a file, then writes: of those who have done so at once the last one has
it, and whoever reads it so much later knows that."""

_COMPLETE_WHEN_SEEN = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "oss", "cosn", "obs"})
"""Object stores, where a file appears when it is complete."""


class TotalSize(NamedTuple):
    """Of all files below a directory."""

    files: int
    bytes: int


class StorageFiles(ABC):
    """Files of one storage."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """A file or a directory."""

    @abstractmethod
    def is_directory(self, path: str) -> bool:
        """False too if there is nothing."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """What lies in it, in any order; empty if it is not there. Hadoop's checksum files are left out."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """All of a file; None if there is none."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """In place, over what is there; directories are made. A reader may see a part of it (``put`` hides that)."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Only if there is none; did it? Two at once: one does, if they say different things."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """With those above it, unless it is there; nothing on an object store."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Over what is there. In one step on local disks and HDFS; where the storage cannot (Azure's), the target is
        away for a moment."""

    @abstractmethod
    def delete(self, path: str, *, recursive: bool = False) -> None:
        """If it is there."""

    @abstractmethod
    def modified_at_ms(self, path: str) -> int | None:
        """When it was written last; None if there is none."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Of a file, in bytes; None if there is none."""

    @abstractmethod
    def total_size(self, directory: str) -> TotalSize:
        """A recursive listing."""

    @abstractmethod
    def shows_partial_writes(self, path: str) -> bool:
        """May others see a file here before it is complete?"""

    def put(self, path: str, aside: str, content: bytes) -> None:
        """Write a file that appears whole, and replaces what is there.

        Where others see a file before it is complete (disks, HDFS, Azure): written aside, then renamed. On other
        object stores a rename is a copy, but an object appears when it is complete: written directly.
        """
        if not self.shows_partial_writes(path):
            self.write(path, content)
            return
        self.write(aside, content)
        self.rename(aside, path)

    def commit(self, path: str, content: bytes) -> bool:
        """Write a file of a Delta log, only if there is none, so that of several at once exactly one does; did it? It
        appears whole. Its directory is there; OSError if not. As safe as Delta's own commits to this storage.

        Raises NotImplementedError where that cannot be had."""
        raise NotImplementedError(f"no file of a Delta log can be put to {path}")

    def _settled(self, path: str, content: bytes) -> bool:
        """Is it still ours a moment later?"""
        time.sleep(SETTLE_S)
        return self.read(path) == content


def files_at(spark: SparkSession, path: str) -> StorageFiles:
    """The files of the storage that ``path`` is on. Nothing is opened or made."""
    from share_spark.spark.public_files import LocalFiles, public_files

    def of_hadoop() -> StorageFiles:
        files = HadoopFiles(spark, path)
        return LocalFiles() if files.scheme == "file" else files

    return use(HADOOP_FILES, of_hadoop, lambda: public_files(spark, path))


class HadoopFiles(StorageFiles):
    """Through Hadoop's file system, so on any storage that Spark can reach. Not for local disks: there it keeps a
    second file with a checksum beside each, cannot replace both in one step, and its creation is not atomic."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._spark = spark
        self._path_class: Any = jvm.org.apache.hadoop.fs.Path
        self._io: Any = jvm.org.apache.commons.io.IOUtils
        self._jvm = jvm
        self._configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._files: Any = self._path_class(path).getFileSystem(self._configuration)
        self.scheme = str(self._files.getUri().getScheme())
        self._shows_partial_writes: bool | None = None

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path_class(path)))

    def is_directory(self, path: str) -> bool:
        at = self._path_class(path)
        return bool(self._files.exists(at)) and bool(self._files.getFileStatus(at).isDirectory())

    def names(self, directory: str) -> list[str]:
        at = self._path_class(directory)
        if not self._files.exists(at):
            return []
        return [str(status.getPath().getName()) for status in self._files.listStatus(at)]

    def read(self, path: str) -> bytes | None:
        at = self._path_class(path)
        try:
            stream = self._files.open(at)
        except Py4JJavaError:
            if self._files.exists(at):
                raise
            return None
        try:
            return bytes(self._io.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        self._write(path, content, overwrite=True)

    def create(self, path: str, content: bytes) -> bool:
        at = self._path_class(path)
        self._files.mkdirs(at.getParent())
        try:
            self._write(path, content, overwrite=False)
        except Exception:
            if not self._files.exists(at):
                raise
            return False
        return self._settled(path, content)

    def make_directory(self, path: str) -> None:
        self._files.mkdirs(self._path_class(path))

    def rename(self, source: str, target: str) -> None:
        hadoop = self._jvm.org.apache.hadoop.fs
        modes = self._spark.sparkContext._gateway.new_array(getattr(hadoop, "Options$Rename"), 1)  # type: ignore[union-attr]
        modes[0] = getattr(hadoop, "Options$Rename").OVERWRITE
        context = hadoop.FileContext.getFileContext(self._files.getUri(), self._configuration)
        context.rename(self._path_class(source), self._path_class(target), modes)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self._files.delete(self._path_class(path), recursive)

    def modified_at_ms(self, path: str) -> int | None:
        at = self._path_class(path)
        if not self._files.exists(at):
            return None
        return int(self._files.getFileStatus(at).getModificationTime())

    def size(self, path: str) -> int | None:
        at = self._path_class(path)
        return int(self._files.getFileStatus(at).getLen()) if self._files.exists(at) else None

    def total_size(self, directory: str) -> TotalSize:
        summary = self._files.getContentSummary(self._path_class(directory))
        return TotalSize(int(summary.getFileCount()), int(summary.getLength()))

    def shows_partial_writes(self, path: str) -> bool:
        """Delta knows, by the scheme: its own log depends on it. Asked once."""
        if self._shows_partial_writes is None:
            self._shows_partial_writes = use(
                PARTIAL_WRITES, lambda: self.ask_delta(path), lambda: shows_partial_writes_by(self.scheme)
            )
        return self._shows_partial_writes

    def ask_delta(self, path: str) -> bool:
        """What its log store says."""
        return bool(self._log_store().isPartialWriteVisible(self._path_class(path), self._configuration))

    def commit(self, path: str, content: bytes) -> bool:
        def private() -> bool:
            return self.commit_by_delta(path, content)

        return use(LOG_STORE, private, lambda: super(HadoopFiles, self).commit(path, content))

    def commit_by_delta(self, path: str, content: bytes) -> bool:
        """By its log store, which knows what this storage can do."""
        lines = self._jvm.java.util.ArrayList()
        for line in content.decode().splitlines():
            lines.add(line)
        actions = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
        try:
            self._log_store().write(self._path_class(path), actions, False, self._configuration)
        except Py4JJavaError as fault:
            if "FileAlreadyExistsException" not in str(fault.java_exception.getClass().getName()):
                raise
            return False
        return True

    def _log_store(self) -> Any:
        provider = getattr(getattr(self._jvm.org.apache.spark.sql.delta.storage, "LogStore$"), "MODULE$")
        return provider.apply(self._spark._jsparkSession)

    def _write(self, path: str, content: bytes, *, overwrite: bool) -> None:
        """Not closed where it fails: that would publish what there is of it."""
        stream = self._files.create(self._path_class(path), overwrite)
        stream.write(content)
        stream.close()


def shows_partial_writes_by(scheme: str) -> bool:
    """As Delta's log stores judge it; an unknown storage is taken for one that shows them."""
    return scheme not in _COMPLETE_WHEN_SEEN
