"""What Spark, Delta and the JVM raise, and what a failure says in one line, for errors that people read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from share_spark.spark.capabilities import (
    ERROR_CAUSES,
    LOST_WORKER_TEXT,
    is_allowed,
    own_line,
)

JVM_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError, OSError)
"""What work on a table or on a file may raise: Spark, py4j for what Spark has no class for, and the storage."""

LOST_WORKER = ("Python worker exited unexpectedly", "ExecutorLostFailure")
"""What Spark says when a job has failed because a worker or an executor died."""


UNREACHABLE = (
    "java.util.concurrent.TimeoutException: Cannot fetch record",
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "share_spark.model.errors.TopicUnreachableError: ",
)
"""What Spark says when a job has failed because brokers gave no answer: to its source, its sink, or to a worker."""


def is_lost_worker(error: BaseException) -> bool:
    """Does it say that a job has failed because a worker or an executor died?"""
    return tells_lost_workers() and any(sign in str(error) for sign in LOST_WORKER)


def is_unreachable(error: BaseException) -> bool:
    """Did it begin with a Kafka client that got no answer in time? Then to try again may help."""
    return any(sign in str(one) for one in _causes(error) for sign in UNREACHABLE)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def tells_lost_workers() -> bool:
    """Are Spark's texts to be relied on? If not, any failure may be a lost worker's."""
    return is_allowed(LOST_WORKER_TEXT)


def first_line(error: BaseException) -> str:
    """The message without the stack, and without py4j's own line before it; with what it all began with, where that is
    something else ("Task failed while writing rows" began with "No space left on device")."""
    said = own_line(error)
    began = root_cause(error) if is_allowed(ERROR_CAUSES) else ""
    return said if not began or began in said else f"{said} ({began})"


def root_cause(error: BaseException) -> str:
    """The innermost Java exception of a chain, in one line; empty for a chain of one."""
    at: Any = getattr(error, "java_exception", None)
    if at is None or at.getCause() is None:
        return ""
    while at.getCause() is not None:
        at = at.getCause()
    lines = [line for line in str(at.getMessage() or "").splitlines() if line.strip()]
    return lines[0].strip() if lines else ""
