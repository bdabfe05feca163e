"""Calls that crashes cost: engines, workers and companions are killed again and again; calls per record.

One program has two queries, a handler of 2 ms in Spark's workers and one that waits for 1 s, with output rows. It is
killed 30 times. Before each second time its companion is killed, and one of its workers or, in turn, the parent of all
workers: Spark's daemon, without which they outlive their engine. The handlers note each call when it begins, and when
it ends. 1 is a service that is asked once for each record, and once more for each that it refused.

A call that runs when its own process is killed has to be made again, whatever is noted where: that is the floor. In a
worker it is one call. In a companion it is each that waits, so these are counted by themselves. Those that run when the
driver is killed end in the companion, and are not made again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from share_spark import EmbeddedTopicLog
from share_spark.topics.topic_producer import Message
from tests.bench.harness import Measure, compare, report, say
from tests.bench.workloads import Scratch
from tests.support.job_process import JobProcess

KILLS = int(os.environ.get("BENCH_KILLS", "30"))
SEED = int(os.environ.get("BENCH_SEED", "1"))
RECORDS = {"works": 1_500 * KILLS, "waits": 1_000 * KILLS}
"""By handler: more than are handled before the last kill."""

WAIT_S = 300

NOTING = """
import asyncio, os, time
from share_spark import Ack

notes = {name: os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("works", "waits")}

def note(name, what, record):
    os.write(notes[name], b"%s %d\\n" % (what, int(record.value)))

def answer(name, record):
    note(name, b"ended", record)
    is_refused = int(record.value) % 100 == 50 and record.delivery_count == 1
    if is_refused:
        note(name, b"refused", record)
    return Ack.RELEASE if is_refused else Ack.ACCEPT

def works(record):
    note("works", b"began", record)
    time.sleep(0.002)
    return answer("works", record)

async def waits(record):
    note("waits", b"began", record)
    await asyncio.sleep(1)
    found = answer("waits", record)
    return (found, {"number": int(record.value)}) if found is Ack.ACCEPT else found
"""

PROGRAM = """
import os, sys
import noting
from share_spark import ShareGroup, build_session

spark, here = build_session("killed"), os.getcwd()
is_last = sys.argv[1] == "last"

def started(name, **output):
    group = ShareGroup(name, spark=spark, state=f"{here}/state").table(f"{here}/topics").subscribe(name)
    group = group.process(getattr(noting, name), **output).option("share.auto.offset.reset", "earliest")
    group = group.option("share.record.lock.duration.ms", 1_000).option("delivery.max.in.flight", 200)
    group = group.to_delta(f"{here}/sink") if output else group
    return (group.trigger(availableNow=True) if is_last else group).start()

for query in [started("works"), started("waits", output="number bigint")]:
    query.awaitTermination()
"""


def run(spark: SparkSession, _bootstrap: str) -> bool:
    """Measure and report."""
    scratch = Scratch()
    place = Path(scratch.fresh("kills"))
    log = EmbeddedTopicLog(spark, str(place / "topics"))
    for name, records in RECORDS.items():
        log.create_topic(name, 4)
        log.append(name, [Message(b"%d" % number, partition=number % 4) for number in range(records)])
    (place / "noting.py").write_text(NOTING)
    (place / "program.py").write_text(PROGRAM)
    killed = _killed(place)
    rows = spark.read.format("delta").load(str(place / "sink")).collect()
    assert sorted(row.number for row in rows) == list(range(RECORDS["waits"])), "each row once"
    texts = {"works": "of 2 ms", "waits": "async, of 1 s, with rows"}
    measures = [one for name, text in texts.items() for one in _measures(Notes.of(place / name), name, text)]
    scratch.close()
    return report("kills", f"What {KILLS} kills of engines cost, and {killed} of workers and companions", measures)


class Notes(NamedTuple):
    """What a handler has noted: calls that began, how many of them ended, and how many of these were refused. A call
    that did not end was cut by the end of its process."""

    began: int
    ended: int
    refused: int

    @classmethod
    def of(cls, file: Path) -> Notes:
        """Read them."""
        found = Counter(line.partition(b" ")[0] for line in file.read_bytes().splitlines())
        return cls(found[b"began"], found[b"ended"], found[b"refused"])


def _measures(notes: Notes, name: str, text: str) -> Iterator[Measure]:
    records, cut = RECORDS[name], notes.began - notes.ended
    say(f"  {name}: {notes.began:,} calls of {records:,} records, {notes.refused:,} refused, {cut:,} cut by a kill")
    title, wanted = f"calls, handler {text}, against records and refusals", records + notes.refused
    if name == "works":
        yield compare(title, notes.began, wanted, "<= 1.01")
        return
    yield compare(f"{title}, without {cut:,} cut", notes.ended, wanted, "<= 1.01")
    yield compare(f"{title}, all", notes.began, wanted)


def _killed(place: Path) -> int:
    """Kill, and finish the rest. Return how many workers and companions were killed."""
    rng, killed = random.Random(SEED), 0
    for kill in range(KILLS):
        job = JobProcess.start([sys.executable, "program.py", "killed"], place)
        try:
            _wait_for_calls(place, job)
            time.sleep(rng.uniform(0.2, 1.2))
            if kill % 2:
                killed += _kill_workers(job, is_parent=kill % 4 == 3)
                time.sleep(1.5)
        finally:
            job.kill()
        say(f"  kill {kill + 1}/{KILLS}, calls until now: {_calls(place / 'works'):,} and {_calls(place / 'waits'):,}")
    last = JobProcess.start([sys.executable, "program.py", "last"], place)
    assert last.end() == 0, last.output
    return killed


def _wait_for_calls(place: Path, job: JobProcess) -> None:
    """Wait until both handlers are called, if there are records left. A companion outlives its engine, but begins
    nothing then."""
    before, until = {name: _calls(place / name) for name in RECORDS}, time.monotonic() + WAIT_S
    while any(_calls(place / name) == calls < RECORDS[name] for name, calls in before.items()):
        assert job.launcher.poll() is None, job.output
        assert time.monotonic() < until, job.output
        time.sleep(0.05)


def _calls(file: Path) -> int:
    """Return how many calls have begun."""
    return file.read_bytes().count(b"began") if file.exists() else 0


def _kill_workers(job: JobProcess, *, is_parent: bool) -> int:
    """Kill the companion and one of Spark's workers, or their parent. Return how many processes these were."""
    while len(workers := job.below("share_spark.spark.worker_daemon")) < 2:
        time.sleep(0.05)
    workers = workers[:1] if is_parent else workers[1:2]
    companions = job.below("share_spark.companion.program")
    for process in [*workers, *companions]:
        os.kill(process, signal.SIGKILL)
    return len(workers) + len(companions)
