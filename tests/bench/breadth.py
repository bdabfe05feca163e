"""Breadth: what do many share-partitions cost?

Idle ones: a hundred active among ten thousand, against the hundred alone; on the embedded topic log, so that what is
compared is the engine: a broker with ten thousand partitions takes most of a second to report its log ends. The same
with a fragmented window in each: there the state store alone, with acknowledgements as a delivery would bring them.

Ten thousand that are all active, against the same records in a hundred: whole micro-batches, from the end of one to
the end of the next, and the state store alone. A look at all of them. And a Kafka topic of a thousand partitions, a
record in each, against the same records in four.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Sequence

import numpy as np
from pyspark.sql import SparkSession

from share_spark import EmbeddedTopicLog, ShareGroup
from share_spark.delta.location import Location
from share_spark.engine.progress import MicroBatchProgress
from share_spark.engine.ranges import AcquiredRanges
from share_spark.engine.step import PartitionInput, PartitionOutcome
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import AnsweredRange
from share_spark.partition import PartitionLimits
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.topics.topic_producer import Message
from tests.bench.harness import compare, report, say
from tests.bench.workloads import UNLIMITED, Scratch, accept_all, create_topic, fill, share_group
from tests.support.answers import answered

ALL = int(os.environ.get("BENCH_BREADTH", "10000"))
RANGES = int(os.environ.get("BENCH_RANGES", "2000"))
ACTIVE = 100
BATCHES = 20
WARM_UP = 4
RECORDS = 100_000
"""Of a micro-batch in which all are active."""
WHOLE_BATCHES = 8
ON_KAFKA, FEW = int(os.environ.get("BENCH_PARTITIONS", "1000")), 4

_VALUE = b"x" * 100

ACCEPT, RELEASE = 1, 2


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met?"""
    scratch = Scratch()
    say(f"breadth: {ACTIVE} active share-partitions, alone and among {ALL:,}; {BATCHES} micro-batches")
    states = scratch.fresh("alone"), scratch.fresh("among")
    alone, among = (
        _micro_batches(spark, scratch, state, partitions)
        for state, partitions in zip(states, (ACTIVE, ALL), strict=True)
    )
    title = f"{ACTIVE} active among {ALL:,} / alone, seconds"
    say("  a look at all of them")
    looked_s = _seconds_of_a_look(states[1])
    say(f"  all active: {RECORDS:,} records a micro-batch")
    few, many = (Stored(spark, scratch, partitions).all_active() for partitions in (ACTIVE, ALL))
    whole_few, whole_many = (_seconds_of_whole(spark, scratch, partitions) for partitions in (ACTIVE, ALL))
    say(f"  fragmented: {RANGES:,} ranges in each window")
    fragmented = [Stored(spark, scratch, partitions).fragmented() for partitions in (ACTIVE, ALL)]
    say(f"  a Kafka topic of {ON_KAFKA:,} partitions")
    on_kafka = [_seconds_on_kafka(spark, bootstrap, scratch, partitions) for partitions in (ON_KAFKA, FEW)]
    measures = [
        compare(title, _median(among, ""), _median(alone, ""), "<= 1.5"),
        compare(f"{title}, without the delivery", _median(among, "deliver"), _median(alone, "deliver"), "<= 2"),
        compare(f"{ALL:,} all active / the same records in {ACTIVE}, seconds", whole_many, whole_few, "<= 3"),
        compare(f"{ALL:,} all active / the same records in {ACTIVE}, decide and append, s", many, few),
        compare(f"{title}, {RANGES:,} ranges in each, decide and append", fragmented[1], fragmented[0], "<= 1.5"),
        compare(f"a record in each of {ON_KAFKA:,} Kafka partitions / all in {FEW}, seconds", *on_kafka),
        compare(f"`share-spark groups --describe` of {ALL:,} share-partitions, s / 1 s", looked_s, 1.0, "<= 1"),
    ]
    met = report("breadth", "Breadth", measures)
    scratch.close()
    return met


def _median(progress: Sequence[MicroBatchProgress], without: str) -> float:
    """Median seconds of a warm micro-batch, one step left out."""
    return statistics.median(sum(one.steps.values()) - one.steps.get(without, 0.0) for one in progress[WARM_UP:])


def _micro_batches(spark: SparkSession, scratch: Scratch, state: str, partitions: int) -> list[MicroBatchProgress]:
    """The micro-batches of a run over ``partitions`` share-partitions, ACTIVE of them with records."""
    topics = scratch.fresh("topics")
    log = EmbeddedTopicLog(spark, topics)
    log.create_topic("wide", partitions)
    rows = [(n % ACTIVE, str(n).encode()) for n in range(ACTIVE * BATCHES)]
    log.append("wide", spark.createDataFrame(rows, "partition int, value binary"))
    progress: list[MicroBatchProgress] = []
    _group(spark, state, topics, ACTIVE, progress).start().awaitTermination()
    return [one for one in progress if one.acquired == ACTIVE]


def _group(
    spark: SparkSession, state: str, topics: str, records: int, progress: list[MicroBatchProgress]
) -> ShareGroup:
    """A new group that works off the topic, so many records at a time."""
    return (
        ShareGroup("breadth", spark=spark, state=state)
        .table(topics)
        .subscribe("wide")
        .process(accept_all)
        .option("share.auto.offset.reset", "earliest")
        .option("share.partition.max.record.locks", UNLIMITED)
        .option("max.records.per.trigger", records)
        .trigger(availableNow=True)
        .listen(progress.append)
    )


