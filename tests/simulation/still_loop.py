"""An event loop in the world of a play: it runs only when it is turned, its time is the world's, and what would be done
in a thread is done at once. So the order of everything is the scheduler's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.facts import Violation


class StillLoop(asyncio.SelectorEventLoop):
    """``fault``: of a task that nobody has waited for."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        super().__init__()
        self.fault: BaseException | None = None
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._now_ms() / 1_000

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        found = self.create_future()
        try:
            found.set_result(function(*arguments))
        except Exception as fault:  # noqa: BLE001 - whoever waits has it
            found.set_exception(fault)
        return found

    def turn(self) -> None:
        """Do once whatever is ready. Raises Violation if a task has failed."""
        self.call_soon(self.stop)
        self.run_forever()
        if self.fault is not None:
            raise Violation(f"a task of a gateway fails: {self.fault!r}") from self.fault

    def end(self) -> None:
        """End all tasks."""
        while tasks := asyncio.all_tasks(self):
            for task in tasks:
                task.cancel()
            self.call_soon(self.stop)
            self.run_forever()
        self.close()

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.fault = context.get("exception") or RuntimeError(str(context))
