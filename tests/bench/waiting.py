"""Handlers that wait: how much of the places for calls they use, against an asyncio program without records and against
``mapInArrow`` with ``asyncio.gather`` in plain Spark; the same on a cluster; and how long a record takes while others
take long.

The service is ``asyncio.sleep``, lognormal: no processor time but that of the calls themselves.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from share_spark import Ack, EmbeddedTopicLog, Record, ShareGroup
from share_spark.topics.topic_producer import Message
from tests.bench.calls_elsewhere import in_turn
from tests.bench.harness import compare, parent_of, processor_s, report, say
from tests.bench.workloads import Scratch

CALLS = int(os.environ.get("BENCH_CALLS", "1000"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
MEDIAN_S, SIGMA = 0.2, 1.0
MEAN_S = MEDIAN_S * math.exp(SIGMA**2 / 2)
WARM_UP_S, BATCH = 5.0, 500
KEYS = 10_000
FAST, SLOW_S, RATE = 1_500, 60.0, 50
THREADS, SHORT_S = 4, 0.02


def latency_s(number: int) -> float:
    """The time that the service takes for this record."""
    return random.Random(number).lognormvariate(math.log(MEDIAN_S), SIGMA)


async def ask(record: Record) -> Ack:
    """A handler of one record."""
    await asyncio.sleep(latency_s(record.offset))
    return Ack.ACCEPT


def ask_shortly(record: Record) -> Ack:
    """A handler that blocks, for a time that is shorter than a micro-batch."""
    time.sleep(SHORT_S)
    return Ack.ACCEPT


def run(spark: SparkSession, _bootstrap: str) -> bool:
    """Measure and report."""
    say(f"waiting: {CALLS} calls at a time, median {MEDIAN_S} s, mean {MEAN_S:.2f} s, {SECONDS:.0f} s each")
    scratch = Scratch()
    bare = asyncio.run(bare_calls())
    say(f"  bare asyncio: {bare}")
    ours = calls_of_a_group(spark, Path(scratch.fresh("group")))
    say(f"  share group: {ours}")
    in_order = calls_of_a_group(spark, Path(scratch.fresh("ordered")), ordered=True)
    say(f"  share group, in order of {KEYS:,} keys: {in_order}")
    short = calls_of_a_group(spark, Path(scratch.fresh("short")), ask_shortly, rate=THREADS / SHORT_S, threads=THREADS)
    say(f"  share group, {THREADS} threads with calls of {SHORT_S} s: {short}")
    beside_driver, on_executors = in_turn()
    say(f"  sessions of their own: local {beside_driver:,.0f} calls/s, cluster of two executors {on_executors:,.0f}")
    gathered = _gathered(spark)
    say(f"  mapInArrow with asyncio.gather: {gathered:,.0f} calls/s")
    none_slow = _latencies(spark, Path(scratch.fresh("fast")), slow=False)
    some_slow = _latencies(spark, Path(scratch.fresh("slow")), slow=True)
    measures = [
        compare("calls/s, against calls at a time ÷ mean latency", ours.per_s, CALLS / MEAN_S, ">= 0.85"),
        compare("calls/s, against asyncio alone", ours.per_s, bare.per_s),
        compare(
            "processor time of a call in its process, against asyncio alone, µs", ours.busy_us, bare.busy_us, "<= 2"
        ),
        compare(f"calls/s, {THREADS} threads, {SHORT_S} s, against threads ÷ latency", short.per_s, THREADS / SHORT_S),
        compare(f"calls/s in order of {KEYS:,} keys, against without order", in_order.per_s, ours.per_s),
        compare("calls/s on a cluster of two executors, against local mode", on_executors, beside_driver, ">= 0.9"),
        compare("calls/s, against mapInArrow with asyncio.gather", ours.per_s, gathered, ">= 5"),
        *(
            compare(f"send to end, {name}, 1 % take {SLOW_S:.0f} s, against none, s", some, none, "<= 1.2")
            for name, some, none in zip(("p50", "p99"), some_slow, none_slow, strict=True)
        ),
    ]
    scratch.close()
    return report("waiting", "Handlers that wait", measures)


class Speed(NamedTuple):
    """How many ended in a second, and the processor time of each in the process that makes them."""

    per_s: float
    busy_us: float

    def __str__(self) -> str:
        return f"{self.per_s:,.0f} calls/s, {self.busy_us:.1f} µs of processor time each"


async def bare_calls() -> Speed:
    """As many calls at a time, and nothing else."""
    done, end, busy_s = 0, time.monotonic() + SECONDS, time.thread_time()

    async def calls(first: int) -> None:
        nonlocal done
        number = first
        while time.monotonic() < end:
            await asyncio.sleep(latency_s(number))
            done += time.monotonic() < end
            number += CALLS

    await asyncio.gather(*(calls(number) for number in range(CALLS)))
    return Speed(done / SECONDS, (time.thread_time() - busy_s) / done * 1e6)


def calls_of_a_group(
    spark: SparkSession,
    place: Path,
    handler: Callable[[Record], object] = ask,
    *,
    rate: float = CALLS / MEAN_S,
    threads: int | None = None,
    ordered: bool = False,
) -> Speed:
    """Records that are accepted in the state, per second, after a warm-up. ``rate``: the most that could be.
    ``ordered``: in order of their keys."""
    log = EmbeddedTopicLog(spark, str(place / "topics"))
    log.create_topic("asked", 4)
    records = int(1.2 * rate * (WARM_UP_S + SECONDS))
    log.append("asked", [Message(b"", key=b"%d" % (number % KEYS), partition=number % 4) for number in range(records)])
    accepted = _Accepted()
    group = ShareGroup("asking", spark=spark, state=str(place / "state")).table(str(place / "topics"))
    group = group.subscribe("asked").process(handler, threads=threads).listen(lambda one: accepted.add(one.accepted))
    group = group.option("delivery.max.in.flight", CALLS).option("share.auto.offset.reset", "earliest")
    group = group.option("share.partition.max.record.locks", 10_000)
    query = (group.ordered_by_key() if ordered else group).start()
    try:
        accepted.wait_for(min(CALLS, records // 10))
        time.sleep(WARM_UP_S)
        before, began, busy_s = accepted.records, time.monotonic(), _companion_s()
        time.sleep(SECONDS)
        done = accepted.records - before
        return Speed(done / (time.monotonic() - began), (_companion_s() - busy_s) / done * 1e6)
    finally:
        query.stop()


def _companion_s() -> float:
    """The processor time that the companion beside this driver has used; 0 if there is none, on a cluster."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            number = int(process.name) if process.name.isdigit() else 0
            is_companion = number and b"share_spark.companion.program" in (process / "cmdline").read_bytes()
            if is_companion and parent_of(number) == os.getpid():
                return processor_s(number)
    return 0.0


