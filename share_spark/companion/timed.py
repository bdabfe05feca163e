"""Functions that a companion runs by the clock: answers are collected, and what runs is told again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context


class Collected:
    """A function that is run at most once in ``every_s`` seconds, as what happens meanwhile is collected for it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: Context, every_s: float, run: Callable[[], None]
    ) -> None:
        self._loop, self._context, self._every_s, self._run = loop, context, every_s, run
        self._next, self._is_due = 0.0, False

    def soon(self) -> None:
        """Run it: at once, or as soon as it may."""
        if self._is_due:
            return
        wait_s = self._next - time.monotonic()
        if wait_s <= 0.0:
            self._run()
        else:
            self._is_due = True
            self._loop.call_later(wait_s, self._run_late, context=self._context)

    def note(self) -> None:
        """Note that it has run now."""
        self._next = time.monotonic() + self._every_s

    def _run_late(self) -> None:
        self._is_due = False
        self._run()


class Repeated:
    """A function that is run every ``every_s`` seconds, until it returns False."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: Context, every_s: float, run: Callable[[], bool]
    ) -> None:
        self._loop, self._context, self._every_s, self._run = loop, context, every_s, run
        self._goes_on = False

    def begin(self) -> None:
        """Begin, if it does not go on already."""
        if not self._goes_on:
            self._goes_on = True
            self._plan()

    def _plan(self) -> None:
        self._loop.call_later(self._every_s, self._repeat, context=self._context)

    def _repeat(self) -> None:
        self._goes_on = self._run()
        if self._goes_on:
            self._plan()
