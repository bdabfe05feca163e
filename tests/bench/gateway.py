"""The front door: unmodified share consumers (librdkafka) on ``share-spark gateway``, in front of a Kafka or of a Delta
table, against the same consumers on that Kafka's own share groups.

Each consumer is a process of its own. Their rate is that from the first record at one of them to the last one. What
Kafka's own groups acknowledge is not on a disk when they answer; with ours it is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from share_spark import EmbeddedTopicLog
from share_spark.topics.topic_producer import Message
from tests.bench.harness import Measure, compare, report, say
from tests.bench.workloads import Scratch, create_topic, fill, share_group_from_earliest

RECORDS = int(os.environ.get("BENCH_RECORDS", "2000000"))
MOST_S = 120.0
PARTITIONS, COMMITS, APPENDED = 4, 500, 200_000
CONSUMERS = (1, 8)
MOST_BUSY_S = 4.0
"""Processor time of the gateway for a million records."""

_TICKS = (11, 12)
"""Places in /proc/<pid>/stat, behind the name: the ticks of the processor (user, system)."""

CONSUMER = """
import json, sys, time
from confluent_kafka import ShareConsumer

bootstrap, group, topic, end, commits = *sys.argv[1:4], float(sys.argv[4]), int(sys.argv[5])
consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})
consumer.subscribe([topic])
first = last = None
records, waits = 0, []
while time.time() < min(end, end if last is None else last + 3) and len(waits) < (commits or 1):
    found = [message for message in consumer.poll(0.5) if message.error() is None]
    if not found:
        continue
    last = time.time()
    first, records = first or last, records + len(found)
    if commits:
        consumer.commit_sync()
        waits.append(time.time() - last)
print(json.dumps({"first": first, "last": last, "records": records, "waits": waits}), flush=True)
consumer.close()
"""


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report."""
    scratch = Scratch()
    topic = f"door-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS, RECORDS, 100)
    table = _table(spark, Path(scratch.fresh("topics")), topic)
    say(f"gateway: {RECORDS:,} records of 100 bytes, {PARTITIONS} partitions")
    theirs = {count: consumed(bootstrap, kafka_group(bootstrap), topic, count) for count in CONSUMERS}
    say(f"  Kafka's own share group: {[str(one) for one in theirs.values()]}")
    ours: dict[tuple[str, int], Consumed] = {}
    for name, place in {"Kafka": ["--bootstrap-server", bootstrap], "a table": ["--topic-table", table]}.items():
        for count in CONSUMERS:
            with gateway(place, scratch.fresh("state")) as door:
                ours[name, count] = consumed(door.address, "door", topic, count, door.process.pid)
            say(f"  gateway, topics in {name}, {count} consumers: {ours[name, count]}")
    began = time.time()
    with gateway(["--topic-table", table], scratch.fresh("state")) as door:
        first, waits = committed(door.address, "door", topic)
        start_s = first - began
    _, kafka_waits = committed(bootstrap, kafka_group(bootstrap), topic)
    scratch.close()
    median = statistics.median
    measures = [
        *(_rate(at, one, theirs[at[1]]) for at, one in ours.items()),
        *(_busy(at, one) for at, one in ours.items()),
        compare("commit_sync, s, against Kafka's own: median", median(waits), median(kafka_waits)),
        compare("the same: 99 of 100", _p99(waits), _p99(kafka_waits)),
        compare("the same, against 4 ms: median", median(waits), 0.004, "<= 1"),
        compare("the same, against 15 ms: 99 of 100", _p99(waits), 0.015, "<= 1"),
        compare("start of the gateway to the first record at a consumer, s, against 2 s", start_s, 2.0, "<= 1"),
    ]
    return report("gateway", "Share consumers of Kafka on a gateway", measures)


class Consumed(NamedTuple):
    """Records a second, and the processor time that the gateway takes for a million of them."""

    per_s: float
    busy_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.per_s:,.0f} records/s, {self.busy_s:.1f} s of processor time a million"


class Door(NamedTuple):
    """A running gateway."""

    address: str
    process: subprocess.Popen[str]


def _rate(at: tuple[str, int], ours: Consumed, theirs: Consumed) -> Measure:
    text = f"records/s, {at[1]} consumers, topics in {at[0]}, against Kafka's own"
    return compare(text, ours.per_s, theirs.per_s, ">= 0.5" if at[1] == 1 else ">= 1")


def _busy(at: tuple[str, int], ours: Consumed) -> Measure:
    text = f"processor time for a million, {at[1]} consumers, topics in {at[0]}, s, against {MOST_BUSY_S:.0f} s"
    return compare(text, ours.busy_s, MOST_BUSY_S, "<= 1")


def _p99(waits: list[float]) -> float:
    return sorted(waits)[int(0.99 * len(waits))]


@contextmanager
def gateway(topics: list[str], state: str) -> Iterator[Door]:
    """Run a gateway in a process of its own."""
    command = [sys.executable, "-m", "share_spark.cli", "gateway", *topics, "--state", state, "--starting", "earliest"]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield Door(line.partition("connect to ")[2].partition(",")[0], process)
    finally:
        process.terminate()
        process.wait(30)


def kafka_group(bootstrap: str) -> str:
    """Make a share group of Kafka's own that begins at the log start."""
    group = f"peer-{uuid.uuid4().hex[:8]}"
    share_group_from_earliest(bootstrap, group)
    return group


def consumed(bootstrap: str, group: str, topic: str, consumers: int, process: int | None = None) -> Consumed:
    """Consume with so many processes. ``process``: the gateway."""
    before_s = _processor_s(process)
    running = [_consumer(bootstrap, group, topic, MOST_S, 0) for _ in range(consumers)]
    found = [json.loads(one.communicate(timeout=2 * MOST_S)[0]) for one in running]
    busy_s, records = _processor_s(process) - before_s, sum(one["records"] for one in found)
    assert records >= RECORDS, f"{records:,} of {RECORDS:,} records have come"
    seen = [one for one in found if one["records"]]
    seconds = max(one["last"] for one in seen) - min(one["first"] for one in seen)
    return Consumed(records / seconds, busy_s / records * 1e6)


def committed(bootstrap: str, group: str, topic: str) -> tuple[float, list[float]]:
    """Commit after each poll; return the time of the first record, and the seconds of each commit."""
    found = json.loads(_consumer(bootstrap, group, topic, MOST_S, COMMITS).communicate(timeout=2 * MOST_S)[0])
    return found["first"], found["waits"]


def _consumer(bootstrap: str, group: str, topic: str, most_s: float, commits: int) -> subprocess.Popen[str]:
    numbers = [str(time.time() + most_s), str(commits)]
    command = [sys.executable, "-c", CONSUMER, bootstrap, group, topic, *numbers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _processor_s(process: int | None) -> float:
    """Return the processor time that it has used until now; 0 for None."""
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[at]) for at in _TICKS) / os.sysconf("SC_CLK_TCK")


def _table(spark: SparkSession, place: Path, topic: str) -> str:
    """Make the same records in a Delta table, in appends as a busy producer makes them."""
    log = EmbeddedTopicLog(spark, str(place))
    log.create_topic(topic, PARTITIONS)
    for begin in range(0, RECORDS, APPENDED):
        records = range(begin, min(begin + APPENDED, RECORDS))
        log.append(topic, [Message(b"x" * 100, partition=number % PARTITIONS) for number in records])
    return str(place)
