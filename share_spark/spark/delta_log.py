"""Delta's own view of a table's log, through the gateway into the JVM: what its Python API does not have, or only as a
query that takes ten times as long. Paths only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_log(spark: SparkSession, directory: str) -> Any:
    """The ``org.apache.spark.sql.delta.DeltaLog`` of a directory, for use in this thread. Delta keeps one for each
    directory, so each caller asks for it again.

    Gives the thread a session if it has none, as threads of Python's have: where Delta reads a checkpoint it asks for
    the thread's, and is not content with the default one.
    """
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(spark._jsparkSession)
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, directory)


def newest(spark: SparkSession, directory: str) -> Any:
    """The newest ``Snapshot``, after a look at the directory; version -1 if there is no table."""
    jvm: Any = spark._jvm
    nothing = jvm.scala.Option.empty()
    return delta_log(spark, directory).update(False, nothing, nothing)


def table_id(spark: SparkSession, directory: str) -> str:
    """What Delta calls the table: one that was removed and created again at the same place has another id."""
    return str(newest(spark, directory).metadata().id())


def properties_of(spark: SparkSession, directory: str) -> dict[str, str]:
    """The table's properties, now."""
    jvm: Any = spark._jvm
    found = newest(spark, directory).metadata().configuration()
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found))
