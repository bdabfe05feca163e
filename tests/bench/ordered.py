"""What order by key costs: the same records of 1,000 keys with and without it, available-now on the real broker, for a
handler of one record and one of Arrow batches; none released, and one in a hundred released once.

A released record holds back its successors in its micro-batch; these are acquired and read again.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from share_spark import Ack, Record, arrow_handler
from share_spark.engine.progress import MicroBatchProgress
from share_spark.spark.schemas import ARROW_BYTES, ARROW_ROWS
from tests.bench.harness import Measure, compare, report, say, seconds_in_turn
from tests.bench.workloads import Scratch, create_topic, share_group

RECORDS = int(os.environ.get("BENCH_RECORDS", "400000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
PER_TRIGGER = RECORDS // 4
KEYS, PARTITIONS = 1_000, 4


def _scattered(numbers: Any) -> Any:
    """Numbers that have nothing to do with each other, or with those of others: a key that has more than its share of
    what is released takes a micro-batch for each."""
    return (numbers * 2_654_435_761 >> 13) ^ (numbers * 40_503 >> 5)


def accept(record: Record) -> Ack:
    """A handler of one record."""
    return Ack.ACCEPT if record.offset >= 0 else Ack.REJECT


def release_one_in_a_hundred(record: Record) -> Ack:
    """At the first delivery."""
    is_released = record.delivery_count == 1 and _scattered(record.offset) % 100 == 0
    return Ack.RELEASE if is_released else Ack.ACCEPT


@arrow_handler(columns=["offset", "delivery_count"])
def accept_batch(batch: pa.RecordBatch) -> Any:
    """A handler of batches."""
    return np.ones(batch.num_rows, np.int8)


@arrow_handler(columns=["offset", "delivery_count"])
def release_one_in_a_hundred_of_a_batch(batch: pa.RecordBatch) -> Any:
    """At the first delivery."""
    chosen = _scattered(batch.column("offset").to_numpy()) % 100 == 0
    return np.where(chosen & (batch.column("delivery_count").to_numpy() == 1), 2, 1).astype(np.int8)


HANDLERS = {
    "record by record": accept,
    "record by record, 1 % released once": release_one_in_a_hundred,
    "batches": accept_batch,
    "batches, 1 % released once": release_one_in_a_hundred_of_a_batch,
}


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report."""
    scratch = Scratch()
    topic = f"ordered-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    _fill(bootstrap, topic)
    state = scratch.fresh("state")
    given_back: dict[str, int] = {}

    def worked_off(name: str, handler: Any, order: str) -> None:
        progress: list[MicroBatchProgress] = []
        for setting in (ARROW_BYTES, ARROW_ROWS):  # which a delivery in order of keys sets (``large_records``)
            spark.conf.unset(setting)
        group = share_group(spark, bootstrap, topic, state, handler, records_per_trigger=PER_TRIGGER)
        query = group.option("delivery.order", order).listen(progress.append).start()
        query.awaitTermination()
        given_back[f"{name}/{order}"] = sum(one.not_entered for one in progress)

    say(f"ordered: {RECORDS:,} records of 100 bytes, {KEYS:,} keys, {PARTITIONS} partitions; {ROUNDS} rounds")
    runs = {
        f"{name}/{order}": lambda name=name, handler=handler, order=order: worked_off(name, handler, order)
        for name, handler in HANDLERS.items()
        for order in ("key", "none")
    }
    for warm_up in runs.values():
        warm_up()
    seconds = seconds_in_turn(runs, ROUNDS)
    met = report(
        "ordered",
        f"Order by key, records/s (peer: without it; {RECORDS:,} records)",
        [_measure(name, seconds) for name in HANDLERS],
        [f"given back unentered, {name}: {given_back[f'{name}/key']:,}" for name in HANDLERS],
    )
    scratch.close()
    return met


def _measure(name: str, seconds: dict[str, float]) -> Measure:
    return compare(name, RECORDS / seconds[f"{name}/key"], RECORDS / seconds[f"{name}/none"])


def _fill(bootstrap: str, topic: str) -> None:
    """Each key is in one partition, as Kafka's partitioner puts it."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
    for number in range(RECORDS):
        key = _scattered(number * 31) % KEYS
        producer.produce(topic, b"x" * 100, key=b"%d" % key, partition=key % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(120)
