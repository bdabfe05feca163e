"""Engines as threads of which exactly one runs at a time. The scheduler hands over a baton and waits to get it back.

A process gives the baton back when it sleeps, which it may do inside any call, and when it ends. Since no other runs
meanwhile, the order of everything is the scheduler's, and a play repeats exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Death(BaseException):
    """The process ends here; no code of the engine may catch it."""


class SimulatedProcess:
    """``body`` runs whenever ``resume`` is called, until it calls ``sleep`` or ends."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.over = self.died = False
        self.fault: BaseException | None = None
        self._body = body
        self._doomed = False
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Let it run until it sleeps or ends."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self.over:
            self._thread.join()

    @property
    def runs_here(self) -> bool:
        """Is it this process that calls?"""
        return threading.current_thread() is self._thread

    def sleep(self) -> None:
        """Called by the process itself: give the baton back and wait for the next ``resume``."""
        self._back.release()
        self._go.acquire()
        if self._doomed:
            raise Death

    def kill(self) -> None:
        """It dies where it sleeps."""
        self._doomed = True
        if self._thread is None:
            self.over = self.died = True
        else:
            self.resume()

    def _run(self) -> None:
        try:
            self._body()
        except Death:
            self.died = True
        except BaseException as fault:  # noqa: BLE001 - it is the scheduler's to judge
            self.fault = fault
        self.over = True
        self._back.release()
