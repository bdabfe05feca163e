"""Fault points: where an engine is killed or paused, by wrapping methods of the real classes in its process.

A micro-batch has an effect between each two points. What happens where is a ``Fault``; a line in the file ``struck``
says that it has happened.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from share_spark.companion.delivery import CompanionDelivery
from share_spark.delivery.deliver import SparkDelivery
from share_spark.delivery.output_files import OutputFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.maintenance.background import BackgroundMaintenance
from share_spark.output.dead_letter_sinks import AnnouncedDeadLetters
from share_spark.output.dead_letter_table import DeltaDeadLetters
from share_spark.output.sink import DeltaOutput, DeltaSink
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.state.tables import LOG_TABLE
from tests.chaos.sessions import process, send, send_to_session

SESSION, JVM, DRIVER, WORKER, EXECUTOR, PAUSE = "session", "jvm", "driver", "worker", "executor", "pause"
COMPANION, BOTH = "companion", "session and companion"
"""Who gets SIGKILL; PAUSE: the session gets SIGSTOP. WORKER and EXECUTOR: from inside a worker only. A companion
process has a session of its own; from inside it is a WORKER."""

_COMPANION = b"share_spark.companion.program"

IN_HANDLER, IN_OUTPUT = "in the handler", "inside the append of the output"
"""Points in a worker: a record's handler; a task that has written output rows into a file which was never committed."""

PUT = "after the output is in a file"
"""A point of a driver that puts the files itself, as on an object store: a run that is to come there does so."""

CLOSING = ("before closing", "while closing", "after closing")
"""Points that are reached only by a run that is stopped."""


class Fault(NamedTuple):
    """The ``nth`` time that the process comes to ``point``, and ``delay_ms`` later, ``who`` is hit."""

    point: str
    who: str = SESSION
    nth: int = 1
    delay_ms: int = 0

    def __str__(self) -> str:
        return f"{self.point}/{self.who}/{self.nth}/{self.delay_ms}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Undo ``str``; what is missing has its default."""
        point, *rest = text.split("/")
        return cls(point, *rest[:1], *map(int, rest[1:]))


class Point(NamedTuple):
    """Before (or ``after``) a method. ``only``: of the calls that these arguments make. ``once``: comes once a run."""

    owner: type
    method: str
    after: bool = False
    only: Callable[..., bool] = lambda *_, **__: True
    once: bool = False


def _of_records(appends: DirectAppends, *_: Any, note: str = "", **__: Any) -> bool:
    return LOG_TABLE in appends.directory and '"kind":"records"' in note


def _to_log(appends: DirectAppends, *_: Any) -> bool:
    return LOG_TABLE in appends.directory


def _to_sink(appends: DirectAppends, *_: Any) -> bool:
    return appends.directory.endswith("/out")


def _stopping(_engine: Any, _batch: int, *, stopping: bool = False) -> bool:
    return stopping


def _working(_engine: Any, _batch: int, *, stopping: bool = False) -> bool:
    return not stopping


_STORE = DeltaShareStateStore

POINTS = {
    "before the claim": Point(_STORE, "claim", once=True),
    "after the claim": Point(_STORE, "claim", after=True, once=True),
    "after the load": Point(_STORE, "load", after=True, once=True),
    "before dead letters are recovered": Point(AnnouncedDeadLetters, "recover", once=True),
    "after dead letters are recovered": Point(AnnouncedDeadLetters, "recover", after=True, once=True),
    "before the claim of the sink": Point(DeltaOutput, "claim", once=True),
    "after the claim of the sink": Point(DeltaOutput, "claim", after=True, once=True),
    "before deciding": Point(_STORE, "advance"),
    "after deciding": Point(_STORE, "advance", after=True),
    "before dead letters are announced": Point(AnnouncedDeadLetters, "announce"),
    "after dead letters are announced": Point(AnnouncedDeadLetters, "announce", after=True),
    "before the append": Point(_STORE, "commit"),
    "during the append": Point(_STORE, "commit"),
    "while the rows are put into a file": Point(DirectAppends, "begin", after=True, only=_to_log),
    "after the append": Point(DirectAppends, "commit", after=True, only=_of_records),
    "before forgetting": Point(DeltaSink, "forget"),
    "after forgetting": Point(DeltaSink, "forget", after=True),
    "before dead letters are written": Point(AnnouncedDeadLetters, "write_together"),
    "during dead letters": Point(AnnouncedDeadLetters, "write_together"),
    "after dead letters are appended": Point(DeltaDeadLetters, "write", after=True),
    "after dead letters are written": Point(AnnouncedDeadLetters, "write_together", after=True),
    "before delivery": Point(SparkDelivery, "deliver"),
    "during delivery": Point(SparkDelivery, "deliver"),
    "after delivery": Point(SparkDelivery, "deliver", after=True),
    "before the output is journaled": Point(DeltaSink, "commit"),
    "after the output is journaled": Point(DeltaSink, "_append"),
    "during the append of the output": Point(DeltaSink, "_append"),
    PUT: Point(DirectAppends, "put", after=True, only=_to_sink),
    "after the output is appended": Point(DeltaSink, "_append", after=True),
    "after the output is read back": Point(DeltaSink, "commit", after=True),
    "after the micro-batch": Point(ShareGroupEngine, "run", after=True, only=_working),
    "before the state table": Point(BackgroundMaintenance, "_rewrite"),
    "during the state table": Point(BackgroundMaintenance, "_rewrite"),
    "after the state table": Point(BackgroundMaintenance, "_rewrite", after=True),
    "before closing": Point(ShareGroupEngine, "run", only=_stopping, once=True),
    "while closing": Point(ShareGroupEngine, "run", only=_stopping, once=True),
    "after closing": Point(ShareGroupEngine, "run", after=True, only=_stopping, once=True),
}
"""In the order in which a run comes to them, all on the driver. ``during`` and ``while`` are meant with a delay."""

