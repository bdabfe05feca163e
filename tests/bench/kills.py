"""Calls that crashes cost: engines are killed again and again; calls per record.

The handler notes each call when it begins. 1 is a service that is asked once for each record.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from share_spark import EmbeddedTopicLog
from share_spark.topics.topic_producer import Message
from tests.bench.harness import compare, report, say
from tests.bench.workloads import Scratch
from tests.support.job_process import JobProcess

KILLS = int(os.environ.get("BENCH_KILLS", "30"))
SEED = int(os.environ.get("BENCH_SEED", "1"))
WAIT_S = 600

NOTING = """
import asyncio, os, time
from share_spark import Ack

calls = os.open("calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(record):
    os.write(calls, b"%d\\n" % int(record.value))

def sync(record):
    note(record)
    time.sleep(0.002)

async def waits(record):
    note(record)
    await asyncio.sleep(1)
"""


def run(spark: SparkSession, _bootstrap: str) -> bool:
    """Measure and report."""
    scratch = Scratch()
    measures = []
    for handler, records in (("sync", 2_000 * KILLS), ("waits", 400 * KILLS)):
        calls, found = _calls(spark, Path(scratch.fresh(handler)), handler, records)
        name = {"sync": "of 2 ms", "waits": "async, of 1 s, 500 at a time"}[handler]
        title = f"calls, handler {name}, {KILLS} engines killed, against records"
        measures.append(compare(title, calls, records, "<= 1.01"))
        say(f"  {handler}: {calls:,} calls of {records:,} records, {found:,} finished")
    scratch.close()
    return report("kills", "What crashes cost", measures)


def _calls(spark: SparkSession, place: Path, handler: str, records: int) -> tuple[int, int]:
    """Return (calls, records called at all)."""
    log = EmbeddedTopicLog(spark, str(place / "topics"))
    log.create_topic("orders", 4)
    log.append("orders", [Message(b"%d" % number, partition=number % 4) for number in range(records)])
    (place / "noting.py").write_text(NOTING)
    rng = random.Random(SEED)
    for kill in range(KILLS):
        job = _start(place, handler)
        _wait_for_a_call(place, job)
        time.sleep(rng.uniform(0.5, 3))
        job.kill()
        say(f"  {handler}: kill {kill + 1}/{KILLS}, {len(_lines(place)):,} calls")
    last = _start(place, handler, "--available-now")
    code = last.launcher.wait(WAIT_S)
    assert code == 0, last.output
    counted = Counter(_lines(place))
    return counted.total(), len(counted)


def _start(place: Path, handler: str, *more: str) -> JobProcess:
    where = ["--topic-table", str(place / "topics"), "--state", str(place / "state"), "--group", "killed"]
    what = ["--topic", "orders", "--starting", "earliest", "--handler", f"noting:{handler}"]
    settings = ["share.record.lock.duration.ms=1000", "delivery.max.in.flight=500"]
    options = [part for setting in settings for part in ("--option", setting)]
    return JobProcess.start([sys.executable, "-m", "share_spark.cli", "run", *where, *what, *options, *more], place)


def _lines(place: Path) -> list[bytes]:
    file = place / "calls"
    return file.read_bytes().splitlines() if file.exists() else []


def _wait_for_a_call(place: Path, job: JobProcess) -> None:
    before, until = len(_lines(place)), time.monotonic() + 120
    while len(_lines(place)) == before and time.monotonic() < until and job.launcher.poll() is None:
        time.sleep(0.05)