def _seconds_of_whole(spark: SparkSession, scratch: Scratch, partitions: int) -> float:
    """Median of a warm micro-batch of RECORDS records, evenly in all share-partitions. One append fills the topic, so
    that a partition is one file, of which each micro-batch takes a part."""
    topics = scratch.fresh("topics")
    log = EmbeddedTopicLog(spark, topics)
    log.create_topic("wide", partitions)
    log.append("wide", (Message(_VALUE, partition=n % partitions) for n in range(RECORDS * WHOLE_BATCHES)))
    progress: list[MicroBatchProgress] = []
    ends: list[float] = []
    group = _group(spark, scratch.fresh("whole"), topics, RECORDS, progress)
    group.listen(lambda _: ends.append(time.perf_counter())).start().awaitTermination()
    # Not of the last ones: the rate of the handler may have left them fewer records.
    warm = [number for number, one in enumerate(progress) if one.acquired == RECORDS][WARM_UP - 1 :]
    steps = {name: statistics.median(progress[number].steps[name] for number in warm) for name in progress[0].steps}
    say(f"  {partitions:,}: " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in steps.items()))
    return statistics.median(ends[number] - ends[number - 1] for number in warm)


def _seconds_on_kafka(spark: SparkSession, bootstrap: str, scratch: Scratch, partitions: int) -> float:
    """Median seconds from the end of a warm micro-batch of ON_KAFKA records to the end of the next."""
    topic, ends = f"wide-{uuid.uuid4().hex[:8]}", list[float]()
    create_topic(bootstrap, topic, partitions)
    fill(bootstrap, topic, partitions, ON_KAFKA * BATCHES, 100)

    def note(progress: MicroBatchProgress) -> None:
        if progress.acquired == ON_KAFKA:
            ends.append(time.perf_counter())

    group = share_group(spark, bootstrap, topic, scratch.fresh("kafka"), accept_all, records_per_trigger=ON_KAFKA)
    group.listen(note).start().awaitTermination()
    return statistics.median(np.diff(ends)[WARM_UP:])


def _seconds_of_a_look(state: str) -> float:
    """Of the whole command, median of three."""
    command = [sys.executable, "-m", "share_spark.cli", "groups", "--location", state, "--describe", "--all-groups"]
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        lines = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
        seconds.append(time.perf_counter() - began)
        assert len(lines) > ALL, "a line for each"
    return statistics.median(seconds)


class Stored:
    """The state of a group of ``partitions`` share-partitions."""

    def __init__(self, spark: SparkSession, scratch: Scratch, partitions: int) -> None:
        location = Location.parse(scratch.fresh("stored"))
        log = GroupLog(spark=spark, location=location, group_id="breadth", run_id="one")
        self.store = DeltaShareStateStore(log=log, updates_per_snapshot=500)
        self.store.claim()
        self.store.load()
        self.partitions, self.batch_id = partitions, 0

    def all_active(self) -> float:
        """Median seconds of a micro-batch with RECORDS records in all of them."""
        each = RECORDS // self.partitions
        return self._seconds(range(self.partitions), each)

    def fragmented(self) -> float:
        """The same for ten records in each of ACTIVE, where every window is in pieces: every second record of all was
        released."""
        everywhere = range(self.partitions)
        self._step(everywhere, RANGES, (), first=True)
        self._step(everywhere, 0, _alternating(RANGES))
        return self._seconds(range(ACTIVE), 10, begin=RANGES)

    def _seconds(self, active: Iterable[int], each: int, begin: int = 0) -> float:
        active, seconds, first = list(active), [], begin == 0
        acquired: dict[int, Sequence[AnsweredRange]] = {}
        for number in range(BATCHES // 2):
            began = time.perf_counter()
            outcomes = self._step(active, each, acquired, first=first and number == 0, end=begin + (number + 1) * each)
            seconds.append(time.perf_counter() - began)
            acquired = {one.key.partition: _accepted(one.acquired) for one in outcomes}
        return statistics.median(seconds[2:])

    def _step(
        self,
        active: Iterable[int],
        each: int,
        acknowledged: Sequence[AnsweredRange] | dict[int, Sequence[AnsweredRange]],
        *,
        first: bool = False,
        end: int = RANGES,
    ) -> Sequence[PartitionOutcome]:
        inputs = {
            SharePartitionKey("breadth", "wide-id", at): PartitionInput(
                topic="wide",
                log_start_offset=0,
                end_offset=end,
                initial_offset=0 if first else None,
                acknowledged=acknowledged.get(at, ()) if isinstance(acknowledged, dict) else acknowledged,
                max_records=each,
            )
            for at in active
        }
        outcomes = self.store.advance(
            inputs,
            limits=PartitionLimits(max_record_locks=UNLIMITED),
            batch_id=self.batch_id,
            now_ms=1_000 + self.batch_id,
        )
        self.store.commit()
        self.batch_id += 1
        return outcomes


def _accepted(acquired: AcquiredRanges) -> Sequence[AnsweredRange]:
    ranges = acquired.copy()
    ranges[:, 2] = ACCEPT
    return answered(ranges[np.argsort(ranges[:, 0])])


def _alternating(size: int) -> Sequence[AnsweredRange]:
    offsets = np.arange(size, dtype=np.int64)
    return answered(np.column_stack([offsets, offsets, np.where(offsets % 2, RELEASE, ACCEPT)]))
