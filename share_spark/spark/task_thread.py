"""The attempt of the stage that a task runs in, which Python is not given: Spark names the thread of a task after it,
``task 1.0 in stage 3.1 (TID 45)``: attempt 1 of stage 3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from share_spark.spark.capabilities import TASK_THREAD, give_up, is_allowed, warn_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FIRST_OF_TASK = "(monotonically_increasing_id() & 8589934591L) = 0"
_THREAD = f"CASE WHEN {_FIRST_OF_TASK} THEN reflect('java.lang.Thread', 'currentThread') END"
_NO_THREAD = "CAST(NULL AS string)"
_STAGE = re.compile(r"in stage \d+\.(\d+)\b")


def with_task_thread(rows: DataFrame, columns: Sequence[str], name: str) -> DataFrame:
    """The columns (SQL) and ``name``, the thread's name on the first row of each task, in one step, as each costs some
    milliseconds of a micro-batch. The column is null where Spark does not give the name: some shared clusters forbid
    ``reflect``."""
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
    """With the thread's name. Raises AnalysisException where ``reflect`` is forbidden."""
    return rows.selectExpr(*columns, f"{_THREAD} AS {name}")


def stage_attempt(task_thread: str | None) -> int | None:
    """The attempt in a thread's name; None if it is not there."""
    found = _STAGE.search(task_thread or "")
    return int(found[1]) if found else None


def give_up_task_thread(task_thread: str) -> None:
    """A worker was given a name of no known form. On the driver."""
    give_up(TASK_THREAD, f"Spark calls the thread of a task {task_thread!r}")
