"""Kafka's own command-line tools, unmodified."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from share_spark.spark.jars import broker_jar_paths, require_java
from tests.support.broker import QUICK

GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
PERFORMANCE = "org.apache.kafka.tools.ShareConsumerPerformance"
VERIFIABLE = "org.apache.kafka.tools.VerifiableShareConsumer"

_TIMEOUT_S = 60

_ARCHIVE = Path(tempfile.mkdtemp(prefix="share_spark-tools-")) / "classes.jsa"
"""The classes of the first tool that has ended, as the JVM keeps them: the others take half the time to start."""

atexit.register(shutil.rmtree, _ARCHIVE.parent, ignore_errors=True)
_first = threading.Lock()


class Said(NamedTuple):
    """What a tool has printed, and its exit code. ``lines``: of both outputs, without traces of exceptions."""

    lines: list[str]
    code: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def tool(name: str, bootstrap: object, *arguments: str) -> Said:
    """Run a tool to its end."""
    if _first.acquire(blocking=False):
        written = _ARCHIVE.with_suffix(".tmp")
        said = _said([*_java(f"-XX:ArchiveClassesAtExit={written}"), *_arguments(name, bootstrap, arguments)])
        if written.exists():
            written.rename(_ARCHIVE)
        return said
    return _said([*_started_fast(), *_arguments(name, bootstrap, arguments)])


def _said(command: list[str]) -> Said:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return Said(_lines(done.stdout), done.returncode)


class RunningTool:
    """A tool that runs until it is ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def wait_for(self, pattern: str) -> str:
        """Its next line with ``pattern``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines += _lines(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"{pattern!r} was not said: {self.lines}")

    def end(self) -> list[str]:
        """End it as Ctrl-C does, and return all that it has said."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=_TIMEOUT_S)
        self.lines += _lines(rest)
        return self.lines


@contextmanager
def running_tool(name: str, bootstrap: object, *arguments: str) -> Iterator[RunningTool]:
    """Start a tool; it is killed at the end if it still runs."""
    command = [*_started_fast(), *_arguments(name, bootstrap, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield RunningTool(process)
        finally:
            process.kill()


def _java(option: str) -> list[str]:
    return [require_java(), "-Xmx256m", QUICK, "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xlog:disable", option]


def _started_fast() -> list[str]:
    return _java(f"-XX:SharedArchiveFile={_ARCHIVE}" if _ARCHIVE.exists() else "-Xshare:auto")


def _arguments(name: str, bootstrap: object, arguments: tuple[str, ...]) -> list[str]:
    return ["-cp", os.pathsep.join(broker_jar_paths()), name, "--bootstrap-server", str(bootstrap), *arguments]


def _lines(printed: str) -> list[str]:
    found = (line.rstrip() for line in printed.splitlines())
    return [line for line in found if line and not re.match(r"SLF4J:|\s+at |\s+\.\.\. \d+ more", line)]
