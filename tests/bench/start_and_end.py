"""What a query takes before its first record and after its last one, in a session that is warm: from ``start()`` to the
first call of the handler, and from the last call to the end of the query. A group that is new, and one that goes on."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from share_spark import Ack, Record, ShareGroup
from tests.bench.harness import compare, report, say
from tests.bench.workloads import Scratch, create_topic, fill

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
PARTITIONS, RECORDS, WARM_UPS = 4, 40, 2


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; are the goals met?"""
    scratch, topic = Scratch(), f"start-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    say(f"start and end: {RECORDS} records wait in Kafka, {ROUNDS} rounds")
    new, old = [], []
    state = scratch.fresh("state")
    for _ in range(WARM_UPS + ROUNDS):
        fill(bootstrap, topic, PARTITIONS, RECORDS, 100)
        new.append(_seconds(spark, bootstrap, topic, scratch, scratch.fresh("state")))
        old.append(_seconds(spark, bootstrap, topic, scratch, state))
    scratch.close()
    begins, ends = (
        [statistics.median(column) for column in zip(*found[WARM_UPS:], strict=True)] for found in (new, old)
    )
    measures = [
        compare("start() of a new group to the first call, s / 0.8 s", begins[0], 0.8, "<= 1"),
        compare("start() of a group that goes on to the first call, s / 0.8 s", ends[0], 0.8, "<= 1"),
        compare("last call to the end of the query, s / 0.3 s", ends[1], 0.3, "<= 1"),
    ]
    return report("start_and_end", "Start and end", measures)


def _seconds(spark: SparkSession, bootstrap: str, topic: str, scratch: Scratch, state: str) -> tuple[float, float]:
    """Before the first call, and after the last one."""
    calls = Path(scratch.fresh("calls"))

    def handle(record: Record) -> Ack:
        with calls.open("a") as file:
            file.write(f"{time.time()}\n")
        return Ack.ACCEPT

    group = (
        ShareGroup("start", spark=spark, state=state)
        .kafka(bootstrap)
        .subscribe(topic)
        .process(handle)
        .option("share.auto.offset.reset", "earliest")
        .trigger(availableNow=True)
    )
    began = time.time()
    group.start().awaitTermination()
    ended = time.time()
    times = sorted(map(float, calls.read_text().split()))
    return times[0] - began, ended - times[-1]
