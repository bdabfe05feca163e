"""Process sessions, as /proc lists them: an engine with its JVM, its workers and, on a local cluster, its executors."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """``state``: T is stopped, Z has ended. ``session``: the pid of who leads it."""

    pid: int
    state: str
    parent: int
    session: int


def process(pid: int | str) -> Process | None:
    """None if it is gone."""
    try:
        state, parent, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return Process(int(pid), state, int(parent), int(session))


def living(session: int) -> list[Process]:
    """All of a session that have not ended."""
    found = [process(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [one for one in found if one is not None and one.session == session and one.state not in "ZX"]


def send_to_session(session: int, number: signal.Signals) -> None:
    """To all of them, to the caller last if it is one of them. SIGKILL again until no new process has appeared."""
    own = os.getpid()
    while others := [one for one in living(session) if one.pid != own and not _has_got(one, number)]:
        for one in others:
            send(one.pid, number)
        time.sleep(0.005)
    if os.getsid(0) == session:
        os.kill(own, number)


def _has_got(one: Process, number: signal.Signals) -> bool:
    return (number == signal.SIGSTOP) == (one.state == "T") and number != signal.SIGKILL


def send(pid: int, number: signal.Signals) -> None:
    """Nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
