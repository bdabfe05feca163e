"""The errors of Spark, Delta and the JVM, and the text of a failure in one line, for messages to users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from share_spark.spark.capabilities import (
    ERROR_CAUSES,
    LOST_WORKER_TEXT,
    is_allowed,
    own_line,
)
from share_spark.spark.jvm_errors import Py4JError, PySparkException

JVM_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError, OSError)
"""The errors of work on a table or on a file: Spark's, py4j's for what Spark has no class for, and the storage's."""

LOST_WORKER = ("Python worker exited unexpectedly", "ExecutorLostFailure")
"""Spark's texts when a job has failed because a worker or an executor died."""


UNREACHABLE = (
    "java.util.concurrent.TimeoutException: Cannot fetch record",
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "share_spark.model.errors.TopicUnreachableError: ",
)
"""Spark's texts when a job has failed because brokers gave no answer: to its source, its sink, or a worker."""


_CHECKPOINT_SHARED = ("Multiple streaming queries are concurrently using", "CONCURRENT_STREAM_LOG_UPDATE")
"""Spark's texts when another query has written to the checkpoint of this one."""


def is_checkpoint_shared(error: BaseException) -> bool:
    """Return whether a query has ended because another one wrote to its checkpoint."""
    return any(sign in str(error) for sign in _CHECKPOINT_SHARED)


def is_lost_worker(error: BaseException) -> bool:
    """Return whether the error means that a job has failed because a worker or an executor died."""
    return tells_lost_workers() and any(sign in str(error) for sign in LOST_WORKER)


def is_unreachable(error: BaseException) -> bool:
    """Return whether a Kafka client without an answer in time is the cause. Then trying again may help."""
    return any(sign in str(one) for one in _causes(error) for sign in UNREACHABLE)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def tells_lost_workers() -> bool:
    """Return whether Spark's texts are reliable. If not, any failure may be a lost worker's."""
    return is_allowed(LOST_WORKER_TEXT)


def first_line(error: BaseException) -> str:
    """Return the message without the stack, and without py4j's own line before it; with its first cause, if that is
    another ("Task failed while writing rows" was caused by "No space left on device")."""
    said = own_line(error)
    began = root_cause(error) if is_allowed(ERROR_CAUSES) else ""
    return said if not began or began in said else f"{said} ({began})"


def root_cause(error: BaseException) -> str:
    """Return the innermost Java exception of a chain, in one line; empty for a chain of one."""
    at: Any = getattr(error, "java_exception", None)
    if at is None or at.getCause() is None:
        return ""
    while at.getCause() is not None:
        at = at.getCause()
    lines = [line for line in str(at.getMessage() or "").splitlines() if line.strip()]
    return lines[0].strip() if lines else ""
