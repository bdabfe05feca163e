"""Short commits, whose rows stand in their note, against commits with a file: the state of one group on this machine,
four share-partitions, a hundred records acquired and the hundred before acknowledged in each commit. No Spark."""

from __future__ import annotations

import itertools
import time
from statistics import median
from typing import NamedTuple

from pyspark.sql import SparkSession

from share_spark.delta.location import Location
from share_spark.engine.step import PartitionInput
from share_spark.maintenance.background import BackgroundMaintenance
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import AcknowledgeType, AnsweredRange
from share_spark.partition import PartitionLimits
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from tests.bench.harness import compare, report, say
from tests.bench.workloads import Scratch

COMMITS, ROUNDS, PARTITIONS, EACH = 2_000, 3, 4, 100


class Costs(NamedTuple):
    """Seconds of a commit, and processor time of all threads for each of them."""

    median_s: float
    p99_s: float
    busy_s: float


def run(_spark: SparkSession, _bootstrap: str) -> bool:
    """Measure and report."""
    scratch = Scratch()
    say(f"commits: {COMMITS:,} in a loop, {ROUNDS} rounds in turn")
    found: dict[bool, list[Costs]] = {True: [], False: []}
    for round_, notes_rows in itertools.product(range(ROUNDS), found):
        found[notes_rows].append(costs(scratch.fresh("state"), notes_rows=notes_rows))
        say(f"  round {round_ + 1}/{ROUNDS} {'notes' if notes_rows else 'files'}: {found[notes_rows][-1]}")
    scratch.close()
    ours, files = (Costs(*map(median, zip(*found[notes_rows], strict=True))) for notes_rows in found)
    measures = [
        compare("a commit, s, median", ours.median_s, files.median_s, "<= 0.6"),
        compare("the same, 99 of 100", ours.p99_s, files.p99_s),
        compare("processor time, s", ours.busy_s, files.busy_s, "<= 0.6"),
    ]
    return report("commits", "Short commits against commits with a file", measures)


def costs(place: str, *, notes_rows: bool) -> Costs:
    """Make commits beside the maintenance of an engine."""
    location = Location.parse(place)
    log = GroupLog(spark=None, location=location, group_id="bench", run_id="one", notes_rows=notes_rows)
    store = DeltaShareStateStore(log=log, updates_per_snapshot=500)
    store.known_topics()
    claim = store.claim()
    store.load()
    maintenance = BackgroundMaintenance(
        spark=None, location=location, store=store, refresh_ms=10_000, retention_ms=0, log_retention_ms=30_000
    )
    maintenance.start(claim)
    began_s, waits = time.process_time(), []
    for number in range(COMMITS):
        began = time.perf_counter()
        commit(store, number)
        waits.append(time.perf_counter() - began)
    busy_s = (time.process_time() - began_s) / COMMITS
    maintenance.close()
    return Costs(median(waits), sorted(waits)[COMMITS * 99 // 100], busy_s)


def commit(store: DeltaShareStateStore, number: int) -> None:
    """Acquire records of one share-partition, and accept those that were acquired before."""
    key, end = SharePartitionKey("bench", "id of t", number % PARTITIONS), (number // PARTITIONS + 1) * EACH
    before = end - 2 * EACH
    accepted = (AnsweredRange(before, before + EACH - 1, AcknowledgeType.ACCEPT),) if before >= 0 else ()
    wanted = PartitionInput("t", 0, end, initial_offset=0, acknowledged=accepted, max_records=EACH)
    now_ms = time.time_ns() // 1_000_000
    store.advance({key: wanted}, limits=PartitionLimits(), batch_id=number, now_ms=now_ms)
    store.commit()
