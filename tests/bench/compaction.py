"""Compaction: what it costs a running engine, and whether it keeps the state tables small.

(a) Micro-batches beside compactions in a process of their own, back to back, against the same alone. (b) The same
averaged over an hour with one compaction in it, its process's start included. (c) Files and bytes of the state tables
over thousands of micro-batches with the scheduled job between them, without the days of retention.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from share_spark import build_session
from share_spark.delta.location import Location
from share_spark.engine.progress import MicroBatchProgress
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from tests.bench.fixed_cost import run_ours
from tests.bench.harness import Measure, compare, report, say
from tests.bench.workloads import Scratch, accept_all, create_topic, fill, share_group

GROWTH = int(os.environ.get("BENCH_BATCHES", "5000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
BESIDE = 60
PARTITIONS = 4
PER_TRIGGER = 10 * PARTITIONS
READINGS = 10
HOUR_S = 3_600
SEGMENT = max(1, min(500, GROWTH // (2 * READINGS)))


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; are the goals met?"""
    scratch = Scratch()
    topic = f"compaction-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS, BESIDE * PER_TRIGGER, 100)
    measures = beside_an_engine(spark, bootstrap, topic, scratch)
    measures += growth(spark, bootstrap, scratch)
    met = report("compaction", "Compaction", measures)
    scratch.close()
    return met


# -------------------------------------------------------------------------------------- beside a running engine


def beside_an_engine(spark: SparkSession, bootstrap: str, topic: str, scratch: Scratch) -> list[Measure]:
    """Alone and beside, in turn, on one state location."""
    state = scratch.fresh("state")
    say(f"compaction: {BESIDE} micro-batches of {PER_TRIGGER} records, alone and beside it, {ROUNDS} rounds in turn")
    micro_batches(spark, bootstrap, topic, state)  # warms up, and makes the tables
    alone: list[float] = []
    beside: list[float] = []
    seconds: list[float] = []
    for number in range(ROUNDS):
        alone += micro_batches(spark, bootstrap, topic, state)
        with compactions(state, seconds):
            beside += micro_batches(spark, bootstrap, topic, state)
        say(f"  round {number + 1}: alone {statistics.median(alone):.3f} s, beside {statistics.median(beside):.3f} s")
    slower = compare(
        "micro-batch beside it / alone, seconds", statistics.median(beside), statistics.median(alone), "<= 2"
    )
    busy = max(seconds)
    hour = compare(
        "the same over an hour with one of them in it", HOUR_S + busy * (slower.ratio or 1) - busy, HOUR_S, "<= 1.1"
    )
    return [slower, hour, fact("  seconds of one, process start included", busy)]


def micro_batches(spark: SparkSession, bootstrap: str, topic: str, state: str) -> list[float]:
    """Seconds of each warm micro-batch of a new group."""
    return run_ours(spark, bootstrap, topic, state)[0]


@contextmanager
def compactions(state: str, seconds: list[float]) -> Iterator[None]:
    """Compactions in a process of their own, back to back; the first one is over when this begins, and timed."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "tests.bench.compaction", state]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    while "compacted" not in (line := process.stdout.readline()):  # VACUUM prints, too
        assert line, f"the process that compacts has died: {process.wait(60)}"
    seconds.append(time.perf_counter() - started)
    try:
        yield
    finally:
        process.stdin.close()
        output = process.stdout.read()
        process.wait(120)
    say(f"    beside it: {output.count('compacted')} compactions")


def wait_for_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def keep_compacting(state: str) -> None:
    """The other process: until its standard input is closed."""
    over = threading.Event()
    threading.Thread(target=wait_for_end, args=(over,), daemon=True).start()
    spark = build_session("share-spark-bench-compaction", extra_conf={"spark.driver.memory": "1g"})
    while not over.is_set():
        compact(spark, CompactionOrder(state=Location.parse(state), vacuum_retention_ms=1_000 * HOUR_S))
        sys.stdout.write("compacted\n")
        sys.stdout.flush()
    spark.stop()


# ----------------------------------------------------------------------------------------------------- growth


class Reading(NamedTuple):
    """Files and bytes of both state tables: data, and Delta's logs."""

    batches: int
    files: int
    log_files: int
    bytes: int


def growth(spark: SparkSession, bootstrap: str, scratch: Scratch) -> list[Measure]:
    """The job runs ten times on the way, between micro-batches: nothing is in flight that VACUUM could take."""
    state, topic = scratch.fresh("state"), f"growth-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS, GROWTH * PER_TRIGGER, 100)
    say(f"growth: {GROWTH} micro-batches, a compaction after every {GROWTH // READINGS}")
    titles = ("files", "after", "log files", "after", "bytes", "after")
    say(f"  {'micro-batches':>13}" + "".join(f" {title:>12}" for title in titles))
    readings: list[Reading] = []
    order = CompactionOrder(state=Location.parse(state), idle_ms=60_000, history_retention_ms=1, vacuum_retention_ms=0)

    def note(progress: MicroBatchProgress) -> None:
        if (progress.batch_id + 1) % (GROWTH // READINGS) == 0:
            before = reading(state, progress.batch_id + 1)
            compact(spark, order)
            readings.append(reading(state, progress.batch_id + 1))
            say(curve_line(before, readings[-1]))

    group = share_group(spark, bootstrap, topic, state, accept_all, records_per_trigger=PER_TRIGGER)
    group = group.option("share.coordinator.snapshot.update.records.per.snapshot", SEGMENT).option(
        "state.refresh", "1d"
    )
    group.listen(note).start().awaitTermination()
    return [
        _of_halves("files", [one.files + one.log_files for one in readings]),
        _of_halves("bytes", [one.bytes for one in readings]),
    ]


def _of_halves(name: str, sizes: Sequence[int]) -> Measure:
    """Peaks: both curves are sawtooth, as Delta's log goes back to a checkpoint every 200 commits."""
    half = len(sizes) // 2
    return compare(f"most {name} in the second half / in the first", max(sizes[half:]), max(sizes[:half]), "<= 1.2")


def reading(state: str, batches: int) -> Reading:
    """From the file system, checksums beside the files left out."""
    files = [path for path in Path(state).rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    tables = [path for path in files if "_checkpoints" not in path.parts]
    logs = sum("_delta_log" in path.parts for path in tables)
    return Reading(batches, len(tables) - logs, logs, sum(path.stat().st_size for path in tables))


def curve_line(before: Reading, after: Reading) -> str:
    """Of one compaction."""
    pairs = zip(before[1:], after[1:], strict=True)
    return f"  {before.batches:>13,}" + "".join(f" {old:>12,} {new:>12,}" for old, new in pairs)


def fact(measure: str, value: float) -> Measure:
    """A number for information."""
    return Measure(measure=measure, ours=round(value, 3), peer=None, ratio=None, goal=None, met=None)


if __name__ == "__main__":
    keep_compacting(sys.argv[1])
