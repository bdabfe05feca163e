"""Fixed cost of a micro-batch: 10 records in each of 4 share-partitions, a trivial handler.

The peer is plain Structured Streaming that reads the same records into the same function and makes one blind Delta
append per batch, into a table with the properties of ours. Its times are Spark's own ``triggerExecution`` of each
micro-batch. Ours, of which Spark's trigger has several, are those from the end of one to the end of the next.
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from share_spark.engine.progress import MicroBatchProgress
from tests.bench.harness import Measure, compare, report, say
from tests.bench.workloads import Scratch, accept_all, create_topic, fill, plain_function, plain_source, share_group

BATCHES = int(os.environ.get("BENCH_BATCHES", "60"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
PARTITIONS = 4
PER_TRIGGER = 10 * PARTITIONS
WARM_UP = 10


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met?"""
    scratch = Scratch()
    topic = f"fixed-cost-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS, BATCHES * PER_TRIGGER, 100)
    say(f"fixed cost: {BATCHES} micro-batches of {PER_TRIGGER} records, {WARM_UP} to warm up, {ROUNDS} rounds in turn")
    ours: list[float] = []
    plain: list[float] = []
    progress: list[MicroBatchProgress] = []
    for number in range(ROUNDS):
        seconds, seen = run_ours(spark, bootstrap, topic, scratch.fresh("state"))
        ours += seconds
        progress += seen
        plain += run_plain_with_append(spark, bootstrap, topic, scratch)
        say(f"  round {number + 1}: ours {statistics.median(ours):.3f} s, plain {statistics.median(plain):.3f} s")
    measure = compare(
        "micro-batch, seconds / plain with one append", statistics.median(ours), statistics.median(plain), "<= 0.6"
    )
    met = report("fixed_cost", "Fixed cost of a micro-batch, seconds", [measure, *_steps(progress)])
    scratch.close()
    return met


def run_ours(
    spark: SparkSession, bootstrap: str, topic: str, state: str
) -> tuple[list[float], list[MicroBatchProgress]]:
    """Seconds of each warm micro-batch, and what they did."""
    progress: list[MicroBatchProgress] = []
    ends: list[float] = []
    group = share_group(spark, bootstrap, topic, state, accept_all, records_per_trigger=PER_TRIGGER)
    group.listen(progress.append).listen(lambda _: ends.append(time.perf_counter())).start().awaitTermination()
    warm = [number for number, one in enumerate(progress) if one.acquired][WARM_UP:]
    return [ends[number] - ends[number - 1] for number in warm], [progress[number] for number in warm]


def run_plain_with_append(spark: SparkSession, bootstrap: str, topic: str, scratch: Scratch) -> list[float]:
    """Seconds of each warm micro-batch of the peer."""
    table = scratch.fresh("peer")
    spark.sql(
        f"CREATE TABLE delta.`{table}` (ack tinyint) USING DELTA TBLPROPERTIES "
        "('delta.checkpointInterval' = '200', 'delta.dataSkippingNumIndexedCols' = '0')"
    )

    def append(frame: DataFrame, _batch_id: int) -> None:
        handled = frame.select("value").mapInArrow(plain_function, "ack tinyint")
        handled.coalesce(1).write.format("delta").mode("append").save(table)

    query = (
        plain_source(spark, bootstrap, topic, PER_TRIGGER)
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", scratch.fresh("checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return _trigger_seconds(query)


def _trigger_seconds(query: Any) -> list[float]:
    """Seconds per micro-batch as Spark counted them, warm-up left out."""
    found = [
        row["durationMs"]["triggerExecution"] / 1_000 for row in query.recentProgress if "addBatch" in row["durationMs"]
    ]
    return found[WARM_UP:]


def _steps(progress: Sequence[MicroBatchProgress]) -> list[Measure]:
    names = list(dict.fromkeys(name for one in progress for name in one.steps))
    return [
        Measure(
            measure=f"  of which {name}",
            ours=round(statistics.median(one.steps.get(name, 0.0) for one in progress), 4),
            peer=None,
            ratio=None,
            goal=None,
            met=None,
        )
        for name in names
    ]
