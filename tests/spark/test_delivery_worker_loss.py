"""Handlers that kill their own worker, or make Spark repeat a whole stage: each record is handled at most once per
delivery, one that kills costs itself an attempt, and all others are accepted in the same delivery.

The sessions are in processes of their own, because their masters differ from that of all other tests. Calls are counted
outside Spark, in a file that the handler writes and syncs before it does anything else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import glob, json, os, signal, sys, time
import pyarrow as pa
from pyspark.sql import functions as F
from tests.support.handled import handled
from share_spark.handlers.handler import Record, as_handler
from share_spark.spark.session import build_session

master, calls, scratch = sys.argv[1:]

def note(record):
    with open(calls, "a") as file:
        print(record.delivery_count, record.offset, file=file, flush=True)
        os.fsync(file.fileno())

def kill_worker(record):
    note(record)
    if record.offset in (25, 31, 32, 33, 34, 35) and record.delivery_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)

def kill_worker_of_batch(batch: pa.RecordBatch):
    for offset in batch.column("offset").to_pylist():
        note(Record("orders", 0, offset))
    if 25 in batch.column("offset").to_pylist():
        os.kill(os.getpid(), signal.SIGKILL)
    return [1] * batch.num_rows

def kill_worker_with_rows(record):
    time.sleep(0.01)
    kill_worker(record)
    return 1, {"id": record.offset}

class DiesBeforeItIsCalled:
    def __call__(self, record):
        return None
    def __reduce__(self):
        return os._exit, (1,)

def lose_shuffle(record):
    note(record)
    for path in glob.glob(scratch + "/**/shuffle_*", recursive=True):
        os.remove(path)

def acquired(delivery_count):
    return spark.range(0, 60, 1, 3).selectExpr(
        "'orders' topic", "0 partition", "id offset", "current_timestamp() timestamp", "cast(null as binary) key",
        "cast('v' as binary) value", "cast(null as array<struct<key:string,value:binary>>) headers",
        f"{delivery_count} delivery_count")

def said(result):
    errors = [list(error) for acks in result.partitions.values() for error in acks.errors]
    rows = sorted(row.id for row in result.outputs.collect()) if result.outputs is not None else []
    return {"fault": str(result.fault), "accepted": result.accepted, "lost": result.lost_records, "errors": errors,
            "released": result.released, "rows": rows, "not_entered": result.not_entered}

spark = build_session("worker loss", master, {"spark.executor.memory": "512m", "spark.local.dir": scratch})
"""

DELIVERED = """
print("RESULT", json.dumps([said(handled(acquired(1), as_handler(HANDLER)))]))
spark.stop()
"""

FEW_RUNS = """
from share_spark.delivery import deliver
deliver._MOST_RUNS = 3
"""
"""Each run of a job whose workers die takes a second, and one is like the other."""

AFTER_A_SHUFFLE = """
print("RESULT", json.dumps([said(handled(acquired(1).repartition(3, "offset"), as_handler(lose_shuffle)))]))
spark.stop()
"""

Said = list[dict[str, Any]]
Calls = Counter[tuple[int, int]]

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def run(
    master: str, steps: str, directory: Path, *, called: bool = True, settings: dict[str, str] | None = None
) -> tuple[Said, Calls]:
    """What the deliveries of a program said, and how often the handler was called per delivery count and offset."""
    program, calls, scratch = directory / "program.py", directory / "calls", directory / "scratch"
    more = json.dumps(settings or {})
    program.write_text(
        PROGRAM.replace('"spark.local.dir": scratch}', f'"spark.local.dir": scratch, **{more}}}') + steps
    )
    calls.touch()
    command = [sys.executable, str(program), master, str(calls), str(scratch)]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=180, env=ENVIRONMENT
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, done.stderr[-3000:]
    counted = Counter(tuple(map(int, call.split())) for call in calls.read_text().splitlines())
    assert bool(counted) is called
    return json.loads(line.removeprefix("RESULT ")), counted  # type: ignore[return-value]


