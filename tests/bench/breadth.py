"""Breadth: what do ten thousand idle share-partitions cost the hundred that are active?

On the embedded topic log, so that what is compared is the engine: a broker with ten thousand partitions takes most of a
second to report its log ends.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

from pyspark.sql import SparkSession

from share_spark import EmbeddedTopicLog, ShareGroup
from share_spark.engine.progress import MicroBatchProgress
from tests.bench.harness import compare, report, say
from tests.bench.workloads import UNLIMITED, Scratch, accept_all

ALL = int(os.environ.get("BENCH_BREADTH", "10000"))
ACTIVE = 100
BATCHES = 20
WARM_UP = 4


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met?"""
    scratch = Scratch()
    say(f"breadth: {ACTIVE} active share-partitions, alone and among {ALL:,}; {BATCHES} micro-batches")
    alone, among = (_micro_batches(spark, scratch, partitions) for partitions in (ACTIVE, ALL))
    title = f"{ACTIVE} active among {ALL:,} / alone, seconds"
    measures = [
        compare(title, _median(among, ""), _median(alone, ""), "<= 2"),
        compare(f"{title}, without the delivery", _median(among, "deliver"), _median(alone, "deliver"), "<= 2"),
    ]
    met = report("breadth", "Breadth", measures)
    scratch.close()
    return met


def _median(progress: Sequence[MicroBatchProgress], without: str) -> float:
    """Median seconds of a warm micro-batch, one step left out."""
    return statistics.median(sum(one.steps.values()) - one.steps.get(without, 0.0) for one in progress[WARM_UP:])


def _micro_batches(spark: SparkSession, scratch: Scratch, partitions: int) -> list[MicroBatchProgress]:
    """The micro-batches of a run over ``partitions`` share-partitions, ACTIVE of them with records."""
    topics = scratch.fresh("topics")
    log = EmbeddedTopicLog(spark, topics)
    log.create_topic("wide", partitions)
    rows = [(n % ACTIVE, str(n).encode()) for n in range(ACTIVE * BATCHES)]
    log.append("wide", spark.createDataFrame(rows, "partition int, value binary"))
    progress: list[MicroBatchProgress] = []
    query = (
        ShareGroup("breadth", spark=spark, state=scratch.fresh("state"))
        .table(topics)
        .subscribe("wide")
        .process(accept_all)
        .option("share.auto.offset.reset", "earliest")
        .option("share.partition.max.record.locks", UNLIMITED)
        .option("max.records.per.trigger", ACTIVE)
        .trigger(availableNow=True)
        .listen(progress.append)
        .start()
    )
    query.awaitTermination()
    return [one for one in progress if one.acquired == ACTIVE]
