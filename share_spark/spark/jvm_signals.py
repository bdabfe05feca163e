"""Signals to the JVM, handled in Python: without that, a signal makes the JVM shut Spark down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from share_spark.spark.capabilities import JVM_SIGNALS, use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JvmSignals:
    """A listener that calls ``handle`` with the number of each signal to the JVM, from ``take`` to ``release``."""

    def __init__(self, handle: Callable[[int], None]) -> None:
        self._handle = handle
        self._jvm: Any = None
        self._before: list[tuple[Any, Any]] = []

    def take(self, spark: SparkSession, names: Sequence[str]) -> None:
        """Take over signals by name (``INT``); once. Without the private API the JVM keeps its own handlers."""
        if not self._before:
            use(JVM_SIGNALS, lambda: self.take_privately(spark, names), lambda: None)

    def release(self) -> None:
        """Restore the JVM's own handlers."""
        try:
            for number, handler in self._before:
                self._jvm.sun.misc.Signal.handle(number, handler)
        except Exception:  # noqa: BLE001 - the JVM has gone, with its handlers
            pass
        self._before.clear()

    def take_privately(self, spark: SparkSession, names: Sequence[str]) -> None:
        """Take over signals as ``take``, by the JVM's classes."""
        from pyspark.java_gateway import ensure_callback_server_started

        gateway: Any = spark.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        self._jvm = gateway.jvm
        handler = _SignalHandler(self._handle)
        for name in names:
            number = self._jvm.sun.misc.Signal(name)
            self._before.append((number, self._jvm.sun.misc.Signal.handle(number, handler)))


class _SignalHandler:
    """A ``sun.misc.SignalHandler`` in Python; called on a thread of py4j's."""

    def __init__(self, handle: Callable[[int], None]) -> None:
        self._handle = handle

    def handle(self, number: Any) -> None:
        self._handle(int(number.getNumber()))

    class Java:
        implements = ("sun.misc.SignalHandler",)
