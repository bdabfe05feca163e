"""The demo's run: 336,776 flights through its handler, retries and dead letters included, against the same handler
called per row by plain Structured Streaming, which tries each flight once and keeps nothing of those that fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import SparkSession

from share_spark import EmbeddedTopicLog, ShareGroup
from tests.bench.harness import compare, report, say, seconds_in_turn
from tests.bench.workloads import Scratch

demo: Any = import_module("jobs.demo")
report_delay: Any = import_module("jobs.flight_delays").report_delay

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
MOST_S = 25


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; are the goals met?"""
    scratch = Scratch()
    topics = scratch.fresh("topics")
    log = EmbeddedTopicLog(spark, topics)
    log.create_topic(demo.TOPIC, demo.PARTITIONS)
    log.append(demo.TOPIC, demo.flights(spark))
    say(f"demo: {demo.FLIGHTS:,} flights, {ROUNDS} rounds in turn")
    runs = {
        "ours": lambda: _ours(spark, topics, scratch),
        "plain": lambda: _plain(spark, topics, scratch.fresh("checkpoint")),
    }
    for warm_up in runs.values():
        warm_up()
    seconds = seconds_in_turn(runs, ROUNDS)
    scratch.close()
    rates = {name: demo.FLIGHTS / spent for name, spent in seconds.items()}
    measures = [
        compare("records/s, ours / plain mapInPandas per row", rates["ours"], rates["plain"], ">= 0.5"),
        compare(f"seconds / {MOST_S} s", seconds["ours"], MOST_S, "<= 1"),
    ]
    return report("demo", "The demo's run", measures)


def _ours(spark: SparkSession, topics: str, scratch: Scratch) -> None:
    query = (
        ShareGroup("delays", spark=spark, state=scratch.fresh("state"))
        .table(topics)
        .subscribe(demo.TOPIC)
        .process(report_delay)
        .dead_letter(scratch.fresh("letters"))
        .option("share.auto.offset.reset", "earliest")
        .option("share.partition.max.record.locks", 100_000)
        .option("max.records.per.trigger", 50_000)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


class _Row(NamedTuple):
    """What the handler looks at."""

    value: bytes
    partition: int
    offset: int
    delivery_count: int = 1


def _handled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        rows = zip(frame["value"], frame["partition"], frame["offset"], strict=True)
        yield pd.DataFrame([_is_reported(_Row(*row)) for row in rows], columns=["good"])


def _is_reported(row: _Row) -> bool:
    try:
        return report_delay(row) is not None
    except Exception:  # noqa: BLE001 - as the engine does
        return False


def _plain(spark: SparkSession, topics: str, checkpoint: str) -> None:
    rows = spark.readStream.format("delta").load(topics).select("value", "partition", "offset")
    writer = rows.mapInPandas(_handled, "good boolean").writeStream.format("noop")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