KILLERS = [25, 31, 32, 33, 34, 35]
MASTERS = [
    pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.long),
    pytest.param("local[2]", marks=pytest.mark.long),
    "local[2,4]",
]


@pytest.mark.slow
@pytest.mark.parametrize("master", MASTERS)
def test_each_record_that_kills_its_worker_is_released_and_all_others_are_accepted(master: str, tmp_path: Path) -> None:
    """More of them in one task than Spark runs a task; in local[2] Spark runs none again, and the death of one task
    ends the job, with whatever others have in their handlers."""
    (result,), calls = run(master, DELIVERED.replace("HANDLER", "kill_worker"), tmp_path)
    assert set(calls.values()) == {1}
    assert set(calls) == {(1, offset) for offset in range(60)}
    released = {offset for first, last, _ in result["errors"] for offset in range(first, last + 1)}
    assert released >= set(KILLERS)
    assert released == set(KILLERS) or master == "local[2]"
    assert {text for _, _, text in result["errors"]} == {"worker lost"}
    assert result["accepted"] + result["released"] == 60
    assert (result["fault"], result["lost"], result["not_entered"]) == ("None", 0, 0)


@pytest.mark.long
@pytest.mark.slow
def test_output_rows_are_those_of_the_accepted_records(tmp_path: Path) -> None:
    steps = DELIVERED.replace("as_handler(HANDLER)", "as_handler(kill_worker_with_rows, output='id bigint')")
    (result,), calls = run("local[2,4]", steps, tmp_path)
    assert set(calls.values()) == {1}
    assert len(result["rows"]) == len(set(result["rows"])) == result["accepted"]
    assert not set(result["rows"]) & set(KILLERS)
    assert result["accepted"] + result["released"] + result["lost"] == 60
    assert result["accepted"] > 20


@pytest.mark.long
@pytest.mark.slow
def test_a_batch_that_kills_its_worker_is_lost_and_all_others_are_accepted(tmp_path: Path) -> None:
    (result,), calls = run("local[2,4]", DELIVERED.replace("HANDLER", "kill_worker_of_batch"), tmp_path)
    assert set(calls.values()) == {1}
    assert (result["accepted"], result["lost"]) == (40, 20)


@pytest.mark.slow
def test_workers_that_die_before_the_handler_is_called_are_a_fault_and_no_attempt(tmp_path: Path) -> None:
    steps = FEW_RUNS + DELIVERED.replace("HANDLER", "DiesBeforeItIsCalled()")
    (result,), _ = run("local[2,2]", steps, tmp_path, called=False)
    assert "its workers die before it is called" in result["fault"]
    assert (result["accepted"], result["released"], result["lost"]) == (0, 0, 0)


@pytest.mark.long
@pytest.mark.slow
def test_the_repeat_of_a_stage_calls_nothing_twice(tmp_path: Path) -> None:
    """Tasks of the second stage attempt have attempt number 0 again; a record may have been in two tasks."""
    (result,), calls = run("local[1,4]", AFTER_A_SHUFFLE, tmp_path)
    assert result["accepted"] == len(calls) == 60
    assert set(calls.values()) == {1}


@pytest.mark.long
def test_a_speculative_copy_calls_nothing_twice(tmp_path: Path) -> None:
    steps = """
from pyspark import TaskContext
def slow_in_one_task(record):
    note(record)
    time.sleep(0.4 if record.offset >= 40 else 0.001)
print("RESULT", json.dumps([said(handled(acquired(1), as_handler(slow_in_one_task)))]))
spark.stop()
"""
    settings = {"spark.speculation": "true", "spark.speculation.interval": "50ms", "spark.speculation.quantile": "0.5"}
    (result,), calls = run("local-cluster[2,1,1024]", steps, tmp_path, settings=settings)
    assert set(calls.values()) == {1}
    assert (result["accepted"], result["lost"]) == (60, 0)
