"""History: does a micro-batch get slower the longer a group runs? Five thousand of them, segments rolling and pruned on
the way."""

from __future__ import annotations

import os
import statistics
import uuid

from pyspark.sql import SparkSession

from share_spark.engine.progress import MicroBatchProgress
from tests.bench.harness import compare, report, say
from tests.bench.workloads import Scratch, accept_all, create_topic, fill, share_group

BATCHES = int(os.environ.get("BENCH_HISTORY", "5000"))
WINDOW = min(100, BATCHES // 4)
WARM_UP = min(50, BATCHES // 10)
PER_TRIGGER = 4


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met?"""
    scratch = Scratch()
    topic = f"history-{uuid.uuid4().hex[:8]}"
    total = BATCHES + WARM_UP + WINDOW
    create_topic(bootstrap, topic, 4)
    fill(bootstrap, topic, 4, total * PER_TRIGGER, 100)
    say(f"history: {total} micro-batches of {PER_TRIGGER} records")
    seconds: list[float] = []

    def note(progress: MicroBatchProgress) -> None:
        seconds.append(sum(progress.steps.values()))
        if len(seconds) % 250 == 0:
            say(f"  {len(seconds)} micro-batches, the last {WINDOW}: {statistics.median(seconds[-WINDOW:]):.3f} s")

    group = share_group(spark, bootstrap, topic, scratch.fresh("state"), accept_all, records_per_trigger=PER_TRIGGER)
    group.listen(note).start().awaitTermination()
    early = statistics.median(seconds[WARM_UP : WARM_UP + WINDOW])
    late = statistics.median(seconds[BATCHES : BATCHES + WINDOW])
    measure = compare(f"micro-batch after {BATCHES:,} / the first {WINDOW} warm ones, seconds", late, early, "<= 1.1")
    met = report("history", "History", [measure])
    scratch.close()
    return met
