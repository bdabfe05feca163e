"""Delta's own view of a table's log, through the gateway into the JVM: what its Python API does not have, or has only
as a query that takes ten times as long. Paths only.

Functions with a public fallback use it by themselves (``capabilities.use``); ``delta_log`` and ``newest`` are the
private API itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from share_spark.spark import functions as F
from share_spark.spark.capabilities import CHECKPOINTS, DELTA_FILES, DELTA_SNAPSHOT, LOG_CLEANUP, use
from share_spark.spark.jvm_errors import Py4JError

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

NONE = -1
"""Delta's number of a writer that has no entry."""


def delta_table(spark: SparkSession, directory: str) -> DeltaTable:
    """Return Delta's own class for the table in a directory."""
    from delta.tables import DeltaTable

    return DeltaTable.forPath(spark, directory)


def delta_log(spark: SparkSession, directory: str) -> Any:
    """Return the ``org.apache.spark.sql.delta.DeltaLog`` of a directory, for use in this thread. Delta keeps one for
    each directory, so each caller asks for it again.

    Gives the thread a session if it has none, as threads of Python's have none: where Delta reads a checkpoint it needs
    the thread's, and does not use the default one.
    """
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(spark._jsparkSession)
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, directory)


def newest(spark: SparkSession, directory: str) -> Any:
    """Return the newest ``Snapshot``, read from the directory; version -1 if there is no table."""
    jvm: Any = spark._jvm
    nothing = jvm.scala.Option.empty()
    return delta_log(spark, directory).update(False, nothing, nothing)


def table_id(spark: SparkSession, directory: str) -> str:
    """Return Delta's id of the table: one that was removed and made again at the same place has another id."""
    return use(
        DELTA_SNAPSHOT,
        lambda: str(newest(spark, directory).metadata().id()),
        lambda: str(delta_table(spark, directory).detail().select("id").collect()[0][0]),
    )


def properties_of(spark: SparkSession, directory: str) -> dict[str, str]:
    """Return the table's present properties."""
    return use(
        DELTA_SNAPSHOT,
        lambda: _properties(spark, directory),
        lambda: dict(delta_table(spark, directory).detail().select("properties").collect()[0][0]),
    )


def _properties(spark: SparkSession, directory: str) -> dict[str, str]:
    jvm: Any = spark._jvm
    found = newest(spark, directory).metadata().configuration()
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found))


def files_of(spark: SparkSession, directory: str) -> DataFrame:
    """Return the files of the newest version: ``partitionValues`` (map of text) and ``size``, perhaps more columns."""
    from pyspark.sql import DataFrame

    return use(
        DELTA_FILES,
        lambda: DataFrame(newest(spark, directory).allFiles().toDF(), spark),
        lambda: _scanned_files(spark, directory),
    )


def _scanned_files(spark: SparkSession, directory: str) -> DataFrame:
    """Return the files by a scan of the table. Reads no column except the partition columns."""
    columns = delta_table(spark, directory).detail().select("partitionColumns").collect()[0][0]
    pairs = [part for name in columns for part in (F.lit(name), F.col(name).cast("string"))]
    values = F.create_map(*pairs) if pairs else F.create_map().cast("map<string,string>")
    file = F.col("_metadata")
    rows = spark.read.format("delta").load(directory)
    found = rows.select(file["file_path"].alias("path"), file["file_size"].alias("size"), values.alias("values"))
    return found.groupBy("path").agg(F.first("size").alias("size"), F.first("values").alias("partitionValues"))


def clean_log(spark: SparkSession, directory: str, *, has_checkpoint: bool, retention_ms: int | None) -> None:
    """Write a checkpoint unless the newest version has one; Delta then removes commits older than
    ``delta.logRetentionDuration``, and those older than ``retention_ms`` that no later checkpoint needs. Without the
    private API nothing happens: Delta does it, later, with its own checkpoints."""
    use(
        LOG_CLEANUP,
        lambda: clean_log_privately(spark, directory, has_checkpoint=has_checkpoint, retention_ms=retention_ms),
        lambda: None,
    )


def clean_log_privately(spark: SparkSession, directory: str, *, has_checkpoint: bool, retention_ms: int | None) -> None:
    """Clean the log as ``clean_log``, by Delta's own classes."""
    jvm: Any = spark._jvm
    log, snapshot = delta_log(spark, directory), newest(spark, directory)
    catalog_table = _no_catalog_table(log, jvm.scala.Option.empty())
    if has_checkpoint:
        log.doLogCleanup(snapshot, *catalog_table)
    else:
        log.checkpointAndCleanUpDeltaLog(snapshot, jvm.scala.Option.empty())
    if retention_ms is not None:
        boxed = jvm.java.util.stream.LongStream.of(retention_ms).boxed().findFirst()
        retention = jvm.scala.jdk.javaapi.OptionConverters.toScala(boxed)
        minute = jvm.org.apache.spark.sql.delta.TruncationGranularity.MINUTE()
        log.cleanUpExpiredLogs(snapshot, *catalog_table, retention, minute)


def _no_catalog_table(log: Any, nothing: Any) -> tuple[Any, ...]:
    """Return further arguments after the snapshot: Delta 4.0 takes none; later releases take one."""
    try:
        getattr(log, "cleanUpExpiredLogs$default$4")()
    except Py4JError:
        return ()
    return (nothing,)


def write_checkpoint(spark: SparkSession, directory: str) -> None:
    """Write a checkpoint of the newest version; Delta then removes commits that are older than the table's retention.
    Without the private API nothing happens: the next commit by Spark that is due for one makes it."""
    use(
        CHECKPOINTS,
        lambda: delta_log(spark, directory).checkpoint(newest(spark, directory), spark._jvm.scala.Option.empty()),  # type: ignore[union-attr]
        lambda: None,
    )


# ------------------------------------------------------------------------------------ application transactions


def transaction_number(spark: SparkSession, directory: str, app_id: str) -> int:
    """Return a writer's number in the newest version, NONE if it has none. Runs a job unless this version is cached."""
    found = newest(spark, directory).transactions().get(app_id)
    return int(found.get()) if found.isDefined() else NONE
