"""The main job as a process of its own, by either launcher, to be signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TIMEOUT_S = 240

HANDLER = """
import time
import pyarrow as pa

def slow(batch: pa.RecordBatch):
    time.sleep(0.5)
    return [1] * batch.num_rows
"""


@dataclass(frozen=True, slots=True)
class JobProcess:
    """``launcher``: the process that was started. ``log``: the file that both processes write to."""

    launcher: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: list[str], directory: Path) -> JobProcess:
        """In a process group of its own, with ``slow.py`` beside it."""
        (directory / "slow.py").write_text(HANDLER)
        log = directory / "output"
        environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
        with log.open("wb") as file:
            launcher = subprocess.Popen(
                command, cwd=directory, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )
        return cls(launcher, log)

    @property
    def output(self) -> str:
        """What both have written."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Until it has written ``text``."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.output:
            assert self.launcher.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def child(self) -> int:
        """The other one of Python and the JVM."""
        return int(Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()[0])

    def below(self, module: str) -> list[int]:
        """All Python processes below it that run this module, a parent before its children."""
        return [process for process in _below(self.launcher.pid) if f"\0-m\0{module}\0".encode() in _command(process)]

    def send(self, number: signal.Signals, to: str) -> None:
        """To the ``launcher``, its ``child``, or (as a terminal's Ctrl-C) the whole ``group``."""
        if to == "group":
            os.killpg(self.launcher.pid, number)
        else:
            os.kill(self.launcher.pid if to == "launcher" else self.child(), number)

    def end(self) -> int:
        """The exit code."""
        return self.launcher.wait(TIMEOUT_S)

    def kill(self) -> None:
        """Whatever is left of it."""
        if self.launcher.poll() is None:
            os.killpg(self.launcher.pid, signal.SIGKILL)
            self.launcher.wait()


def _below(process: int) -> Iterator[int]:
    """All processes that it has started, by any of its threads, which come and go."""
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _below(child)


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
