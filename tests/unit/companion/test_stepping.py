"""Steps of coroutines in the cell."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from share_spark.companion.stepping import CURRENT_CALL, stepped, task_of


class Call:
    """A call whose code runs under the number 7."""

    def __init__(self) -> None:
        self.cell = memoryview(bytearray(8)).cast("Q")
        self.cell_value = 7


def played(function: Callable[[Call], Coroutine[Any, Any, Any]]) -> tuple[Any, set[int]]:
    """Return what the coroutine of a call returns, and what the cell held while the loop was elsewhere."""
    call, outside = Call(), set()

    async def of_call() -> Any:
        CURRENT_CALL.set(call)
        return await stepped(function(call), call)

    async def main() -> Any:
        loop: Any = asyncio.get_running_loop()
        task = loop.create_task(of_call())
        loop.set_task_factory(task_of)
        while not task.done():
            outside.add(call.cell[0])
            await asyncio.sleep(0)
        return await task

    return asyncio.run(main()), outside


def test_the_cell_is_set_in_each_step_and_not_between_them() -> None:
    async def steps(call: Call) -> list[int]:
        seen = [call.cell[0]]
        for _ in range(3):
            await asyncio.sleep(0.001)
            seen.append(call.cell[0])
        return seen

    assert played(steps) == ([7, 7, 7, 7], {0})


def test_an_exception_comes_through_in_both_directions() -> None:
    async def steps(call: Call) -> Any:
        try:
            await asyncio.wait_for(asyncio.sleep(3600), 0.01)
        except TimeoutError:
            async with asyncio.timeout(0.01) as limit:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    return call.cell[0], limit.when() is not None

    assert played(steps) == ((7, True), {0})


def test_tasks_of_a_call_are_its_own_and_tasks_of_others_are_not() -> None:
    async def part(call: Call) -> tuple[int, str]:
        await asyncio.sleep(0)
        return call.cell[0], inspect.getcoroutinestate(asyncio.current_task().get_coro())

    async def steps(call: Call) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part(call), name=f"part {number}") for number in range(2)]
        return [task.result() for task in tasks], tasks[1].get_name()

    assert played(steps) == (([(7, inspect.CORO_RUNNING)] * 2, "part 1"), {0})


@pytest.mark.filterwarnings("error")
def test_a_task_that_is_cancelled_before_it_begins_leaves_no_warning() -> None:
    async def steps(call: Call) -> bool:
        task = asyncio.create_task(asyncio.sleep(1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert played(steps) == (True, {0})


def test_what_was_thrown_is_free_at_once() -> None:
    class TooLateError(Exception):
        pass

    steps, fault = stepped(asyncio.sleep(0), Call()), TooLateError()
    thrown = weakref.ref(fault)
    steps.send(None)
    gc.disable()
    try:
        with pytest.raises(TooLateError):
            steps.throw(fault)
        del fault
        assert thrown() is None
    finally:
        gc.enable()
