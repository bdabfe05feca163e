"""Handlers that wait in sessions of their own: in local mode, and on a standalone cluster of two executors.

python -m tests.bench.calls_elsewhere               both, in turn
python -m tests.bench.calls_elsewhere MASTER        prints the calls per second there
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from share_spark.spark.session import build_session, end_session
from tests.bench.workloads import Scratch
from tests.support.cluster import running_cluster

ROOT = Path(__file__).parents[2]
MODULE = "tests.bench.calls_elsewhere"
CONF = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def in_turn() -> tuple[float, float]:
    """Calls per second (in local mode, on a cluster)."""
    with running_cluster() as cluster:
        return rate_at("local[2]"), rate_at(cluster.master)


def rate_at(master: str) -> float:
    """Measures in a process of its own, as a process has one session."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", MODULE, master]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def main(masters: list[str]) -> None:
    if not masters:
        beside_driver, on_executors = in_turn()
        print(f"local {beside_driver:,.0f}, cluster {on_executors:,.0f} calls/s: {on_executors / beside_driver:.2f}")
        return
    from tests.bench.waiting import calls_of_a_group  # it imports this module

    scratch = Scratch()
    spark = build_session("calls", masters[0], CONF)
    try:
        print(calls_of_a_group(spark, Path(scratch.fresh("group"))).per_s, flush=True)
    finally:
        end_session(spark)
        scratch.close()


if __name__ == "__main__":
    main(sys.argv[1:])
