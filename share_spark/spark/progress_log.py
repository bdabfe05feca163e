"""Log lines during long work: how many of Spark's tasks are done, every few seconds; none if it is quick.

Written to the logger ``share_spark.progress`` at INFO, which the command line shows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_LOGGER = "share_spark.progress"
_log = logging.getLogger(PROGRESS_LOGGER)

EVERY_S = 3.0


@contextmanager
def log_progress(spark: SparkSession | None, what: str) -> Iterator[None]:
    """Log, while the body runs, how far the running stages are, every ``EVERY_S`` seconds."""
    over, since = threading.Event(), time.monotonic()

    def log_tasks() -> None:
        while not over.wait(EVERY_S):
            _log.info("%s: %s after %.0f s", what, _tasks(spark), time.monotonic() - since)

    logger_thread = threading.Thread(target=log_tasks, name="share-spark-long-work", daemon=True)
    logger_thread.start()
    try:
        yield
    finally:
        over.set()
        logger_thread.join()
    took = time.monotonic() - since
    if took >= EVERY_S:
        _log.info("%s: done in %.1f s", what, took)


def _tasks(spark: SparkSession | None) -> str:
    if spark is None:
        return "still at it"
    tracker = spark.sparkContext.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    done, total = sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
    return f"{done} of {total} tasks" if total else "between stages"
