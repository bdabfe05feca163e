"""The Python worker that runs our functions on an executor: what keeps it quick between tasks."""

from __future__ import annotations

import functools
import gc
import os
import socket
import stat
import sys
import zipimport
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from share_spark.spark.worker_end import begin_calls, daemon_module

if TYPE_CHECKING:
    from pyspark import TaskContext


def task_context() -> TaskContext | None:
    """Return Spark's context of the task that runs here; None outside of one, where PySpark need not be installed."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.TaskContext.get()


def begin_task() -> None:
    """Prepare the worker; each function of ours that runs in one calls this first."""
    drop_zip_importers()
    begin_calls()
    if task_context() is not None:
        acknowledge_at_once()


def executor_pid() -> int:
    """Return the id of the executor's process, a JVM: in a task it is the parent of the workers' daemon."""
    parent = os.getppid()
    return parent if daemon_module() is None else _parent_of(parent)


def _parent_of(process: int) -> int:
    # The second field is the name of the program in brackets, and may hold any character.
    _, _, fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")
    return int(fields.split()[1])


def drop_zip_importers() -> None:
    """Forget the importers of zips and jars.

    Before each task PySpark has every one of them read its archive's directory again, in Python: up to a quarter of a
    second. They come back by themselves if something is imported from there.
    """
    cached = sys.path_importer_cache
    for path in [path for path, finder in cached.items() if isinstance(finder, zipimport.zipimporter)]:
        del cached[path]


def acknowledge_at_once() -> None:
    """Make the JVM send the records of a task right after its command.

        JVM       command --->                            records --->     held back until the command is acknowledged
        worker              reads it       <--- TCP's acknowledgement      delayed by 40 ms, in the hope of an answer

    Until Spark 4.0 the two speak over TCP, with the sender's delay of small packets (Nagle's) and the receiver's delay
    of acknowledgements at work at once. This option acknowledges what is outstanding; its effect does not last.
    """
    for connection in _connections() if hasattr(socket, "TCP_QUICKACK") else ():
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@functools.cache
def _connections() -> Sequence[socket.socket]:
    """Return the connections of this process at its first task: those to the JVM are among them."""
    open_files = (int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    return [one for one in map(_connection, open_files) if one is not None]


def _connection(number: int) -> socket.socket | None:
    """Return another handle of the open file, if it is a TCP connection."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            found = socket.socket(fileno=os.dup(number))
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                return found
            found.close()
    return None


def forget_garbage_so_far() -> None:
    """Exclude all present objects from garbage collection: PySpark collects after each task, and the modules that a
    worker has imported make that 40 ms each time."""
    gc.collect()
    gc.freeze()


@contextmanager
def cycles_ignored() -> Iterator[None]:
    """Turn off the search for reference cycles: our values have none, and the search among a hundred thousand of them
    takes a third of the time of a decision, most of that of reading states."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
