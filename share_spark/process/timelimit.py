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
        self._earliest = 0.0
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
        what it raises. Overrun is overrun, also where nothing interrupted it."""
        started = time.monotonic()
        try:
            result = self._interruptible(call, argument, limit_s, started)
        except Exception:
            if time.monotonic() - started > limit_s:
                raise OverrunError from None
            raise
        finally:
            self._armed = False
        if time.monotonic() - started > limit_s:
            raise OverrunError
        return result

    def _interruptible(self, call: Callable[[Any], Any], argument: Any, limit_s: float, started: float) -> Any:
        """The timer is not stopped after a call, which would double its cost: the next call sets it anew."""
        if self._interrupts:
            self._earliest = started + limit_s / 2
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            self._armed = True
        try:
            return call(argument)
        finally:
            self._armed = False

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        """Raises in the call. Not after it (``run`` judges by the clock), and not for the call before it, whose alarm
        may be seen late."""
        if self._armed and time.monotonic() >= self._earliest:
            self._armed = False
            raise OverrunError
