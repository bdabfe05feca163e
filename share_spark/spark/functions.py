"""Spark's functions of columns (``pyspark.sql.functions``), imported when one is first used: what starts no JVM works
without PySpark, and starts sooner with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403


def __getattr__(name: str) -> Any:
    from pyspark.sql import functions

    return getattr(functions, name)
