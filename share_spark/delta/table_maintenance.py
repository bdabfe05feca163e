"""One Delta table kept small: OPTIMIZE, VACUUM, checkpoint and log clean-up, and what it measures.

Works in a session of its own, cloned from the one that is passed in, so that no setting of the user's is changed.
Nothing here may stop a writer: OPTIMIZE and deletions give way to the first committer, blind appends conflict with
none of them, and VACUUM only removes what is older than any append in flight.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from delta.exceptions import DeltaConcurrentModificationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.location import Location
from share_spark.spark.delta_log import clean_log, files_of
from share_spark.spark.errors import JVM_ERRORS
from share_spark.spark.frames import cloned_session
from share_spark.spark.hadoop_files import files_at

if TYPE_CHECKING:
    from pyspark.sql import Column

_CONFLICT = re.compile(r"io\.delta\.exceptions\.\w*(?:Concurrent|MetadataChanged)\w*Exception")
_TRIES = 5
_HOUR_MS = 3_600_000
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
    "spark.databricks.delta.optimize.minFileSize": str(32 * 1024 * 1024),
    "spark.databricks.delta.optimize.maxThreads": "1",
}


class TableSize(NamedTuple):
    """``files`` and ``bytes``: all on storage, the log and files of older versions included; ``rows``: now."""

    files: int
    bytes: int
    rows: int


class FilesOf(NamedTuple):
    """Files of the newest version that a predicate chooses."""

    files: int
    bytes: int


def maintenance_session(spark: SparkSession) -> SparkSession:
    """A session of its own, with the settings of this work."""
    return cloned_session(spark, _SETTINGS)


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table to be kept small. ``session``: see ``maintenance_session``."""

    session: SparkSession
    place: Location

    def size(self) -> TableSize:
        """A recursive listing, and a count that Delta answers from its statistics."""
        directory = self.place.directory(self.session)
        found = files_at(self.session, directory).total_size(directory)
        return TableSize(found.files, found.bytes, self.place.load(self.session).count())

    def files_where(self, where: Column) -> FilesOf:
        """Of the newest version; columns ``partitionValues`` (map of text) and ``size``."""
        (row,) = self._files().where(where).agg(F.count("*"), F.coalesce(F.sum("size"), F.lit(0))).collect()
        return FilesOf(row[0], row[1])

    def crowded(self) -> DataFrame:
        """(``partitionValues``, ``files``) of each partition with more than one small file: what OPTIMIZE joins."""
        small = self._files().where(F.col("size") < int(_SETTINGS["spark.databricks.delta.optimize.minFileSize"]))
        named = small.select(F.to_json("partitionValues").alias("text"), "partitionValues")
        grouped = named.groupBy("text").agg(
            F.first("partitionValues").alias("partitionValues"), F.count("*").alias("files")
        )
        return grouped.where("files > 1").drop("text")

    def optimize(self, where: str | None = None) -> bool:
        """Join small files of the partitions that ``where`` chooses; False: gave way to other writers."""
        builder = self.place.delta_table(self.session).optimize()
        chosen = builder if where is None else builder.where(where)
        return giving_way(lambda: chosen.executeCompaction().collect())

    def delete(self, where: Column) -> bool:
        """Delete rows; False: gave way to other writers."""
        return giving_way(lambda: self.place.delta_table(self.session).delete(where))

    def vacuum(self, retention_ms: int, *, dry_run: bool = False) -> int | None:
        """Remove files that no version of the last ``retention_ms`` needs. How many, if it is a dry run.

        Delta rounds to the nearest hour, half an hour to none at all, which would take the files of appends in flight:
        so in whole hours, rounded up.
        """
        text = f"VACUUM {self.place.sql_name()} RETAIN {-(-retention_ms // _HOUR_MS)} HOURS"
        if dry_run:
            return self.session.sql(f"{text} DRY RUN").count()
        self.session.sql(text).collect()
        return None

    def checkpoint(self, log_retention_ms: int | None = None) -> None:
        """Write a checkpoint; Delta then removes commits older than ``delta.logRetentionDuration``, and those older
        than ``log_retention_ms`` that no later checkpoint needs."""
        directory = self.place.directory(self.session)
        files = CommitFiles.at(self.session, directory)
        # Delta cannot write one again where it writes in place (S3, GCS): it takes the file that is there for its own
        # and then finds that it has written nothing.
        has_checkpoint = files.checkpoint()[0] == files.latest_version()
        clean_log(self.session, directory, has_checkpoint=has_checkpoint, retention_ms=log_retention_ms)

    def _files(self) -> DataFrame:
        return files_of(self.session, self.place.directory(self.session))


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


def is_conflict(error: Exception) -> bool:
    """Did another writer commit first? (Delta's Python class is not always raised.)"""
    return isinstance(error, DeltaConcurrentModificationException) or bool(_CONFLICT.search(str(error)))
