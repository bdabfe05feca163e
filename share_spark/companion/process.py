"""The companion process: spawned, and how one beside the driver ends.

It has a session of its own, so that no signal to the process group of its parent reaches it, and the import path of its
parent, so that it finds the modules of the user. One connection leads to the driver; if the driver dies, the process
sees its end.

What handlers print goes to the driver's standard error, as from Spark's own workers in local mode. A thread copies it:
if the process inherited these files, it would keep the pipes of a shell open that waits for the end of the driver. The
last line is kept, as it may say why the process has ended.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from share_spark.companion.link import Ending, Link

_PROGRAM = "share_spark.companion.program"

_GRACE_S = 2.0
"""The time that a process whose connection has ended has for its own end."""

_CLOSE_S = 10.0
"""The time that it has beyond that, if its handler is to be closed."""

_COPY_S = 1.0
"""The time for the rest of what was printed. A child of the handler's may keep the pipe open for ever."""

_MOST_LINE = 8 << 10


class CompanionProcess(Link):
    """A companion process beside the driver. ``has_close``: its handler is to be closed."""

    def __init__(self, heard: threading.Condition, *, has_close: bool = False) -> None:
        self._grace_s = _GRACE_S + _CLOSE_S * has_close
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = spawned([theirs.fileno()], output=subprocess.PIPE)
        self._last_line = ""
        self._copier = threading.Thread(target=self._copy, name="share-spark-companion-prints", daemon=True)
        self._copier.start()
        super().__init__(ours, heard)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ending(self) -> Ending:
        """Wait for the end of the process, which is killed if that takes too long, and return how it has ended."""
        try:
            code = self._process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._close()
        self._copier.join(_COPY_S)
        how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        return Ending(f"{how}: {self._last_line}" if self._last_line else how)

    def _copy(self) -> None:
        with _pipe_of(self._process) as printed:
            for line in iter(functools.partial(printed.readline, _MOST_LINE), b""):
                text = line.decode(errors="replace")
                self._last_line = text.strip() or self._last_line
                with suppress(OSError, ValueError):  # a driver may have closed its own
                    sys.stderr.write(text)
                    sys.stderr.flush()


def spawned(files: Sequence[int], output: int | None = None) -> subprocess.Popen[bytes]:
    """Start the program. ``files``: its arguments, descriptors that it inherits. ``output``: where it prints to, None
    for the files of this process."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return subprocess.Popen(
        # -P: the directory of the driver may be on its path, then it is in PYTHONPATH, at its own place.
        [sys.executable, "-P", "-m", _PROGRAM, *map(str, files)],
        pass_fds=files,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
    )


def _pipe_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)
