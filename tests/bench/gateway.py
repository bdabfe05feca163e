"""The front door: unmodified share consumers (librdkafka) on ``share-spark gateway``, in front of a Kafka or of a Delta
table, against the same consumers on that Kafka's own share groups.

Each consumer is a process of its own. Their rate is that from the first record at one of them to the last one. What
Kafka's own groups acknowledge is not on a disk when they answer; with ours it is.

A client gets whole record batches, 500 records of them or a little more. So what a poll brings depends on the producer:
one that is busy makes batches of thousands, others small ones. A table has none; the gateway makes them as small as a
poll, so its peer is Kafka with small batches.
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
from tests.bench.harness import Measure, compare, processor_s, report, say
from tests.bench.workloads import Scratch, create_topic, fill, share_group_from_earliest

RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
"""The records of a topic with large batches, and of the table. Topics with small ones have a quarter."""

MOST_S = 120.0
COMMITS, APPENDED = 500, 200_000
CONSUMERS = (1, 8)
MOST_BUSY_S = 4.0
"""Processor time of the gateway for a million records."""

CONSUMER = """
import json, sys, time
from confluent_kafka import ShareConsumer

bootstrap, group, topic, end, commits = *sys.argv[1:4], float(sys.argv[4]), int(sys.argv[5])
consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})
consumer.subscribe([topic])
first = last = None
records, waits, began = 0, [], time.time()
while time.time() < min(end, (last or began + 20) + 3) and len(waits) < (commits or 1):
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
    say("gateway: records of 100 bytes")
    theirs, ours = dict[Case, Consumed](), dict[Case, Consumed]()
    for topic in _TOPICS:
        create_topic(bootstrap, topic.name, topic.partitions)
        fill(bootstrap, topic.name, topic.partitions, topic.records, 100, batch=topic.batch)
        for case in (Case(topic, count) for count in CONSUMERS):
            theirs[case] = consumed(bootstrap, kafka_group(bootstrap), case)
            with gateway(["--bootstrap-server", bootstrap], scratch.fresh("state")) as door:
                ours[case] = consumed(door.address, "door", case, door.process.pid)
            say(f"  {case}: Kafka's own {theirs[case].per_s:,.0f} records/s; gateway {ours[case]}")
    peer = _TOPICS[-1]
    table = _table(spark, Path(scratch.fresh("topics")), peer._replace(records=RECORDS))
    for count in CONSUMERS:
        with gateway(["--topic-table", table], scratch.fresh("state")) as door:
            case = Case(peer._replace(is_table=True, records=RECORDS), count)
            ours[case], theirs[case] = consumed(door.address, "door", case, door.process.pid), theirs[Case(peer, count)]
        say(f"  {case}: gateway {ours[case]}")
    began = time.time()
    with gateway(["--topic-table", table], scratch.fresh("state")) as door:
        first, waits = committed(door.address, "door", peer.name)
        start_s = first - began
    _, kafka_waits = committed(bootstrap, kafka_group(bootstrap), peer.name)
    scratch.close()
    median = statistics.median
    measures = [
        *(_rate(case, one, theirs[case]) for case, one in ours.items()),
        *(_busy(case, one) for case, one in ours.items()),
        compare("commit_sync, s, against Kafka's own: median", median(waits), median(kafka_waits)),
        compare("the same: 99 of 100", _p99(waits), _p99(kafka_waits)),
        compare("the same, against 4 ms: median", median(waits), 0.004, "<= 1"),
        compare("the same, against 15 ms: 99 of 100", _p99(waits), 0.015, "<= 1"),
        compare("start of the gateway to the first record at a consumer, s, against 2 s", start_s, 2.0, "<= 1"),
    ]
    return report("gateway", "Share consumers of Kafka on a gateway", measures)


class Topic(NamedTuple):
    """A topic. ``batch``: the most records of a producer's batch, which takes a megabyte at most."""

    name: str
    partitions: int
    batch: int
    records: int
    is_table: bool = False

    @classmethod
    def of(cls, partitions: int, batch: int) -> Topic:
        """Return one with a new name."""
        records = RECORDS if batch == _LARGE else RECORDS // 4
        return cls(f"door-{uuid.uuid4().hex[:8]}", partitions, batch, records)


_LARGE, _SMALL = 10_000, 148
"""Batches as producers of librdkafka make them by default; and 16 KB, the default of Java's."""

_TOPICS = [Topic.of(partitions, batch) for batch in (_LARGE, _SMALL) for partitions in (64, 4)]


class Case(NamedTuple):
    """What is measured: so many consumers of a topic."""

    topic: Topic
    consumers: int

    def __str__(self) -> str:
        of = "in a table" if self.topic.is_table else f"batches of {self.topic.batch:,}"
        return f"{self.topic.partitions} partitions, {of}, {self.consumers} consumers"


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


def _rate(case: Case, ours: Consumed, theirs: Consumed) -> Measure:
    return compare(f"records/s, {case}", ours.per_s, theirs.per_s, ">= 0.5" if case.consumers == 1 else ">= 1")


def _busy(case: Case, ours: Consumed) -> Measure:
    return compare(f"s of processor time a million, {case}", ours.busy_s, MOST_BUSY_S, "<= 1")


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


def consumed(bootstrap: str, group: str, case: Case, process: int | None = None) -> Consumed:
    """Consume with so many processes. ``process``: the gateway."""
    before_s, wanted = _gateway_s(process), case.topic.records
    running = [_consumer(bootstrap, group, case.topic.name, MOST_S, 0) for _ in range(case.consumers)]
    found = [json.loads(one.communicate(timeout=2 * MOST_S)[0]) for one in running]
    busy_s, records = _gateway_s(process) - before_s, sum(one["records"] for one in found)
    assert records >= wanted, f"{records:,} of {wanted:,} records have come"
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


def _gateway_s(process: int | None) -> float:
    """Return the processor time of the gateway until now; 0 if there is none."""
    return 0.0 if process is None else processor_s(process)


def _table(spark: SparkSession, place: Path, topic: Topic) -> str:
    """Make the same records in a Delta table, in appends as a busy producer makes them."""
    log = EmbeddedTopicLog(spark, str(place))
    log.create_topic(topic.name, topic.partitions)
    for begin in range(0, topic.records, APPENDED):
        records = range(begin, min(begin + APPENDED, topic.records))
        log.append(topic.name, [Message(b"x" * 100, partition=number % topic.partitions) for number in records])
    return str(place)