class _Accepted:
    def __init__(self) -> None:
        self.records, self._changed = 0, threading.Condition()

    def add(self, records: int) -> None:
        with self._changed:
            self.records += records
            self._changed.notify_all()

    def wait_for(self, records: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.records >= records, 120)


def _gathered(spark: SparkSession) -> float:
    """Plain Spark: a batch at a time in each task, whose calls run together; the median of three jobs."""
    records = 4 * BATCH * spark.sparkContext.defaultParallelism

    def answered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        async def all_of(numbers: list[int]) -> None:
            await asyncio.gather(*(asyncio.sleep(latency_s(number)) for number in numbers))

        for batch in batches:
            asyncio.run(all_of(batch.column(0).to_pylist()))
            yield batch

    rates = []
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
    try:
        for _ in range(3):
            began = time.monotonic()
            spark.range(records).mapInArrow(answered, "id bigint").toArrow()
            rates.append(records / (time.monotonic() - began))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    return statistics.median(rates)


def _latencies(spark: SparkSession, place: Path, *, slow: bool) -> tuple[float, float]:
    """Seconds from sending a fast record to the commit of its row, p50 and p99. Records come at RATE a second."""
    log = EmbeddedTopicLog(spark, str(place / "topics"))
    log.create_topic("asked", 1)

    async def takes_its_time(record: Record) -> tuple[Ack, dict[str, object]]:
        number = int(record.value or b"")
        await asyncio.sleep(SLOW_S if slow and number % 100 == 99 else 0.05)
        return Ack.ACCEPT, {"number": number}

    group = ShareGroup("asking", spark=spark, state=str(place / "state")).table(str(place / "topics"))
    group = group.subscribe("asked").process(takes_its_time, output="number bigint").to_delta(str(place / "rows"))
    query = group.option("share.auto.offset.reset", "earliest").start()
    sent: dict[int, float] = {}
    try:
        began = time.time()
        for number in range(FAST):
            time.sleep(max(0.0, began + number / RATE - time.time()))
            sent[number] = time.time()
            log.append("asked", [Message(b"%d" % number, partition=0)])
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.format("delta").load(str(place / "rows"))
    found = rows.selectExpr("number", "unix_millis(_metadata.file_modification_time) / 1000 AS at").collect()
    waits = sorted(row.at - sent[row.number] for row in found if row.number % 100 != 99 and row.number >= FAST // 5)
    return statistics.median(waits), waits[int(0.99 * len(waits))]
