"""Small files that outlive an engine: what it is about to do, written before it does it.

An entry is named by the micro-batch that it belongs to. It appears whole or not at all, and one that is replaced is
there at every moment, as the old one or the new one. How depends on the storage (``put``). Through Hadoop's file
system, so wherever the state is. The content of an entry is defined by its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from share_spark.model.ids import BatchStamp
from share_spark.spark.delta_log import delta_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Journal:
    """The entries of one group for one purpose, below the directory of a Delta table.

    Delta lets directories alone whose names begin with an underscore, VACUUM included.
    """

    def __init__(self, spark: SparkSession, table_directory: str, purpose: str, group_id: str) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._directory = f"{table_directory.rstrip('/')}/_share_spark/{purpose}/{quote(group_id, safe='')}"
        self._configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._files: Any = self._path(self._directory).getFileSystem(self._configuration)
        if self._files.getUri().getScheme() == "file":
            # Beside each file Hadoop keeps a second one with its checksum, and cannot replace both in one step.
            self._files = self._files.getRawFileSystem()
        # Delta knows, by the scheme: its own log depends on it.
        store = delta_log(spark, table_directory).store()
        self._shows_beginnings = bool(store.isPartialWriteVisible(self._path(self._directory), self._configuration))

    def put(self, stamp: BatchStamp, content: bytes) -> None:
        """Write the entry of a micro-batch; one that is there already is replaced.

        Where others see a file before it is complete (disks, HDFS, Azure): written aside, then renamed. On other
        object stores a rename is a copy, but an object appears when it is complete: written directly.
        """
        if not self._shows_beginnings:
            self._write(self._file(stamp), content)
            return
        aside = self._path(f"{self._directory}/.{_name(stamp)}.tmp")
        self._write(aside, content)
        self._rename(aside, self._file(stamp))

    def read(self, stamp: BatchStamp) -> bytes | None:
        """What the entry says, None if there is none."""
        try:
            stream = self._files.open(self._file(stamp))
        except Py4JJavaError:
            if self._files.exists(self._file(stamp)):
                raise
            return None
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def remove(self, stamp: BatchStamp) -> None:
        """Forget the entry; none is fine."""
        self._files.delete(self._file(stamp), False)

    def stamps(self) -> list[BatchStamp]:
        """The micro-batches that have an entry, oldest first."""
        directory = self._path(self._directory)
        if not self._files.exists(directory):
            return []
        names = (status.getPath().getName() for status in self._files.listStatus(directory))
        return sorted(_stamp(name) for name in names if not name.startswith("."))

    def _write(self, path: Any, content: bytes) -> None:
        """Not closed where it fails: that would publish what there is of it."""
        stream = self._files.create(path, True)
        stream.write(content)
        stream.close()

    def _rename(self, source: Any, target: Any) -> None:
        """Over what is there. In one step on local disks and HDFS; where the file system cannot (Azure's), an entry
        that is replaced is away for a moment."""
        if self._files.getUri().getScheme() == "file":
            if not self._files.rename(source, target):
                raise OSError(f"cannot write {target}")
            return
        hadoop = self._jvm.org.apache.hadoop.fs
        modes = self._spark.sparkContext._gateway.new_array(getattr(hadoop, "Options$Rename"), 1)  # type: ignore[union-attr]
        modes[0] = getattr(hadoop, "Options$Rename").OVERWRITE
        hadoop.FileContext.getFileContext(self._files.getUri(), self._configuration).rename(source, target, modes)

    def _file(self, stamp: BatchStamp) -> Any:
        return self._path(f"{self._directory}/{_name(stamp)}")

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)


def _name(stamp: BatchStamp) -> str:
    return f"{stamp.writer_epoch}-{stamp.batch_id}"


def _stamp(name: str) -> BatchStamp:
    epoch, _, batch = name.partition("-")
    return BatchStamp(int(epoch), int(batch))
