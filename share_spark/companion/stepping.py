"""The steps of coroutines, each noted in the cell of the ledger: while code of a call runs, the cell names its record.

A step is one ``send`` or ``throw``, from one ``await`` that waits to the next. Tasks that a handler starts count as its
own: a task factory finds the call in the context. Not seen: callbacks, and other threads.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Protocol


class Stepping(Protocol):
    """The call whose steps are noted: ``cell`` takes ``cell_value`` during each."""

    cell: memoryview
    cell_value: int


CURRENT_CALL: ContextVar[Stepping] = ContextVar("current_call")
"""The call that the present code belongs to."""


@types.coroutine
def stepped(coroutine: Coroutine[Any, Any, Any], call: Stepping) -> Generator[Any, Any, Any]:
    """Await a coroutine, and note its steps."""
    step: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        call.cell[0] = call.cell_value
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value
        finally:
            call.cell[0] = 0
            value = None  # what was thrown has this frame in its traceback
        try:
            step, value = coroutine.send, (yield waits_for)
        except BaseException as fault:  # noqa: BLE001 - it is thrown on
            step, value = coroutine.throw, fault


def task_of(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **settings: Any) -> asyncio.Task[Any]:
    """Return a new task, as a task factory; one that a call starts is a part of it."""
    call = CURRENT_CALL.get(None)
    if call is None:
        return asyncio.Task(coroutine, loop=loop, **settings)
    task = asyncio.Task(_awaited(stepped(coroutine, call)), loop=loop, **settings)
    # Otherwise Python warns of a coroutine that nothing has awaited, if the task is cancelled before its first step.
    task.add_done_callback(lambda _: coroutine.close())
    return task


async def _awaited(steps: Awaitable[Any]) -> Any:
    """Await it: a task has a true coroutine, as libraries look at its state."""
    return await steps
