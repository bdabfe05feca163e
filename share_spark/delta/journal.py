"""Small files that outlive an engine: what it was about to do, told before it does it.

An entry is named by the micro-batch that it belongs to and appears whole or not at all (written aside, then renamed).
Through Hadoop's file system, so wherever the state is. What an entry says is its owner's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from share_spark.engine.ports import Stamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Journal:
    """The entries of one group for one purpose, below the directory of a Delta table.

    Delta lets directories alone whose names begin with an underscore, VACUUM included.
    """

    def __init__(self, spark: SparkSession, table_directory: str, purpose: str, group_id: str) -> None:
        self._jvm: Any = spark._jvm
        self._directory = f"{table_directory.rstrip('/')}/_share_spark/{purpose}/{quote(group_id, safe='')}"
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(self._directory).getFileSystem(configuration)

    def put(self, stamp: Stamp, content: bytes) -> None:
        """Write the entry of a micro-batch; one that is there already is replaced."""
        aside = self._path(f"{self._directory}/.{_name(stamp)}.tmp")
        stream = self._files.create(aside, True)
        try:
            stream.write(content)
        finally:
            stream.close()
        self.remove(stamp)
        if not self._files.rename(aside, self._file(stamp)):
            raise OSError(f"cannot write {self._file(stamp)}")

    def read(self, stamp: Stamp) -> bytes | None:
        """What the entry says, None if there is none."""
        if not self._files.exists(self._file(stamp)):
            return None
        stream = self._files.open(self._file(stamp))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def remove(self, stamp: Stamp) -> None:
        """Forget the entry; none is fine."""
        self._files.delete(self._file(stamp), False)

    def stamps(self) -> list[Stamp]:
        """The micro-batches that have an entry, oldest first."""
        directory = self._path(self._directory)
        if not self._files.exists(directory):
            return []
        names = (status.getPath().getName() for status in self._files.listStatus(directory))
        return sorted(_stamp(name) for name in names if not name.startswith("."))

    def _file(self, stamp: Stamp) -> Any:
        return self._path(f"{self._directory}/{_name(stamp)}")

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)


def _name(stamp: Stamp) -> str:
    return f"{stamp.writer_epoch}-{stamp.batch_id}"


def _stamp(name: str) -> Stamp:
    epoch, _, batch = name.partition("-")
    return Stamp(int(epoch), int(batch))
