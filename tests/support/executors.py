"""Executors of a cluster, as far as companions need them: processes that do nothing, and jobs with a task for each of
them, which run in this process. So tests can end executors and add others at will, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from share_spark.companion import executor_task
from share_spark.companion.executor_task import CompanionTask


@dataclass
class Executors:
    """``spark``: a session of theirs. ``settings``: of its context. ``change``: of the task, before it is sent.
    ``kept``: data of how many jobs is kept."""

    monkeypatch: pytest.MonkeyPatch
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=lambda: {"spark.driver.host": "127.0.0.1"})
    change: Callable[[CompanionTask], CompanionTask] = lambda task: task
    kept: int = 0

    @property
    def spark(self) -> Any:
        context = SimpleNamespace(
            master="spark://cluster:7077",
            defaultParallelism=2,
            getConf=lambda: self.settings,
            setJobGroup=lambda *_: None,
            cancelJobGroup=lambda *_: None,
            parallelize=lambda *_: SimpleNamespace(mapPartitions=lambda task: _Data(self, task)),
        )
        return SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=lambda _, default: default))

    def add(self, many: int = 1) -> None:
        self.running += (subprocess.Popen(["sleep", "600"]) for _ in range(many))

    def end(self, number: int = 0) -> None:
        """One is killed."""
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def run(self, task: CompanionTask) -> Iterator[str]:
        for process in self.running:
            self.monkeypatch.setattr(executor_task, "executor_pid", lambda process=process: process.pid)
            yield from self.change(task)(())

    def close(self) -> None:
        while self.running:
            self.end()
        while executor_task._started:
            executor_task._started.pop().wait(60)


@dataclass
class _Data:
    """The result of a job, as an RDD."""

    executors: Executors
    task: CompanionTask

    def collect(self) -> list[str]:
        return list(self.executors.run(self.task))

    def persist(self, _level: object) -> None:
        self.executors.kept += 1

    def unpersist(self) -> None:
        self.executors.kept -= 1


def companion_pids(directory: str) -> list[int]:
    """Processes that have a lock of a companion in this directory for temporary files open."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in sorted(pids) if pid != os.getpid() and _has_lock(pid, directory)]


def _has_lock(process: int, directory: str) -> bool:
    try:
        files = [str(file.readlink()) for file in Path(f"/proc/{process}/fd").iterdir()]
    except OSError:
        return False
    return any(file.startswith(f"{directory}/share_spark-") and file.endswith("/lock") for file in files)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def blind(task: CompanionTask) -> CompanionTask:
    """As a task does it that does not see the ledgers of the driver."""
    return replace(task, directory="/nowhere")


def mute(task: CompanionTask) -> CompanionTask:
    """As a task does it that cannot reach the driver."""
    return replace(task, address=("127.0.0.1", 1))
