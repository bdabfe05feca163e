"""The steps of coroutines, each noted in the cell of the ledger: while code of a call runs, the cell names its record.

A step is one ``send`` or ``throw``, from one ``await`` that waits to the next. Tasks that a handler starts count as its
own: a task factory finds the call in the context. Not seen: callbacks, and other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol


class Stepping(Protocol):
    """The call whose steps are noted: ``cell`` takes ``cell_value`` during each."""

    cell: memoryview
    cell_value: int


CURRENT_CALL: ContextVar[Stepping] = ContextVar("current_call")
"""The call that the present code belongs to."""


class Stepped(Generator[Any, Any, Any]):
    """A coroutine to be awaited once, whose steps are noted."""

    __slots__ = ("_call", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], call: Stepping) -> None:
        self._coroutine, self._call = coroutine, call

    def __await__(self) -> Stepped:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        call = self._call
        call.cell[0] = call.cell_value
        try:
            return self._coroutine.send(value)
        finally:
            call.cell[0] = 0

    def throw(self, kind: Any, value: Any = None, _trace: TracebackType | None = None) -> Any:
        call = self._call
        call.cell[0] = call.cell_value
        try:
            # The form with three arguments is deprecated, and only the others raise no warning.
            return self._coroutine.throw(kind if value is None else value)
        finally:
            call.cell[0] = 0

    def close(self) -> None:
        self._coroutine.close()


def task_of(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **settings: Any) -> asyncio.Task[Any]:
    """Return a new task, as a task factory; one that a call starts is a part of it."""
    call = CURRENT_CALL.get(None)
    if call is None:
        return asyncio.Task(coroutine, loop=loop, **settings)
    task = asyncio.Task(_awaited(Stepped(coroutine, call)), loop=loop, **settings)
    # Otherwise Python warns of a coroutine that nothing has awaited, if the task is cancelled before its first step.
    task.add_done_callback(lambda _: coroutine.close())
    return task


async def _awaited(stepped: Stepped) -> Any:
    """Await it: a task has a true coroutine, as libraries look at its state."""
    return await stepped
