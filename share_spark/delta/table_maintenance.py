"""One Delta table kept small: OPTIMIZE, VACUUM, checkpoint and log clean-up, and what it measures.

What the files of the table's log say is read without Spark (``TableLog``); where that cannot be, Spark is asked. Spark
only gets the work that is there to be done: a VACUUM that would find nothing is left out.

Works in a session of its own, cloned from the one that is passed in, so that no setting of the user's is changed.
Nothing here may stop a writer: OPTIMIZE and deletions give way to the first committer, blind appends conflict with
none of them, and VACUUM only removes what is older than any append in flight.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.conflicts import is_conflict
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.native_checkpoint import write_natively
from share_spark.delta.old_files import has_old_commits, has_old_files
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.spark.delta_log import clean_log, files_of
from share_spark.spark.errors import JVM_ERRORS
from share_spark.spark.frames import cloned_session
from share_spark.spark.hadoop_files import files_at

if TYPE_CHECKING:
    from pyspark.sql import Column

_TRIES = 5
_HOUR_MS = 3_600_000
_SMALL_BYTES = 32 * 1024 * 1024
_SETTINGS = {
    # A listing of 10,000 tasks, Spark's default, keeps the micro-batches beside it waiting for half a minute.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
    # Two commits to the log for each VACUUM would be read by every engine.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # The retention has been judged by us: longer than the longest micro-batch.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # One rewritten file is read by one task: small enough that a topic is still read by several.
    "spark.databricks.delta.optimize.maxFileSize": str(64 * 1024 * 1024),
    "spark.databricks.delta.optimize.minFileSize": str(_SMALL_BYTES),
    "spark.databricks.delta.optimize.maxThreads": "1",
}

Chosen = Callable[[Mapping[str, str]], bool]
"""Is it a partition with these values?"""


class TableSize(NamedTuple):
    """``files`` and ``bytes``: all on storage, the log and files of older versions included; ``rows``: now."""

    files: int
    bytes: int
    rows: int


class PartitionFiles(NamedTuple):
    """Of one partition, by its ``values``, in the newest version. ``small``: those that OPTIMIZE would join."""

    values: Mapping[str, str]
    files: int
    small: int


def maintenance_session(spark: SparkSession) -> SparkSession:
    """A session of its own, with the settings of this work."""
    return cloned_session(spark, _SETTINGS)


@dataclass(slots=True)
class KeptTable:
    """A table to be kept small. ``session``: see ``maintenance_session``. For one thread at a time."""

    session: SparkSession
    place: Location
    _directory: str | None = None
    _log: TableLog | None = None

    @property
    def directory(self) -> str:
        """Asked once: a name is asked of the catalog."""
        if self._directory is None:
            self._directory = self.place.directory(self.session)
        return self._directory

    def log(self) -> TableLog | None:
        """The newest version, with its files; None where only Spark can read it."""
        try:
            if self._log is None:
                self._log = TableLog.open(CommitFiles.at(self.session, self.directory), keeps_files=True)
            else:
                self._log.refresh()
        except UnknownTableError:
            self._log = None
        return self._log

    def size(self) -> TableSize:
        """A recursive listing, and the rows by Delta's statistics."""
        found = files_at(self.session, self.directory).total_size(self.directory)
        log = self.log()
        rows = None if log is None else log.rows
        return TableSize(found.files, found.bytes, self.place.load(self.session).count() if rows is None else rows)

    def partitions(self) -> Sequence[PartitionFiles]:
        """All that have files in the newest version; of a table that is not partitioned, one without values."""
        log = self.log()
        if log is None:
            return self._partitions_by_spark()
        found: dict[str, list[int]] = {}
        for file in log.active.values():
            found.setdefault(json.dumps(dict(file.values), sort_keys=True), []).append(file.size)
        return [
            PartitionFiles(json.loads(values), len(sizes), sum(size < _SMALL_BYTES for size in sizes))
            for values, sizes in found.items()
        ]

    def _partitions_by_spark(self) -> Sequence[PartitionFiles]:
        files = files_of(self.session, self.directory).withColumn("text", F.to_json("partitionValues"))
        grouped = files.groupBy("text").agg(
            F.first("partitionValues"), F.count("*"), F.count_if(F.col("size") < _SMALL_BYTES)
        )
        return [PartitionFiles(*row[1:]) for row in grouped.collect()]

    def optimize(self, where: str | None = None) -> bool:
        """Join small files of the partitions that ``where`` chooses; False: gave way to other writers."""
        builder = self.place.delta_table(self.session).optimize()
        chosen = builder if where is None else builder.where(where)
        return giving_way(lambda: chosen.executeCompaction().collect())

    def delete(self, where: Column) -> bool:
        """Delete rows; False: gave way to other writers."""
        return giving_way(lambda: self.place.delta_table(self.session).delete(where))

    def drop_partitions(self, chosen: Chosen, where: Column) -> bool:
        """Delete all rows of the partitions that ``chosen`` is true for; ``where`` says the same to Spark. The files
        are named in one commit, of the version that it follows; no commit if there are none. False: gave way to other
        writers."""
        log = self.log()
        if log is None or not _can_drop(log):
            return self.delete(where)
        if not any(chosen(file.values) for file in log.active.values()):
            return True
        appends = DirectAppends(directory=self.directory, log=log)
        try:
            appends.commit([], replaced=lambda _, values: chosen(values), operation="DELETE", blind=False)
        except NotImplementedError:
            return self.delete(where)
        return True

    def vacuum(self, retention_ms: int, *, dry_run: bool = False) -> int | None:
        """Remove files that no version of the last ``retention_ms`` needs. How many, if it is a dry run.

        Delta rounds to the nearest hour, half an hour to none at all, which would take the files of appends in flight:
        so in whole hours, rounded up. Where no file is that old but those of the newest version, Spark is not asked.
        """
        hours = -(-retention_ms // _HOUR_MS)
        log = self.log()
        if log is not None and not has_old_files(log, time.time_ns() // 1_000_000 - hours * _HOUR_MS):
            return 0 if dry_run else None
        text = f"VACUUM {self.place.sql_name()} RETAIN {hours} HOURS"
        if dry_run:
            return self.session.sql(f"{text} DRY RUN").count()
        self.session.sql(text).collect()
        return None

    def checkpoint(self, log_retention_ms: int | None = None) -> None:
        """Write a checkpoint unless the newest version has one; Delta then removes commits older than
        ``delta.logRetentionDuration``, and those older than ``log_retention_ms`` that no later checkpoint needs."""
        log = self.log()
        files = CommitFiles.at(self.session, self.directory)
        # Delta cannot write one again where it writes in place (S3, GCS): it takes the file that is there for its own
        # and then finds that it has written nothing.
        has_checkpoint = files.checkpoint()[0] == files.latest_version()
        if not has_checkpoint and log is not None:
            has_checkpoint = write_natively(log)
        if has_checkpoint and log is not None and not has_old_commits(log, log_retention_ms):
            return
        clean_log(self.session, self.directory, has_checkpoint=has_checkpoint, retention_ms=log_retention_ms)


def _can_drop(log: TableLog) -> bool:
    """May files be taken out of the table without Spark?"""
    try:
        log.check_can_replace()
    except UnknownTableError:
        return False
    return True


def giving_way(change: Callable[[], object]) -> bool:
    """Again after a conflict, a few times; False if others were always first."""
    for attempt in range(_TRIES):
        try:
            change()
            return True
        except JVM_ERRORS as error:
            if not is_conflict(error):
                raise
            time.sleep(0.2 * attempt)
    return False
