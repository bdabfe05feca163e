"""A Spark query that listens for share consumers, against the plain loop of ``share-spark gateway``: records/s, and the
longest wait of a slow stream of records (``BENCH_WAIT_S=600`` for ten minutes). Topics are in a Delta table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from share_spark import EmbeddedTopicLog
from share_spark.topics.topic_producer import Message
from tests.bench.harness import compare, report, say, seconds_in_turn
from tests.bench.workloads import Scratch

RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "60"))
ROUNDS, PARTITIONS, APPENDED = 3, 4, 200_000
EACH_S, LONGEST_S, MOST_S = 0.1, 1.0, 120.0
TOPIC, GROUP = "door", "listeners"

QUERY = """
import sys
from share_spark import ShareGroup, build_session

topics, state = sys.argv[1:]
spark = build_session("listening")
group = ShareGroup("listeners", spark=spark, state=state).table(topics).subscribe("door")
query = group.option("share.auto.offset.reset", "earliest").listen_on("127.0.0.1:0").start()
print("share consumers connect to", query.listensOn + ",", flush=True)
query.awaitTermination()
"""

CONSUMER = """
import json, sys, time
from confluent_kafka import ShareConsumer

address, wanted, end = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
consumer = ShareConsumer({"bootstrap.servers": address, "group.id": "listeners", "log_level": 2})
consumer.subscribe(["door"])
first = last = None
records, waits = 0, []
while records < wanted and time.time() < end:
    found = [message for message in consumer.poll(0.5) if message.error() is None]
    if not found:
        continue
    last = time.time()
    first, records = first or last, records + len(found)
    if wanted == sys.maxsize:
        sent = min(float(message.value()) for message in found)
        consumer.commit_sync()
        waits += [last - sent, time.time() - last]
print(json.dumps({"seconds": last - first, "records": records, "waits": waits}), flush=True)
consumer.close()
"""


def run(spark: SparkSession, _bootstrap: str) -> bool:
    """Measure and report."""
    scratch = Scratch()
    table = scratch.fresh("topics")
    log = EmbeddedTopicLog(spark, table)
    log.create_topic(TOPIC, PARTITIONS)
    for begin in range(0, RECORDS, APPENDED):
        log.append(
            TOPIC, [Message(b"x" * 100, partition=number % PARTITIONS) for number in range(begin, begin + APPENDED)]
        )
    say(f"listening: {RECORDS:,} records of 100 bytes, {PARTITIONS} partitions, one consumer")

    def seconds(host: Callable[..., Iterator[str]]) -> float:
        with contextmanager(host)(table, scratch.fresh("state")) as address:
            found = _consumed(address, RECORDS, MOST_S)
        assert found["records"] >= RECORDS, found
        return float(found["seconds"])

    times = seconds_in_turn({"query": lambda: seconds(_query), "loop": lambda: seconds(_loop)}, ROUNDS)
    slow = scratch.fresh("slow")
    EmbeddedTopicLog(spark, slow).create_topic(TOPIC, PARTITIONS)
    with contextmanager(_query)(slow, scratch.fresh("state")) as address, _stream(slow):
        waits = _consumed(address, sys.maxsize, WAIT_S)["waits"]
    scratch.close()
    measures = [
        compare(
            "records/s, a Spark query against the plain loop",
            RECORDS / times["query"],
            RECORDS / times["loop"],
            ">= 0.9",
        ),
        compare(f"longest of {len(waits):,} waits in {WAIT_S:.0f} s, against 1 s", max(waits), LONGEST_S, "<= 1"),
        compare("the same, median", sorted(waits)[len(waits) // 2], LONGEST_S),
    ]
    return report("listening", "Share consumers on a Spark query", measures)


def _loop(table: str, state: str) -> Iterator[str]:
    command = ["-m", "share_spark.cli", "gateway", "--topic-table", table, "--state", state, "--starting", "earliest"]
    yield from _address_of([*command, "--listen", "127.0.0.1:0"])


def _query(table: str, state: str) -> Iterator[str]:
    yield from _address_of(["-c", QUERY, table, state])


def _address_of(command: list[str]) -> Iterator[str]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "connect to " in line)
        yield line.partition("connect to ")[2].partition(",")[0].strip()
    finally:
        process.terminate()
        process.wait(60)


def _consumed(address: str, wanted: int, most_s: float) -> dict[str, list[float]]:
    command = [sys.executable, "-c", CONSUMER, address, str(wanted), str(time.time() + most_s)]
    found: dict[str, list[float]] = json.loads(subprocess.check_output(command, text=True, timeout=2 * most_s + 60))
    return found


@contextmanager
def _stream(table: str) -> Iterator[None]:
    """Append a few records again and again, with their time as value."""
    over, log = threading.Event(), EmbeddedTopicLog(None, str(Path(table)))

    def append() -> None:
        while not over.wait(EACH_S):
            now = b"%.6f" % time.time()
            log.append(TOPIC, [Message(now, partition=number) for number in range(PARTITIONS)])

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
