"""The end of a Python worker, with a daemon that is as Spark's, as far as it matters here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE_S = 20.0
ROOT = Path(__file__).parents[3]

DAEMON = """
import os, signal, sys
from pathlib import Path
from share_spark.spark.worker_end import at_worker_end, begin_calls

directory = Path(sys.argv[1])

def note(what):
    with (directory / "noted").open("a") as file:
        file.write(what + "\\n")

def close():
    note("close")

def worker_main(infile, outfile):
    task = sys.stdin.readline().strip()
    if not task:
        sys.exit(-1)
    begin_calls()
    at_worker_end(close)
    note(task)
    if task == "hang":
        signal.pause()

def worker():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        worker_main(None, None)
    except SystemExit as end:
        return end.code
    return 0

while not worker():
    pass
os._exit(0)
"""

ALONE = """
import sys
from pathlib import Path
from share_spark.spark.worker_end import at_worker_end

at_worker_end(lambda: (Path(sys.argv[1]) / "noted").write_text("close\\n"))
"""


def started(program: str, directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True)


def noted(directory: Path) -> list[str]:
    file = directory / "noted"
    return file.read_text().split() if file.exists() else []


def does(worker: subprocess.Popen[str], directory: Path, *tasks: str) -> None:
    """Have it do the tasks, and wait until the last one has begun."""
    assert worker.stdin is not None
    worker.stdin.write("".join(f"{task}\n" for task in tasks))
    worker.stdin.flush()
    deadline = time.monotonic() + DEADLINE_S
    while noted(directory) != [*tasks]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_whose_connection_ends_runs_them_once(tmp_path: Path) -> None:
    with started(DAEMON, tmp_path) as worker:
        does(worker, tmp_path, "one", "two")
        worker.communicate(timeout=DEADLINE_S)
    assert (worker.returncode, noted(tmp_path)) == (0, ["one", "two", "close"])


@pytest.mark.parametrize("last", ["two", "hang"])
def test_a_worker_that_is_hung_up_runs_them_between_tasks_only(tmp_path: Path, last: str) -> None:
    with started(DAEMON, tmp_path) as worker:
        does(worker, tmp_path, "one", last)
        if last != "hang":
            until_idle(worker.pid)
        os.kill(worker.pid, signal.SIGHUP)
        assert worker.wait(DEADLINE_S) == -signal.SIGHUP
    assert noted(tmp_path) == ["one", last, *(["close"] if last != "hang" else [])]


def until_idle(pid: int) -> None:
    """Wait until it handles SIGHUP."""
    deadline = time.monotonic() + DEADLINE_S
    while not _caught(pid) & 1 << (signal.SIGHUP - 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _caught(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("SigCgt:")), 16)


def test_without_a_daemon_they_run_at_the_end_of_the_program(tmp_path: Path) -> None:
    with started(ALONE, tmp_path) as worker:
        assert worker.wait(DEADLINE_S) == 0
    assert noted(tmp_path) == ["close"]
