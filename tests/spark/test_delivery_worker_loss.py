"""Handlers that kill their own worker, or make Spark repeat a whole stage: each record is handled at most once per
delivery, and the work goes on.

The sessions are in processes of their own, because their masters differ from that of all other tests. Calls are counted
outside Spark, in a file that the handler writes and syncs before it does anything else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import glob, json, os, signal, sys
from pyspark.sql import functions as F
from share_spark.process.delivery import deliver
from share_spark.process.handlers import as_handler
from share_spark.session import build_session

master, calls, scratch = sys.argv[1:]

def note(record):
    with open(calls, "a") as file:
        print(record.delivery_count, record.offset, file=file, flush=True)
        os.fsync(file.fileno())

def kill_worker(record):
    note(record)
    if record.offset == 25 and record.delivery_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)

def lose_shuffle(record):
    note(record)
    for path in glob.glob(scratch + "/**/shuffle_*", recursive=True):
        os.remove(path)

def acquired(delivery_count):
    return spark.range(0, 60, 1, 3).selectExpr(
        "'orders' topic", "0 partition", "id offset", "current_timestamp() timestamp", "cast(null as binary) key",
        "cast('v' as binary) value", "cast(null as array<struct<key:string,value:binary>>) headers",
        f"{delivery_count} delivery_count")

def told(result):
    errors = [list(error) for acks in result.partitions.values() for error in acks.errors]
    return {"lost": result.lost, "accepted": result.accepted, "lost_records": result.lost_records, "errors": errors}

spark = build_session("worker loss", master, {"spark.executor.memory": "512m", "spark.local.dir": scratch})
"""

TWO_DELIVERIES = """
print("RESULT", json.dumps([told(deliver(acquired(count), as_handler(kill_worker))) for count in (1, 2)]))
spark.stop()
"""

AFTER_A_SHUFFLE = """
print("RESULT", json.dumps([told(deliver(acquired(1).repartition(3, "offset"), as_handler(lose_shuffle)))]))
spark.stop()
"""

Told = list[dict[str, Any]]
Calls = Counter[tuple[int, int]]


def run(master: str, steps: str, directory: Path) -> tuple[Told, Calls]:
    """What the deliveries of a program said, and how often the handler was called per delivery count and offset."""
    program, calls, scratch = directory / "program.py", directory / "calls", directory / "scratch"
    program.write_text(PROGRAM + steps)
    command = [sys.executable, str(program), master, str(calls), str(scratch)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=180)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, done.stderr[-3000:]
    counted = Counter(tuple(map(int, call.split())) for call in calls.read_text().splitlines())
    return json.loads(line.removeprefix("RESULT ")), counted  # type: ignore[return-value]


@pytest.mark.slow
def test_on_a_cluster_the_records_of_a_lost_worker_are_told(tmp_path: Path) -> None:
    (killed, healthy), calls = run("local-cluster[2,1,1024]", TWO_DELIVERIES, tmp_path)
    assert killed == {"lost": False, "accepted": 40, "lost_records": 20, "errors": [[20, 39, "worker lost"]]}
    assert healthy == {"lost": False, "accepted": 60, "lost_records": 0, "errors": []}
    assert calls[1, 25] == 1
    assert set(calls.values()) == {1}


@pytest.mark.slow
def test_where_spark_runs_a_task_once_the_whole_delivery_is_lost(tmp_path: Path) -> None:
    (killed, healthy), calls = run("local[2]", TWO_DELIVERIES, tmp_path)
    assert killed == {"lost": True, "accepted": 0, "lost_records": 0, "errors": []}
    assert healthy == {"lost": False, "accepted": 60, "lost_records": 0, "errors": []}
    assert calls[1, 25] == 1
    assert set(calls.values()) == {1}


@pytest.mark.slow
def test_the_repeat_of_a_stage_calls_nothing(tmp_path: Path) -> None:
    """Tasks of the second stage attempt have attempt number 0 again; a record may be in two tasks' hands."""
    (result,), calls = run("local[1,4]", AFTER_A_SHUFFLE, tmp_path)
    assert {error for _, _, error in result["errors"]} == {"worker lost"}
    assert result["accepted"] + result["lost_records"] == 60
    assert result["accepted"] == len(calls) < 60
    assert set(calls.values()) == {1}
