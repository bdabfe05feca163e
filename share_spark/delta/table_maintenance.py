"""Maintenance of one Delta table: OPTIMIZE, VACUUM, checkpoint and log clean-up, and its size.

The files of the table's log are read without Spark (``TableLog``), and a table on this machine is changed without it
(``native_changes``); where that is impossible, Spark does it. Spark only gets work that exists: a VACUUM that would
find nothing is left out.

It works in a session of its own, cloned from the given one, so that no setting of the user's is changed. Nothing here
may stop a writer: OPTIMIZE and deletions yield to the first committer, blind appends conflict with none of them, and
VACUUM only removes what is older than any append in flight.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends, MovedError
from share_spark.delta.location import Location, sql_literal
from share_spark.delta.native_changes import (
    ConflictError,
    PartitionFilter,
    RowFilter,
    delete_rows,
    join_files,
    write_natively,
)
from share_spark.delta.noted_rows import FILED, file_noted_rows, table_of
from share_spark.delta.old_files import has_old_commits, has_old_files
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.spark import functions as F
from share_spark.spark.delta_log import clean_log, files_of
from share_spark.spark.errors import JVM_ERRORS
from share_spark.spark.frames import cloned_session
from share_spark.spark.hadoop_files import files_at
from share_spark.spark.on_demand import AnySpark, SparkOnDemand, given_session, session_of
from share_spark.spark.schemas import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _conflict_classes() -> tuple[type[Exception], ...]:
    """Return the classes of conflicts, of which none is derived from another one; none where Delta is not installed."""
    if find_spec("delta") is None:
        return ()
    from delta import exceptions

    return (
        exceptions.DeltaConcurrentModificationException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentTransactionException,
    )


_CONFLICTS = _conflict_classes()
_CONFLICT = re.compile(r"io\.delta\.exceptions\.\w*(?:Concurrent|MetadataChanged)\w*Exception")
"""A conflict's class in a text: Delta 4.0 raises Java's until its Python classes are loaded."""


def is_conflict(error: Exception) -> bool:
    """Return whether the same change would succeed if it were made again."""
    return isinstance(error, _CONFLICTS) or bool(_CONFLICT.search(str(error)))


_log = logging.getLogger(__name__)

_TRIES = 5
_HOUR_MS = 3_600_000
_SMALL_BYTES = 32 * 1024 * 1024
_LARGE_BYTES = 64 * 1024 * 1024
"""One rewritten file is read by one task: small enough that several tasks still read a topic."""
_SETTINGS = {
    # A listing of 10,000 tasks, Spark's default, keeps the micro-batches beside it waiting for half a minute.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
    # Every engine would read the two commits of each VACUUM.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # We have checked the retention: it is longer than the longest micro-batch.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.optimize.maxFileSize": str(_LARGE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(_SMALL_BYTES),
    "spark.databricks.delta.optimize.maxThreads": "1",
}

_CHANGE_ERRORS: tuple[type[Exception], ...] = (ConflictError, *JVM_ERRORS)

Chosen = Callable[[Mapping[str, str]], bool]
"""A function: is a partition with these values chosen?"""


class TableSize(NamedTuple):
    """The size of a table. ``files``, ``bytes``: on storage, with the log and older versions; ``rows``: the present
    ones."""

    files: int
    bytes: int
    rows: int


class PartitionFiles(NamedTuple):
    """The files of one partition, by its ``values``, in the newest version. ``small``: those for OPTIMIZE."""

    values: Mapping[str, str]
    files: int
    small: int


def maintenance_session(spark: AnySpark) -> AnySpark:
    """Return a session of its own, with the settings of this work; made when it is needed, if there is none yet."""
    session = given_session(spark)
    if session is not None:
        return cloned_session(session, _SETTINGS)
    return SparkOnDemand(lambda why: cloned_session(session_of(spark, why), _SETTINGS))


@dataclass(slots=True)
class KeptTable:
    """A table to be maintained. ``session``: see ``maintenance_session``. For one thread at a time."""

    session: AnySpark
    place: Location
    _directory: str | None = None
    _log: TableLog | None = None

    def spark_for(self, what: str) -> SparkSession:
        """Return a session for work that only Spark does with the table."""
        return session_of(self.session, f"{self.place}: {what}")

    @property
    def directory(self) -> str:
        """The table's directory, asked once: a name asks the catalog."""
        if self._directory is None:
            self._directory = self.place.directory(self.session)
        return self._directory

    def log(self) -> TableLog | None:
        """Return the newest version, with its files; None where only Spark can read it."""
        try:
            if self._log is None:
                self._log = TableLog.open(CommitFiles.at(self.session, self.directory), keeps_files=True)
            else:
                self._log.refresh()
        except UnknownTableError:
            self._log = None
        return self._log

    def file_noted_rows(self) -> None:
        """Write the rows in the notes of commits into files, so that Spark sees them. Raises what Delta and the storage
        raise; ConfigError: only Spark can, and there is none."""
        log = self.log() or self.place.log(self.session)
        if log is None or not log.noted:
            return
        try:
            log.check_can_append()
            with suppress(MovedError):  # another program has just done it
                file_noted_rows(DirectAppends(directory=self.directory, log=log))
        except NotImplementedError as reason:
            _log.debug("%s is appended to by Spark: %s", self.place, reason)
            session = self.spark_for("rows in the notes of commits are written into files")
            rows = session.createDataFrame(table_of(log.counting_notes(), log.schema), spark_schema(log.schema))
            self.place.append(rows, {"txnAppId": FILED, "txnVersion": str(log.version)})

    def size(self) -> TableSize:
        """Return the size by a recursive listing, and the rows by Delta's statistics."""
        found = files_at(self.session, self.directory).total_size(self.directory)
        log = self.log()
        rows = None if log is None else log.rows
        if rows is None:
            rows = self.place.load(self.spark_for("rows are counted")).count()
        return TableSize(found.files, found.bytes, rows)

    def partitions(self) -> Sequence[PartitionFiles]:
        """Return all partitions with files in the newest version; one without values for an unpartitioned table."""
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
        files = files_of(self.spark_for("files are counted"), self.directory).withColumn(
            "text", F.to_json("partitionValues")
        )
        grouped = files.groupBy("text").agg(
            F.first("partitionValues"), F.count("*"), F.count_if(F.col("size") < _SMALL_BYTES)
        )
        return [PartitionFiles(*row[1:]) for row in grouped.collect()]

    def optimize(self, chosen: PartitionFilter | None = None) -> bool:
        """Join small files of the partitions ``chosen``, or of all. Returns False if other writers came first."""
        wanted = chosen or {}
        where = " AND ".join(
            f"{name} IN ({', '.join(sql_literal(value) for value in values)})" for name, values in wanted.items()
        )

        def by_spark() -> None:
            builder = self.place.delta_table(self.spark_for("files are joined (OPTIMIZE)")).optimize()
            (builder.where(where) if where else builder).executeCompaction().collect()

        return self._changed(lambda log: join_files(log, wanted, _LARGE_BYTES), by_spark)

    def delete(self, where: RowFilter) -> bool:
        """Delete rows. Returns False if other writers came first."""
        return self._changed(lambda log: delete_rows(log, where), lambda: self._delete_by_spark(where.spark))

    def _delete_by_spark(self, where: str) -> None:
        self.place.delta_table(self.spark_for("rows are deleted")).delete(where)

    def _changed(self, change: Callable[[TableLog], None], by_spark: Callable[[], None]) -> bool:
        log = self.log()
        try:
            if log is not None:
                return giving_way(lambda: change(log))
        except UnknownTableError as reason:
            _log.debug("%s is changed by Spark: %s", self.place, reason)
        return giving_way(by_spark)

    def prepare_to_drop(self) -> None:
        """Ask for a session now, if ``drop_partitions`` would."""
        log = self.log()
        try:
            if log is not None:
                log.check_can_replace()
                return
        except UnknownTableError as reason:
            _log.debug("%s is changed by Spark: %s", self.place, reason)
        self.spark_for("rows are deleted")

    def drop_partitions(self, chosen: Chosen, where: str) -> bool:
        """Delete all rows of the partitions for which ``chosen`` is true; ``where`` is the same for Spark. The files
        are named in one commit, of the version that it follows; no commit if there are none. Returns False if other
        writers came first."""
        log = self.log()
        try:
            if log is not None:
                return self._dropped(log, chosen)
        except NotImplementedError as reason:
            _log.debug("%s is changed by Spark: %s", self.place, reason)
        return giving_way(lambda: self._delete_by_spark(where))

    def _dropped(self, log: TableLog, chosen: Chosen) -> bool:
        log.check_can_replace()
        if any(chosen(file.values) for file in log.active.values()):
            appends = DirectAppends(directory=self.directory, log=log)
            appends.commit([], replaced=lambda _, values: chosen(values), operation="DELETE", blind=False)
        return True

    def vacuum(self, retention_ms: int, *, dry_run: bool = False) -> int | None:
        """Remove files that no version of the last ``retention_ms`` needs. Returns their number for a dry run.

        Delta rounds to the nearest hour, half an hour to none at all, which would remove files of appends in flight: so
        the hours are rounded up. If only files of the newest version are that old, Spark is not asked.
        """
        hours = -(-retention_ms // _HOUR_MS)
        log = self.log()
        if log is not None and not has_old_files(log, time.time_ns() // 1_000_000 - hours * _HOUR_MS):
            return 0 if dry_run else None
        text = f"VACUUM {self.place.sql_name()} RETAIN {hours} HOURS"
        session = self.spark_for("old files are looked for (VACUUM)")
        if dry_run:
            return session.sql(f"{text} DRY RUN").count()
        session.sql(text).collect()
        return None

    def checkpoint(self, log_retention_ms: int | None = None) -> None:
        """Write a checkpoint unless the newest version has one; Delta then removes commits older than
        ``delta.logRetentionDuration``, and those older than ``log_retention_ms`` that no later checkpoint needs."""
        log = self.log()
        files = CommitFiles.at(self.session, self.directory)
        # Where Delta writes in place (S3, GCS) it cannot write one again: it takes the existing file for its own, and
        # then finds that it has written nothing.
        has_checkpoint = files.checkpoint()[0] == files.latest_version()
        if not has_checkpoint and log is not None:
            has_checkpoint = write_natively(log)
        if has_checkpoint and log is not None and not has_old_commits(log, log_retention_ms):
            return
        session = self.spark_for("old commits are removed")
        clean_log(session, self.directory, has_checkpoint=has_checkpoint, retention_ms=log_retention_ms)


def giving_way(change: Callable[[], object]) -> bool:
    """Try ``change`` again after a conflict, a few times; return False if others were always first."""
    for attempt in range(_TRIES):
        try:
            change()
            return True
        except _CHANGE_ERRORS as error:
            if not isinstance(error, ConflictError) and not is_conflict(error):
                raise
            time.sleep(0.2 * attempt)
    return False
