"""The companion process, as its driver has it: started, spoken to, ended.

It is spawned, in a session of its own, so that no signal to the driver's process group reaches it, and with the
driver's import path, so that it finds the modules of the user. One connection leads to it; if the driver dies, the
process sees its end.

What handlers print goes to the driver's standard error, as from Spark's own workers in local mode. A thread copies it:
if the process inherited these files, it would keep the pipes of a shell open that waits for the end of the driver. The
last line is kept, as it may say why the process has ended.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from share_spark.companion.messages import LENGTH, Begin, CallsNow, FromCompanion, FromDriver, packed_message

_PROGRAM = "share_spark.companion.program"

_GRACE_S = 2.0
"""The time that a process whose connection has ended has for its own end."""

_CLOSE_S = 10.0
"""The time that it has beyond that, if its handler is to be closed."""

_COPY_S = 1.0
"""The time for the rest of what was printed. A child of the handler's may keep the pipe open for ever."""

_MOST_LINE = 8 << 10


class CompanionProcess:
    """A companion process. Messages are sent and taken by one thread; ``wake`` may be called from any. ``has_close``:
    its handler is to be closed."""

    def __init__(self, begin: Begin, *, has_close: bool = False) -> None:
        self._grace_s = _GRACE_S + _CLOSE_S * has_close
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _spawned(theirs.fileno())
        self._connection = ours
        self._heard = threading.Condition()
        self._inbox: deque[FromCompanion] = deque()
        self._has_ended = self._is_woken = False
        self._last_line = ""
        self._calls_now: CallsNow | None = None
        self._started = time.monotonic()
        self._reader = threading.Thread(target=self._read, name="share-spark-companion", daemon=True)
        self._copier = threading.Thread(target=self._copy, name="share-spark-companion-prints", daemon=True)
        self._reader.start()
        self._copier.start()
        self.send(begin)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def calls_now(self) -> CallsNow | None:
        """The last that it said of its running calls; None before the first."""
        return self._calls_now

    def send(self, message: FromDriver) -> None:
        """Send a message. Nothing happens if the process has ended: ``take`` says so."""
        with suppress(OSError):
            self._connection.sendall(packed_message(message))

    def take(self) -> tuple[list[FromCompanion], bool]:
        """Return (the messages that have come since the last call, whether no more will come)."""
        with self._heard:
            found = list(self._inbox)
            self._inbox.clear()
            return found, self._has_ended

    def wait(self, seconds: float) -> None:
        """Wait until there is something to take, or ``wake`` is called; at most so long."""
        with self._heard:
            self._heard.wait_for(lambda: self._inbox or self._has_ended or self._is_woken, max(0.0, seconds))
            self._is_woken = False

    def wake(self) -> None:
        """End the present ``wait``, or the next one if there is none."""
        with self._heard:
            self._is_woken = True
            self._heard.notify_all()

    def end(self) -> str:
        """End the process if it has not ended, and return how it did, for people."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            code = self._process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        self._connection.close()
        self._copier.join(_COPY_S)
        how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        return f"{how}: {self._last_line}" if self._last_line else how

    def _read(self) -> None:
        try:
            with suppress(OSError, EOFError):
                while True:
                    self._note(_received(self._connection))
        finally:
            with self._heard:
                self._has_ended = True
                self._heard.notify_all()

    def _note(self, message: FromCompanion) -> None:
        if isinstance(message, CallsNow):  # twice a second, and nobody waits for it
            self._calls_now = message
            return
        with self._heard:
            self._inbox.append(message)
            self._heard.notify_all()

    def _copy(self) -> None:
        with _pipe_of(self._process) as printed:
            for line in iter(functools.partial(printed.readline, _MOST_LINE), b""):
                text = line.decode(errors="replace")
                self._last_line = text.strip() or self._last_line
                with suppress(OSError, ValueError):  # a driver may have closed its own
                    sys.stderr.write(text)
                    sys.stderr.flush()


def _spawned(connection: int) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return subprocess.Popen(
        # -P: the directory of the driver may be on its path, then it is in PYTHONPATH, at its own place.
        [sys.executable, "-P", "-m", _PROGRAM, str(connection)],
        pass_fds=[connection],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
    )


def _pipe_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _received(connection: socket.socket) -> FromCompanion:
    """Return the next message. Raises EOFError, OSError."""
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    message: FromCompanion = pickle.loads(_exactly(connection, length))
    return message


def _exactly(connection: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, at = memoryview(content), 0
    while at < length:
        count = connection.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return content


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)
