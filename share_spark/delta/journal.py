"""Small files that outlive an engine: what it is about to do, written before it does it.

An entry is named by the micro-batch that it belongs to. It appears whole or not at all, and one that is replaced is
there at every moment, as the old one or the new one (see ``StorageFiles.put``). Only its owner reads the content.
"""

from __future__ import annotations

from share_spark.model.ids import BatchStamp
from share_spark.spark.files import group_file_name
from share_spark.spark.hadoop_files import files_at
from share_spark.spark.on_demand import AnySpark

OUTPUT = "output"
"""The purpose of the entries about sinks."""

DEAD_LETTERS = "dead letters"
"""The purpose of the entries about dead letters, until the commit they belong to is known to have happened."""

WAITING_LETTERS = "waiting dead letters"
"""The purpose of entries of dead engines whose commit is known to have happened: no later commit changes it."""


class Journal:
    """The entries of one group for one purpose, below the directory of a Delta table.

    Delta ignores directories whose names begin with an underscore, VACUUM included.
    """

    def __init__(self, spark: AnySpark, table_directory: str, purpose: str, group_id: str) -> None:
        self._directory = f"{table_directory.rstrip('/')}/_share_spark/{purpose}/{group_file_name(group_id)}"
        self._files = files_at(spark, self._directory)

    def put(self, stamp: BatchStamp, content: bytes) -> None:
        """Write the entry of a micro-batch; one that is there already is replaced."""
        self._files.put(self._file(stamp), f"{self._directory}/.{_name(stamp)}.tmp", content)

    def read(self, stamp: BatchStamp) -> bytes | None:
        """Return the entry's content, None if there is no entry."""
        return self._files.read(self._file(stamp))

    def remove(self, stamp: BatchStamp) -> None:
        """Remove the entry, if there is one."""
        self._files.delete(self._file(stamp))

    def stamps(self) -> list[BatchStamp]:
        """Return the micro-batches that have an entry, oldest first."""
        names = self._files.names(self._directory)
        return sorted(_stamp(name) for name in names if not name.startswith("."))

    def _file(self, stamp: BatchStamp) -> str:
        return f"{self._directory}/{_name(stamp)}"


def _name(stamp: BatchStamp) -> str:
    return f"{stamp.writer_epoch}-{stamp.batch_id}"


def _stamp(name: str) -> BatchStamp:
    epoch, _, batch = name.partition("-")
    return BatchStamp(int(epoch), int(batch))
