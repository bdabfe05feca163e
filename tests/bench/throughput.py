"""Throughput: a million records of 100 bytes in 4 partitions on the real broker, available-now, an Arrow handler."""

from __future__ import annotations

import os
import statistics
import time
import uuid

from confluent_kafka import ShareConsumer
from pyspark.sql import SparkSession

from share_spark.kafka.topic_log import LARGE_POLLS
from tests.bench.harness import Measure, compare, report, say, seconds_in_turn
from tests.bench.workloads import (
    Scratch,
    accept_all,
    create_topic,
    fill,
    release_some_once,
    run_plain,
    run_share_group,
    share_group_from_earliest,
)

RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
WARM_UPS = 2
"""Of each: the JVM is still compiling in the second run, ours and theirs."""

PARTITIONS = 4
OURS_PER_TRIGGER = RECORDS
TUNED = "plain, Kafka's consumer set as ours"
PLAIN_PER_TRIGGER = {"250k": RECORDS // 4, "500k": RECORDS // 2, "all": None}


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; are the goals met?"""
    scratch = Scratch()
    topic = f"throughput-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS, RECORDS, 100)
    state = scratch.fresh("state")

    delivering: list[float] = []

    def ours(handler: object, per_trigger: int) -> None:
        progress = run_share_group(spark, bootstrap, topic, state, handler, records_per_trigger=per_trigger)
        if handler is accept_all:
            delivering.append(sum(one.steps.get("deliver", 0.0) for one in progress))

    def plain(per_trigger: int | None, **options: str) -> None:
        run_plain(spark, bootstrap, topic, scratch.fresh("plain"), records_per_trigger=per_trigger, **options)

    say(f"throughput: {RECORDS:,} records of 100 bytes, {PARTITIONS} partitions; {WARM_UPS} warm-ups, {ROUNDS} rounds")
    runs = {
        "ours": lambda: ours(accept_all, OURS_PER_TRIGGER),
        **{f"plain {name}": lambda n=n: plain(n) for name, n in PLAIN_PER_TRIGGER.items()},
        TUNED: lambda: plain(None, **LARGE_POLLS),
        "ours, 5 % released once": lambda: ours(release_some_once, OURS_PER_TRIGGER),
        "share consumer": lambda: consume_share_group(bootstrap, topic, RECORDS),
    }
    for warm_up in [*runs.values()] * WARM_UPS:
        warm_up()
    seconds = seconds_in_turn(runs, ROUNDS)
    met = report(
        "throughput", f"Throughput, records/s ({RECORDS:,} records)", _measures(seconds, statistics.median(delivering))
    )
    scratch.close()
    return met


def _measures(seconds: dict[str, float], delivering: float) -> list[Measure]:
    rate = {name: RECORDS / spent for name, spent in seconds.items()}
    plain = {name: value for name, value in rate.items() if name.startswith("plain")}
    tuned = plain.pop(TUNED)
    best = max(plain, key=plain.__getitem__)
    return [
        compare(f"accept all / plain Spark at its best ({best})", rate["ours"], rate[best], ">= 1.2"),
        compare("accept all / plain Spark at our setting (plain all)", rate["ours"], rate["plain all"], ">= 1.2"),
        compare("5 % released once / plain Spark at its best", rate["ours, 5 % released once"], rate[best], ">= 0.9"),
        compare("accept all / plain Spark, its consumer set as ours", rate["ours"], tuned, ">= 0.6"),
        compare("the delivery of accept all alone / plain Spark at its best", RECORDS / delivering, rate[best]),
        compare("accept all / confluent_kafka.ShareConsumer", rate["ours"], rate["share consumer"], ">= 3"),
    ]


def consume_share_group(bootstrap: str, topic: str, records: int) -> float:
    """Kafka's own share group, one process, implicit acknowledgement; seconds from subscribe to the last record."""
    group = f"peer-{uuid.uuid4().hex[:8]}"
    share_group_from_earliest(bootstrap, group)
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    started = time.perf_counter()
    consumer.subscribe([topic])
    seen = 0
    while seen < records and time.perf_counter() - started < 300:
        seen += sum(1 for message in consumer.poll(1.0) if message.error() is None)
    spent = time.perf_counter() - started
    consumer.close()
    return spent
