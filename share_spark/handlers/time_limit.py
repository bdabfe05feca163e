"""A time limit on calls of the user's code, inside a Python worker.

A timer signal (SIGALRM) interrupts the call in the worker's main thread, where Spark runs it; the previous handler of
SIGALRM is restored afterwards. Code that does not react (C that never returns to the interpreter, Python that catches
BaseException) is ended with its worker by a watchdog: a thread of CPython's own (``faulthandler``) that does not need
the GIL. It first writes where the code was stuck.

Setting a timer costs as much as a call of a small handler, so it is not set for each call: ``begin`` sets it, once in a
tenth of the limit. When the signal comes too early for the running call, the timer is set again for the rest.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

_MOST_GRACE_S = 5.0
_RETRY_S = 0.005


class OverrunError(BaseException):
    """Raised when the time limit has passed. Not an Exception, so that a handler's ``except Exception`` lets it
    through."""


class TimeLimit:
    """A time limit. ``with TimeLimit(0.5) as limit``: then ``limit.since = time.monotonic()`` before each call and
    ``limit.since = math.inf`` after it; and ``begin`` whenever its time has come. OverrunError is raised inside the
    call, never in the code objects ``outside``. ``limit_s`` None: no limit. ``stuck``: the watchdog's file; None: none.
    """

    __slots__ = ("_before", "_begins", "_interrupts", "_limit_s", "_outside", "_stuck", "_watched", "since")

    def __init__(self, limit_s: float | None, *, stuck: Path | None = None, outside: tuple[CodeType, ...] = ()) -> None:
        self._limit_s = limit_s
        self._stuck, self._outside = stuck, outside
        self._interrupts = limit_s is not None and threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._watched: Any = None
        self._begins = -math.inf
        self.since = math.inf

    def __enter__(self) -> TimeLimit:
        if self._interrupts:
            self._before = signal.signal(signal.SIGALRM, self._ring)
            self._watched = self._stuck.open("ab") if self._stuck is not None else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._interrupts:
            # Timer first: a signal that comes after the old handler is back would kill the worker.
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
        if self._watched is not None:
            faulthandler.cancel_dump_traceback_later()
            self._watched.close()

    def begin(self, now: float) -> float:
        """Watch the calls from ``now`` on. Returns the time at which this has to be called again."""
        if not self._interrupts or self._limit_s is None:
            return math.inf
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        if self._watched is not None:
            faulthandler.dump_traceback_later(patience_s(self._limit_s), file=self._watched, exit=True)
        return now + self._limit_s / 10

    def run(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Make one call, with everything that has to be done before and after it."""
        self.since = now = time.monotonic()
        if now >= self._begins:
            self._begins = self.begin(now)
        try:
            return call(argument)
        finally:
            self.since = math.inf

    def _ring(self, _signal: int, frame: FrameType | None) -> None:
        assert self._limit_s is not None
        left_s = self._limit_s - (time.monotonic() - self.since)
        if left_s == math.inf:  # no call runs
            return
        if left_s > 0:
            # Not less: below a microsecond it would be 0, which is no timer at all.
            signal.setitimer(signal.ITIMER_REAL, max(left_s, _RETRY_S))
        elif frame is not None and frame.f_code in self._outside:
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)  # between two calls, or in C that has just returned
        else:
            self.since = math.inf
            raise OverrunError


def patience_s(limit_s: float) -> float:
    """Return the time, from the last look at a call, at which a watchdog ends its process: later than the limit, as
    code that reacts to that must not lose its process. The next look comes after a tenth of the limit."""
    return 1.1 * limit_s + min(_MOST_GRACE_S, max(1.0, limit_s / 10))


def overrun_text(limit_ms: int, records: int = 1) -> str:
    """Return the error of a call that took too long."""
    by = "" if records == 1 else f" by a batch of {records} records"
    return f"time limit of {limit_ms} ms exceeded{by}"


def stuck_text(limit_text: str, where: str) -> str:
    """Return the error of a call that a watchdog ended with its process. ``limit_text``: says that it took too long;
    ``where``: as ``stuck_at``."""
    return f"{limit_text} and did not react: {where}"


def stuck_at(file: Path) -> str | None:
    """Return where the watchdog ended code, as the innermost frame of the main thread; None if it ended none. Of the
    threads that it has written, the main thread is the last one."""
    threads = file.read_text(errors="replace").split("(most recent call first)") if file.exists() else [""]
    frames = [line.strip() for line in threads[-1].splitlines() if line.strip().startswith("File ")]
    return frames[0] if frames else None
