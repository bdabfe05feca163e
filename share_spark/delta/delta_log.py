"""Delta's own view of a table's log, through the gateway into the JVM: what its Python API does not have, or only as a
query that takes ten times as long. Paths only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_log(spark: SparkSession, directory: str) -> Any:
    """The ``org.apache.spark.sql.delta.DeltaLog`` of a directory; Delta keeps one for each."""
    jvm: Any = spark._jvm
    at_home(spark)
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, directory)


def newest(spark: SparkSession, log: Any) -> Any:
    """Its newest ``Snapshot``, after a look at the directory; version -1 if there is no table."""
    jvm: Any = spark._jvm
    at_home(spark)
    nothing = jvm.scala.Option.empty()
    return log.update(False, nothing, nothing)


def table_id(spark: SparkSession, directory: str) -> str:
    """What Delta calls the table: one that was removed and made anew at the same place has another id."""
    return str(newest(spark, delta_log(spark, directory)).metadata().id())


def at_home(spark: SparkSession) -> None:
    """Give this thread a session if it has none, as threads of Python's have: where Delta reads a checkpoint it asks
    for the thread's, and is not content with the default one."""
    sessions: Any = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(spark._jsparkSession)


def properties_of(spark: SparkSession, directory: str) -> dict[str, str]:
    """The table's properties, now."""
    jvm: Any = spark._jvm
    found = newest(spark, delta_log(spark, directory)).metadata().configuration()
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found))
