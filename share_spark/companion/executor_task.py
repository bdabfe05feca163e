"""The task that sees to it that its executor has a companion: where none is, it connects to the driver, and starts the
program with that connection.

A lock tells whether one is there: the process has it for as long as it lives, also when it was cut off from the driver
and its last calls come to their end. So there are never two beside one executor.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from share_spark.companion.handshake import WELCOME, introduced
from share_spark.companion.messages import Hello, exactly, packed_message
from share_spark.companion.process import spawned
from share_spark.spark.python_worker import begin_task, executor_pid

_started: list[subprocess.Popen[bytes]] = []
"""The processes that this worker has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionTask:
    """The function for ``mapPartitions``; it yields a text for each executor that cannot have a companion.

    ``name``: of the delivery. ``address``, ``secret``: of the driver. ``directory``: of the ledgers, which the driver
    has made; where it is not there, the ledgers are for nobody but the companion.
    """

    name: str
    address: tuple[str, int]
    secret: bytes = field(repr=False)
    directory: str

    def __call__(self, _: Iterable[int]) -> Iterator[str]:
        begin_task()
        try:
            self._start(executor_pid())
        except (OSError, EOFError) as fault:
            host, port = self.address
            yield f"{socket.gethostname()}, with the driver at {host}:{port}: {type(fault).__name__}: {fault}"

    def _start(self, executor: int) -> None:
        """Start a companion if none is there."""
        where = f"{socket.gethostname()}-{executor}"
        own = _all_of_user() / f"{self.name}-{where}"
        own.mkdir(parents=True, exist_ok=True)
        with _lock_of(own) as lock:
            if not _locked(lock):
                return
            _remove_left(own)
            ledgers = self.directory if Path(self.directory).is_dir() else str(own)
            watched = os.pidfd_open(executor)
            try:
                with introduced(self.address, self.secret) as connection:
                    connection.sendall(packed_message(Hello(where, ledgers)))
                    exactly(connection, len(WELCOME))
                    _started[:] = [one for one in _started if one.poll() is None]  # ended ones are zombies until then
                    _started.append(spawned([connection.fileno(), watched, lock.fileno()]))
            finally:
                os.close(watched)


def _all_of_user() -> Path:
    return Path(f"{tempfile.gettempdir()}/share_spark-{os.getuid()}/companions")


def _lock_of(own: Path) -> IO[str]:
    return (own / "lock").open("w")


def _locked(lock: IO[str]) -> bool:
    """Take the lock, which all who inherit the file have; return whether nobody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_left(own: Path) -> None:
    """Remove what companions have left that were killed."""
    for other in own.parent.iterdir():
        if other != own and (other / "lock").exists():
            with _lock_of(other) as lock:
                if _locked(lock):
                    shutil.rmtree(other, ignore_errors=True)
