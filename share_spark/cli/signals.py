"""SIGINT and SIGTERM end a job between micro-batches, whichever process gets them.

    with StopSignals() as signals:
        spark = build_session(...)
        signals.adopt(spark)
        ...
        while not query.awaitTermination(0.5):
            if signals.requested:
                query.stop()

A job is two processes, Python and the JVM, and either may get the signal: Ctrl-C and some schedulers reach both, `kill`
one of them, and beneath `spark-submit` the JVM is the parent, the one that Kubernetes and YARN know. A JVM that gets a
signal shuts Spark down in the middle of a micro-batch. So the JVM's handlers are replaced by one that only notifies
Python. A signal that both processes got is one request: they are counted per way they came.

The first request is only noted; the second, by the same way, ends the process at once with exit code 130.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from share_spark.spark.jvm_signals import JvmSignals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_AT_ONCE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """The requests to stop, noted from its start on; ``adopt`` adds the JVM's. Restores all handlers at its end."""

    def __init__(self) -> None:
        self._counts = {"python": 0, "jvm": 0}
        self._name: str | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._java_signals = JvmSignals(lambda number: self._note("jvm", number))

    @property
    def requested(self) -> str | None:
        """The name of the signal that asked to stop, None if none has."""
        return self._name

    def __enter__(self) -> StopSignals:
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._java_signals.release()

    def adopt(self, spark: SparkSession) -> None:
        """Listen to the session's JVM as well.

        Call it right after the session is built: its context has replaced our handler by its own, which
        cancels every job.
        """
        self._listen()
        self._java_signals.take(spark, ("INT", "TERM"))

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.signal(number, self._on_python)
            self._before.setdefault(number, before)

    def _on_python(self, number: int, _frame: FrameType | None) -> None:
        self._note("python", number)

    def _note(self, way: str, number: int) -> None:
        """Count a request. Runs in a signal handler, so it only sets two values, or ends the process."""
        self._counts[way] += 1
        self._name = signal.Signals(number).name
        if self._counts[way] > 1:
            _leave()


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets, in a process without a JVM. Restores the handlers."""
    over = threading.Event()
    before = {number: signal.signal(number, lambda *_: over.set()) for number in _SIGNALS}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave() -> None:
    sys.stderr.flush()
    os._exit(EXIT_AT_ONCE)
