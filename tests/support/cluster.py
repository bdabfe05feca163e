"""A Spark standalone cluster on this machine: a master and a worker, in processes of their own, whose applications get
executors of one core each. It ends with the block, or with this process.

    python -m tests.support.cluster                      in the foreground, until Ctrl-C
    python -m tests.support.cluster FILE [ARGUMENT ...]  submits a program to it, and ends
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from share_spark.spark.jars import pyspark_jars, require_java
from tests.support.broker import die_with_parent, free_ports, stop

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "wheel"
START_TIMEOUT_S = 90
EXECUTORS = 2


class ClusterError(RuntimeError):
    """It did not start; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster. ``state_url``: what it says of itself, as JSON."""

    master: str
    state_url: str
    directory: Path

    @property
    def log(self) -> str:
        """Of both processes."""
        return (self.directory / "cluster.log").read_text(errors="replace")

    def has_worker(self) -> bool:
        """Is one registered?"""
        try:
            with urllib.request.urlopen(self.state_url, timeout=5) as answer:
                return bool(json.load(answer)["aliveworkers"])
        except OSError:
            return False


@contextmanager
def running_cluster(cores: int = EXECUTORS) -> Iterator[Cluster]:
    """Starts it and waits for its worker. Raises ClusterError, JavaError."""
    require_java()
    directory = Path(tempfile.mkdtemp(prefix="share_spark-cluster-"))
    port, page = free_ports(2)
    cluster = Cluster(
        master=f"spark://127.0.0.1:{port}", state_url=f"http://127.0.0.1:{page}/json/", directory=directory
    )
    options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    worker = ["--host", "127.0.0.1", "--cores", str(cores), "--memory", f"{cores}g", "--webui-port", "0"]
    processes = []
    try:
        processes.append(_start(directory, "master.Master", options))
        processes.append(_start(directory, "worker.Worker", [*worker, "--work-dir", str(directory), cluster.master]))
        _wait_until_ready(cluster, processes)
        yield cluster
    finally:
        for process in reversed(processes):
            stop(process)
        shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path, role: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    with (directory / "cluster.log").open("ab") as log:
        return subprocess.Popen(
            [*die_with_parent(), str(_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
        )


def _home() -> Path:
    """pyspark's own Spark, whole but for its start scripts."""
    return pyspark_jars().parent


def _environment() -> dict[str, str]:
    here = {"SPARK_HOME": str(_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **here, "SPARK_NO_DAEMONIZE": "1"}


def _wait_until_ready(cluster: Cluster, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not cluster.has_worker():
        if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
            raise ClusterError("no cluster:\n" + "\n".join(cluster.log.splitlines()[-20:]))
        time.sleep(0.2)


def submitted(cluster: Cluster, program: Sequence[str]) -> int:
    """Run a program on it as spark-submit does, with the package as a wheel. Returns the exit code."""
    (wheel,) = WHEELS.glob("share_spark-*.whl")
    options = {
        "--master": cluster.master,
        "--executor-cores": "1",
        "--total-executor-cores": str(EXECUTORS),
        "--py-files": str(wheel),
        "--properties-file": str(ROOT / "conf" / "spark-defaults.conf"),
    }
    command = [str(_home() / "bin" / "spark-submit"), *(text for pair in options.items() for text in pair), *program]
    return subprocess.run(command, env=_environment(), check=False).returncode


def main(program: Sequence[str]) -> int:
    """SIGTERM stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with running_cluster() as cluster:
            if program:
                return submitted(cluster, program)
            print(f"Spark is ready at {cluster.master} (Ctrl-C stops it)", flush=True)
            signal.pause()
            return 0
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
