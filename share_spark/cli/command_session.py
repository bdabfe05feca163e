"""The Spark session of one command. PySpark is imported only then: bad input is reported without waiting for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def command_session(name: str) -> Iterator[SparkSession]:
    """A session for one command, ended with it; one that was there before stays."""
    from pyspark.sql import SparkSession

    from share_spark.spark.session import build_session

    is_shared = SparkSession.getActiveSession() is not None
    spark = build_session(name)
    try:
        yield spark
    finally:
        if not is_shared:
            spark.stop()
