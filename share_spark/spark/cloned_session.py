"""A session beside the user's: the same catalog, credentials and settings but for those of one kind of work, so that no
setting of the user's is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from share_spark.spark.capabilities import CLONED_SESSION, use


def cloned_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """``spark`` as it is now, with ``settings``. Takes some 0.02 s."""
    session = use(CLONED_SESSION, lambda: clone(spark), lambda: _copied(spark))
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def clone(spark: SparkSession) -> SparkSession:
    """By Spark's own means."""
    jvm_session: Any = spark._jsparkSession
    return SparkSession(spark.sparkContext, jvm_session.cloneSession())


def _copied(spark: SparkSession) -> SparkSession:
    """A new session with the user's settings. Those that cannot be changed are the same in all sessions."""
    session = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if session.conf.get(key, None) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)
    session.catalog.setCurrentCatalog(spark.catalog.currentCatalog())
    session.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
    return session