CALLS_TAKEN = "after late answers are taken"
WAITING_POINTS = {CALLS_TAKEN: Point(CompanionDelivery, "deliver", after=True)}
"""The same, of handlers that wait."""


def arm(fault: Fault, struck: Path) -> None:
    """From now on this process is hit when it comes there."""
    if fault.point == PUT:
        DirectAppends.place_for_workers = None  # type: ignore[assignment,method-assign]
    if fault.point not in (IN_HANDLER, IN_OUTPUT):
        _arm_method({**POINTS, **WAITING_POINTS}[fault.point], fault, struck)


def _arm_method(point: Point, fault: Fault, struck: Path) -> None:
    original, times = getattr(point.owner, point.method), itertools.count(1)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        hit = point.only(*args, **kwargs) and next(times) == fault.nth
        if hit and not point.after:
            _strike_in_time(fault, struck)
        result = original(*args, **kwargs)
        if hit and point.after:
            _strike_in_time(fault, struck)
        return result

    setattr(point.owner, point.method, wrapped)


def arm_worker(fault: Fault | None, struck: Path) -> None:
    """In a worker: it is hit when it has written output rows into a file that no commit names yet."""
    if fault is None or fault.point != IN_OUTPUT or hasattr(OutputFiles.close, "armed"):
        return
    original = OutputFiles.close

    def wrapped(files: OutputFiles) -> Any:
        written = original(files)
        if written:
            strike_once(fault, struck)
        return written

    wrapped.armed = True  # type: ignore[attr-defined]
    OutputFiles.close = wrapped  # type: ignore[method-assign]


def _strike_in_time(fault: Fault, struck: Path) -> None:
    if fault.delay_ms:
        threading.Timer(fault.delay_ms / 1_000, strike, (fault, struck)).start()
    else:
        strike(fault, struck)


def strike_once(fault: Fault, struck: Path) -> None:
    """From one of several workers: only the first that comes."""
    try:
        os.close(os.open(struck, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    strike(fault, struck)


def strike(fault: Fault, struck: Path) -> None:
    """Note it, then do it. Returns only after a pause, or if another process is the one that ends."""
    note(struck, str(fault))
    if fault.who == PAUSE:
        send_to_session(os.getsid(0), signal.SIGSTOP)
        time.sleep(0.5)  # the signal takes a moment, and this thread must not go on in it
    elif fault.who == SESSION:
        send_to_session(os.getsid(0), signal.SIGKILL)
    elif fault.who in (COMPANION, BOTH):
        _end_companion()
        if fault.who == BOTH:
            send_to_session(os.getsid(0), signal.SIGKILL)
    elif fault.who == EXECUTOR:
        send(_parent(_parent(os.getpid())), signal.SIGKILL)
    else:
        send(_jvm() if fault.who == JVM else os.getpid(), signal.SIGKILL)


def note(file: Path, line: str) -> None:
    """One line, durable when this returns, whatever other processes write and whichever is killed next."""
    handle = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


def _parent(pid: int) -> int:
    found = process(pid)
    assert found is not None
    return found.parent


def _end_companion() -> None:
    """Kill the companion process of this driver."""
    for entry in Path("/proc").iterdir():
        found = process(entry.name) if entry.name.isdigit() else None
        if found is not None and found.parent == os.getpid() and _COMPANION in (entry / "cmdline").read_bytes():
            send(found.pid, signal.SIGKILL)


def _jvm() -> int:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())
