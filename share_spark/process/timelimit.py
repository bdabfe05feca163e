"""A time limit on calls of the user's code, inside a Python worker.

An alarm (SIGALRM) interrupts the call in the worker's main thread, which is where Spark runs it;
whatever the process did with SIGALRM before is put back. Limits, to be known by users:

- C code that never returns to the interpreter is not interrupted: the alarm is seen when it
  returns.
- Code that catches BaseException swallows the alarm; its record still counts as overrun when the
  call returns.
- A handler that uses SIGALRM itself, and workers without it (Windows, a thread), are only timed,
  not interrupted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class OverrunError(BaseException):
    """The time limit has passed. Not an Exception, so that a handler's ``except Exception`` lets it
    through."""


class TimeLimit:
    """Runs calls under a limit: ``with TimeLimit() as limit: limit.run(call, argument, 0.5)``."""

    def __init__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        self._interrupts = main and hasattr(signal, "setitimer")
        self._armed = False
        self._before: Any = None

    def __enter__(self) -> TimeLimit:
        if self._interrupts:
            self._before = signal.signal(signal.SIGALRM, self._ring)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._interrupts:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def run(self, call: Callable[[Any], Any], argument: Any, limit_s: float) -> Any:
        """The call's result. Raises OverrunError when it took longer than ``limit_s`` seconds, else
        what it raises."""
        started = time.monotonic()
        try:
            result = self._interruptible(call, argument, limit_s)
        except Exception:
            self._judge(started, limit_s)
            raise
        finally:
            self._armed = False
        self._judge(started, limit_s)
        return result

    def _interruptible(self, call: Callable[[Any], Any], argument: Any, limit_s: float) -> Any:
        if not self._interrupts:
            return call(argument)
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            return call(argument)
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _judge(self, started: float, limit_s: float) -> None:
        """Overrun is overrun, also where nothing interrupted it or the alarm was swallowed."""
        if time.monotonic() - started > limit_s:
            raise OverrunError

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        """An alarm that comes as the call has just ended is not raised: ``run`` judges by the
        clock."""
        if self._armed:
            self._armed = False
            raise OverrunError
