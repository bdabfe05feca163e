"""Spark's notes on its threads that Python has no other access to.

The thread of a micro-batch has the id of its streaming query as a local property. The thread of a task is named after
it: ``task 1.0 in stage 3.1 (TID 45)`` runs in attempt 1 of stage 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from share_spark.spark.capabilities import QUERY_ID, TASK_THREAD, give_up, is_allowed, warn_once
from share_spark.spark.jvm_errors import AnalysisException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROPERTY = "sql.streaming.queryId"
"""The name of the property: Spark's own, and not part of its API."""


def running_query_id(spark: SparkSession) -> str | None:
    """Return Spark's id of the query whose micro-batch this thread runs; None if it is not known."""
    if not is_allowed(QUERY_ID):
        warn_once(QUERY_ID)
        return None
    found: str | None = spark.sparkContext.getLocalProperty(_PROPERTY)
    return found


TASK_COLUMN = "__task"
"""The column whose first value in each task is the JVM's thread, which is named after the task."""

_FIRST_OF_TASK = "(monotonically_increasing_id() & 8589934591L) = 0"
_THREAD = f"CASE WHEN {_FIRST_OF_TASK} THEN reflect('java.lang.Thread', 'currentThread') END"
_NO_THREAD = "CAST(NULL AS string)"
_STAGE = re.compile(r"in stage \d+\.(\d+)\b")


def with_task_thread(rows: DataFrame, columns: Sequence[str], name: str) -> DataFrame:
    """Return the columns (SQL) and ``name``, the thread's name on the first row of each task, in one step, as each
    costs some milliseconds of a micro-batch. The column is null where Spark does not give the name: some shared
    clusters forbid ``reflect``."""
    if is_allowed(TASK_THREAD):
        try:
            return named_thread(rows, columns, name)
        except AnalysisException as fault:
            frame = rows.selectExpr(*columns, f"{_NO_THREAD} AS {name}")
            give_up(TASK_THREAD, str(fault).splitlines()[0])
            return frame
    warn_once(TASK_THREAD)
    return rows.selectExpr(*columns, f"{_NO_THREAD} AS {name}")


def named_thread(rows: DataFrame, columns: Sequence[str], name: str) -> DataFrame:
    """Return the rows with the thread's name. Raises AnalysisException where ``reflect`` is forbidden."""
    return rows.selectExpr(*columns, f"{_THREAD} AS {name}")


def stage_attempt(task_thread: str | None) -> int | None:
    """Return the attempt in a thread's name; None if it is not there."""
    found = _STAGE.search(task_thread or "")
    return int(found[1]) if found else None


def give_up_task_thread(task_thread: str) -> None:
    """Give up the thread's name, on the driver: a worker got one of no known form."""
    give_up(TASK_THREAD, f"Spark calls the thread of a task {task_thread!r}")
