"""The end of a Python worker, as far as it is orderly: functions that are to run there.

    how Spark's daemon ends a worker                                           what runs here
      its connection is closed: it was idle for a minute, or its task failed     the functions
      SIGHUP between two tasks: the session ends                                 the functions
      SIGHUP or SIGKILL in a task, a crash                                       nothing

``atexit`` has no part in that: the daemon's workers leave by ``os._exit``. So the function that the daemon calls for
each task is followed by ours. Where there is no such daemon, a worker ends as any program, and ``atexit`` does it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_MOST_S = 10
"""The time after which a worker that does not come to its end is killed."""

_at_end: list[Callable[[], None]] = []

_MAIN, _CALLER = "worker_main", "worker"


def at_worker_end(function: Callable[[], None]) -> None:
    """Call ``function`` at the end of this worker, unless it is killed. To be called in a task."""
    if function in _at_end:
        return
    _at_end.append(function)
    if len(_at_end) == 1:
        daemon = daemon_module()
        if daemon is None:
            atexit.register(_run)
        else:
            daemon[_MAIN] = _followed(daemon[_MAIN])


def begin_calls() -> None:
    """Let SIGHUP end the worker at once: what runs in a task might not react to anything else."""
    if _at_end and signal.getsignal(signal.SIGHUP) is _hang_up:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def daemon_module() -> dict[str, Any] | None:
    """Return the names of the daemon's module, from the frame in which it waits for a task; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == _CALLER and callable(frame.f_globals.get(_MAIN)):
            return frame.f_globals
        frame = frame.f_back
    return None


def _followed(main: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return ``main``, which waits for a task and runs it, with the end of the worker behind it."""

    def main_then_end(infile: Any, outfile: Any) -> None:
        signal.signal(signal.SIGHUP, _hang_up)
        try:
            main(infile, outfile)
        except SystemExit as end:
            if end.code:
                _run()
            raise

    return main_then_end


def _hang_up(_number: int, _frame: object) -> None:
    _run()
    os.kill(os.getpid(), signal.SIGHUP)


def _run() -> None:
    """Run the functions, each once."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_MOST_S)
    while _at_end:
        _at_end.pop()()
    signal.alarm(0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
