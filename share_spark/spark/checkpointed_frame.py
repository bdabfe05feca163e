"""Frames that are checkpointed locally: their rows are blocks of the executors, and nothing else has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from share_spark.spark.capabilities import FRAME_OF_SESSION, FREED_FRAMES, is_allowed, use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def unpersist(frame: DataFrame) -> None:
    """Free the blocks of a locally checkpointed frame now; the garbage collector would, much later."""
    use(FREED_FRAMES, lambda: checkpointed_rdd(frame).unpersist(False), lambda: None)


def checkpoint_without_check(frame: DataFrame) -> DataFrame:
    """A lazy local checkpoint whose blocks are kept by the first job that computes it. Spark would look for missing
    blocks as soon as that job has ended, and compute them again: it is kept from that."""
    checkpointed = frame.localCheckpoint(eager=False)
    jvm: Any = frame.sparkSession._jvm
    getattr(checkpointed_rdd(checkpointed), "checkpointData_$eq")(jvm.scala.Option.empty())
    return checkpointed


def has_own_session() -> bool:
    """Is ``in_session`` to be had?"""
    return is_allowed(FRAME_OF_SESSION)


def in_session(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """The frame as one of ``spark``: what is computed from it is computed under the settings of that session. As it is
    if it is one already."""
    return (
        frame
        if frame.sparkSession is spark
        else use(FRAME_OF_SESSION, lambda: move_to_session(frame, spark), lambda: frame)
    )


def move_to_session(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """By Spark's own means."""
    jvm: Any = spark._jvm
    plan = frame._jdf.queryExecution().logical()
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def checkpointed_rdd(frame: DataFrame) -> Any:
    """The JVM's RDD that holds the blocks."""
    plan: Any = frame._jdf.queryExecution().logical()
    return plan.rdd()
