"""From produce to readable: records at a steady rate go from Kafka through a handler into a Delta table, exactly once.

The peer is plain Structured Streaming that writes the same rows with ``txnAppId`` and ``txnVersion``. A row is readable
when the commit that names its file is in the table's log; both times are of this machine's clock.

``BENCH_PARTITIONED=1``: both tables are partitioned by a date.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from share_spark import Ack, ShareGroup
from tests.bench.harness import compare, report, say
from tests.bench.workloads import Scratch, create_topic, plain_source

RATE = int(os.environ.get("BENCH_RATE", "1000"))
SECONDS = int(os.environ.get("BENCH_SECONDS", "40"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "2"))
PARTITIONED = os.environ.get("BENCH_PARTITIONED") == "1"
PARTITIONS = 4
WARM_UP_S = 10
COLUMNS = "sent_ms bigint, day date"


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met?"""
    scratch, ours, plain = Scratch(), [], []
    tables = "partitioned tables" if PARTITIONED else "plain tables"
    say(f"latency: {tables}, {RATE} records/s for {SECONDS} s, {WARM_UP_S} of them left out, {ROUNDS} rounds in turn")
    for number in range(ROUNDS):
        ours.append(run_ours(spark, bootstrap, scratch))
        plain.append(run_plain(spark, bootstrap, scratch))
        middle = [float(np.median(found)) for found in (ours[-1], plain[-1])]
        say(f"  round {number + 1}: p50 ours {middle[0]:.2f} s, plain {middle[1]:.2f} s")
    scratch.close()
    measures = [
        compare(f"p{rank}, seconds", quantile(ours, rank), quantile(plain, rank), goal)
        for rank, goal in ((50, "<= 0.25"), (99, "<= 0.35"))
    ]
    return report("latency", "From produce to readable in the sink, seconds", measures)


def quantile(rounds: list[Any], rank: int) -> float:
    """Of all rounds together."""
    return float(np.percentile(np.concatenate(rounds), rank))


def run_ours(spark: SparkSession, bootstrap: str, scratch: Scratch) -> Any:
    """Seconds of each record."""
    topic, table, today = new_topic(bootstrap), scratch.fresh("ours"), datetime.now(UTC).date()
    new_table(spark, table)

    def handle(record: Any) -> Any:
        return Ack.ACCEPT, {"sent_ms": int(record.value), "day": today}

    group = ShareGroup(f"latency-{topic}", spark=spark, state=scratch.fresh("state")).kafka(bootstrap).subscribe(topic)
    group = group.process(handle, output=COLUMNS).to_delta(table)
    query = group.option("share.auto.offset.reset", "earliest").start()
    produce(bootstrap, topic)
    query.processAllAvailable()
    query.stop()
    return latencies(Path(table))


def run_plain(spark: SparkSession, bootstrap: str, scratch: Scratch) -> Any:
    """Seconds of each record."""
    topic, table, app = new_topic(bootstrap), scratch.fresh("plain"), uuid.uuid4().hex
    new_table(spark, table)

    def append(frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS sent_ms", "current_date() AS day").coalesce(1)
        options = {"txnAppId": app, "txnVersion": str(batch_id)}
        rows.write.format("delta").mode("append").options(**options).save(table)

    writer = plain_source(spark, bootstrap, topic, None).writeStream.foreachBatch(append)
    query = writer.option("checkpointLocation", scratch.fresh("checkpoint")).start()
    produce(bootstrap, topic)
    query.processAllAvailable()
    query.stop()
    return latencies(Path(table))


def new_table(spark: SparkSession, table: str) -> None:
    """Empty."""
    spark.sql(f"CREATE TABLE delta.`{table}` ({COLUMNS}) USING DELTA {'PARTITIONED BY (day)' if PARTITIONED else ''}")


def new_topic(bootstrap: str) -> str:
    """With four partitions."""
    topic = f"latency-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    return topic


def produce(bootstrap: str, topic: str) -> None:
    """At a steady rate, in a thread that nothing else holds up; returns when all is sent."""
    thread = threading.Thread(target=_produce, args=(bootstrap, topic))
    thread.start()
    thread.join()


def _produce(bootstrap: str, topic: str) -> None:
    producer, began = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}), time.time()
    for number in range(RATE * SECONDS):
        due = began + number / RATE
        if (ahead := due - time.time()) > 0:
            time.sleep(ahead)
        producer.produce(topic, b"%d" % int(time.time() * 1_000), partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(60)


def latencies(table: Path) -> Any:
    """Seconds from the time in a row to the commit that names its file, in the order of production, without the
    warm-up."""
    found = []
    for commit in (table / "_delta_log").glob("*.json"):
        at_ms = commit.stat().st_mtime_ns / 1e6
        for line in commit.read_text().splitlines():
            if added := json.loads(line).get("add"):
                sent = pq.read_table(table / unquote(added["path"]), columns=["sent_ms"]).column(0).to_numpy()
                found.append(np.column_stack([sent, (at_ms - sent) / 1e3]))
    rows = np.concatenate(found)
    assert len(rows) == RATE * SECONDS, "each record once"
    return rows[rows[:, 0] >= rows[:, 0].min() + WARM_UP_S * 1_000, 1]
