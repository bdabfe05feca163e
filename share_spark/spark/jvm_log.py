"""The JVM's log beside the messages of this project."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

QUERY_LOGGER = "org.apache.spark.sql.execution.streaming.MicroBatchExecution"
"""The logger of the reason why a query has ended, with two stack traces: Spark's own and py4j's."""


def mute_query_faults(spark: SparkSession) -> None:
    """Turn off the logger, for a caller that reports faults in one line. Our own sessions do so
    (``log4j2.properties``); beneath spark-submit others started the JVM. If its log is not Log4j's, nothing happens."""
    try:
        log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setLevel(QUERY_LOGGER, log4j.Level.OFF)
    except Exception as fault:  # noqa: BLE001 - whatever py4j makes of a class that is not there
        _log.debug("the JVM's log goes on as it was: %s", fault)
