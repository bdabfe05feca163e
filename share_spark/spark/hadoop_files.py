"""Files of a storage through Hadoop's file systems, with the settings and credentials of the session; and the choice of
the way to the files of a path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from share_spark.spark.capabilities import HADOOP_FILES, LOG_STORE, PARTIAL_WRITES, is_allowed, use
from share_spark.spark.files import Ready, StorageFiles, TotalSize, shows_partial_writes_by, written
from share_spark.spark.jvm_errors import Py4JJavaError
from share_spark.spark.on_demand import AnySpark, given_session, session_of
from share_spark.spark.public_files import LocalFiles, local_path, public_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files_at(spark: AnySpark, path: str) -> StorageFiles:
    """Return the files of the storage of ``path``. Nothing is opened or made. Without a session a path without a scheme
    is one of this machine; on other storages only Spark has the credentials, and can commit."""
    if given_session(spark) is None and local_path(path) is not None:
        return LocalFiles()
    session = session_of(spark, f"{path} is on a storage that is reached through Hadoop")

    def of_hadoop() -> StorageFiles:
        files = HadoopFiles(session, path)
        return LocalFiles() if files.scheme == "file" else files

    return use(HADOOP_FILES, of_hadoop, lambda: public_files(session, path))


class HadoopFiles(StorageFiles):
    """Files through Hadoop's file system, so on any storage that Spark can reach. Not for local disks: there Hadoop
    keeps a second file with a checksum beside each, cannot replace both in one step, and its creation is not atomic."""

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
        except Py4JJavaError as fault:
            if "FileNotFoundException" not in _class_name(fault) and self._files.exists(at):
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
        """Return Delta's answer, by the scheme: its own log depends on it. Asked once."""
        if self._shows_partial_writes is None:
            self._shows_partial_writes = use(
                PARTIAL_WRITES, lambda: self.ask_delta(path), lambda: shows_partial_writes_by(self.scheme)
            )
        return self._shows_partial_writes

    def ask_delta(self, path: str) -> bool:
        """Return the answer of Delta's log store."""
        return bool(self._log_store().isPartialWriteVisible(self._path_class(path), self._configuration))

    @property
    def can_commit(self) -> bool:
        return is_allowed(LOG_STORE)

    def commit(self, path: str, content: bytes, ready: Ready = written) -> bool:
        ready()

        def private() -> bool:
            return self.commit_by_delta(path, content)

        return use(LOG_STORE, private, lambda: super(HadoopFiles, self).commit(path, content))

    def commit_by_delta(self, path: str, content: bytes) -> bool:
        """Commit by Delta's log store, which knows what this storage can do."""
        lines = self._jvm.java.util.ArrayList()
        for line in content.decode().removesuffix("\n").split("\n"):
            lines.add(line)
        actions = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
        try:
            self._log_store().write(self._path_class(path), actions, False, self._configuration)
        except Py4JJavaError as fault:
            if "FileAlreadyExistsException" not in _class_name(fault):
                raise
            return False
        return True

    def _log_store(self) -> Any:
        provider = getattr(getattr(self._jvm.org.apache.spark.sql.delta.storage, "LogStore$"), "MODULE$")
        return provider.apply(self._spark._jsparkSession)

    def _write(self, path: str, content: bytes, *, overwrite: bool) -> None:
        """Write a file. It is not closed after an error: that would publish a part of it."""
        stream = self._files.create(self._path_class(path), overwrite)
        stream.write(content)
        stream.close()


def _class_name(fault: Py4JJavaError) -> str:
    return str(fault.java_exception.getClass().getName())
