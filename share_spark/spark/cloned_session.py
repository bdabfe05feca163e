"""A session beside the user's: the same catalog, credentials and settings but for those of one kind of work, so that no
setting of the user's is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession


def cloned_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """``spark`` as it is now, with ``settings``. Takes some 0.02 s."""
    jvm_session: Any = spark._jsparkSession
    session = SparkSession(spark.sparkContext, jvm_session.cloneSession())
    for key, value in settings.items():
        session.conf.set(key, value)
    return session
