"""The threads for calls of a handler that blocks. Nothing ends a thread: one whose call is over its time limit is stuck
until the call comes back by itself."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from share_spark.model.errors import ShareError


class ThreadsStuckError(ShareError):
    """The end of a process of which most threads are stuck: another one has to go on."""


class RaisedInThread(Exception):  # noqa: N818
    """The ``fault`` that a call has raised in its thread: neither a future nor a coroutine takes each of them."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__(fault)
        self.fault = fault


class CallThreads:
    """The threads, so ``many``. To be used in the thread of ``loop`` only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, many: int, freed: Callable[[], None]) -> None:
        self._loop, self._many, self._freed = loop, many, freed
        self._pool = ThreadPoolExecutor(many, "share-spark-call")
        self._busy: dict[object, int] = {}
        self._stuck: set[object] = set()

    def has_free(self, running: int) -> bool:
        """Return whether there is a thread for one more call than those that run."""
        return running + len(self._stuck) < self._many

    async def run(self, call: object, function: Callable[[Any], Any], argument: Any) -> Any:
        """Run ``function`` in a thread; return what it has returned. ``call``: names it. Raises RaisedInThread."""
        self._busy[call] = 0
        # Whoever waits may be cancelled, the call not.
        return await asyncio.shield(self._loop.run_in_executor(self._pool, self._run, call, function, argument))

    def stuck(self, call: object) -> ThreadsStuckError | None:
        """Note that a call is over its limit; return an error if so are more than half of all threads."""
        if call in self._busy:
            self._stuck.add(call)
        if 2 * len(self._stuck) <= self._many:
            return None
        where = _place_of(self._busy[next(iter(self._stuck))])
        many = f"{len(self._stuck)} of {self._many} threads"
        return ThreadsStuckError(f"{many} are over the time limit of their calls and do not come back: {where}")

    def _run(self, call: object, function: Callable[[Any], Any], argument: Any) -> Any:
        self._busy[call] = threading.get_ident()
        try:
            return function(argument)
        except BaseException as fault:  # noqa: BLE001 - what a handler raises is an answer
            raise RaisedInThread(fault) from None
        finally:
            self._loop.call_soon_threadsafe(self._end, call)

    def _end(self, call: object) -> None:
        del self._busy[call]
        self._stuck.discard(call)
        self._freed()


def _place_of(thread: int) -> str:
    """Return the innermost place where a thread is."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "unknown"
    last = traceback.extract_stack(frame)[-1]
    return f'File "{last.filename}", line {last.lineno} in {last.name}'
