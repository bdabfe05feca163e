"""The time limits of calls that wait: one look over all of them now and then, and a watchdog on the loop itself.

A call that is over its limit is cancelled. Code that does not let the loop go on, as it computes or blocks, hears
nothing of that: the watchdog (``faulthandler``, a thread that does not need the GIL) writes where it is stuck, and ends
the process. The cell of the ledger then names its record.
"""

from __future__ import annotations

import asyncio
import faulthandler
import time
from collections.abc import Callable
from pathlib import Path

from share_spark.handlers.time_limit import patience_s

_SHORTEST_S, _LONGEST_S = 0.02, 0.5
"""Limits of the time between two looks."""


class Overruns:
    """The looks, one after another while there are calls. ``look``: cancels what is over its limit at a time, and
    returns whether there still are calls. ``stuck``: the file of the watchdog."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stuck: Path, look: Callable[[float], bool]) -> None:
        self._loop, self._look_at = loop, look
        self._stuck = stuck.open("ab")
        self._limit_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, limit_s: float) -> None:
        """Watch calls of this limit; there is one at least."""
        if self._timer is None or limit_s != self._limit_s:
            self._limit_s = limit_s
            self._again()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()
        self._stuck.close()

    def _again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(min(_LONGEST_S, max(_SHORTEST_S, self._limit_s / 10)), self._look)
        faulthandler.dump_traceback_later(patience_s(self._limit_s), file=self._stuck, exit=True)

    def _look(self) -> None:
        if self._look_at(time.monotonic()):
            self._again()
        else:
            faulthandler.cancel_dump_traceback_later()
            self._timer = None


def stuck_file(ledger: Path) -> Path:
    """Return the file of the watchdog of a companion whose first ledger is ``ledger``."""
    return Path(f"{ledger}.stuck")
