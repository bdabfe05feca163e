"""A broker that pauses, by SIGSTOP, for longer than its clients wait, while a group runs."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import Ack, Record, ShareGroup, read_state
from share_spark.engine.ports import OffsetSpan
from share_spark.kafka import record_reader
from share_spark.kafka.dead_letter_topic import KafkaDeadLetters
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.maintenance.heartbeat import Beat
from tests.kafka.test_kafka_topic_log import KafkaLab
from tests.support.broker import Broker
from tests.support.topic_log_cases import Sent, fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.api.query import ShareGroupQuery

GROUP = "patient"
END_S = 45
"""Who waits for what does not answer takes longer."""


def wait_until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 2 * END_S
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


class PausedBroker:
    """``process``: its id."""

    def __init__(self, broker: Broker) -> None:
        self.lab, self.process = KafkaLab(broker.bootstrap), broker.process.pid

    def pause(self) -> None:
        os.kill(self.process, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process, signal.SIGCONT)


@pytest.fixture
def broker(pausing_broker: Broker) -> PausedBroker:
    return PausedBroker(pausing_broker)


class Job:
    """A group whose handler notes its calls in a file."""

    def __init__(self, spark: SparkSession, broker: PausedBroker, place: Path) -> None:
        self.spark, self.broker, self.place = spark, broker, place
        self.topic = fresh_name()
        (place / "calls").touch()

    def group(self, handler: Callable[[Record], object], **kafka: str) -> ShareGroup:
        group = ShareGroup(GROUP, spark=self.spark, state=str(self.place / "state")).subscribe(self.topic)
        group = group.kafka(self.broker.lab.broker, **kafka).process(handler)
        return group.option("request.timeout.ms", "1s").option("share.auto.offset.reset", "earliest")

    def noting(self, pauses_at: int = -1) -> Callable[[Record], object]:
        """``pauses_at``: an offset at which it pauses the broker, when it is delivered first."""
        calls, process = str(self.place / "calls"), self.broker.process

        def handle(record: Record) -> Ack:
            with Path(calls).open("a") as file:
                file.write(f"{record.partition} {record.offset} {record.delivery_count}\n")
            if record.offset == pauses_at and record.delivery_count == 1:
                os.kill(process, signal.SIGSTOP)
            return Ack.ACCEPT

        return handle

    @property
    def calls(self) -> list[str]:
        return (self.place / "calls").read_text().splitlines()

    def unreachable_since_ms(self) -> int | None:
        (beat,) = (self.place / "state").rglob(f"alive/{GROUP}")
        return Beat.from_text(beat.read_text()).unreachable_since_ms

    def once(self, partitions: int, records: int) -> Counter[str]:
        return Counter(f"{partition} {offset} 1" for partition in range(partitions) for offset in range(records))


@pytest.fixture
def job(spark: SparkSession, broker: PausedBroker, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


def ended(query: ShareGroupQuery) -> bool:
    query._over.set()
    query.engine.stop_waiting()
    return query.awaitTermination(END_S)


def test_a_run_lives_through_it(job: Job) -> None:
    broker = job.broker
    broker.lab.create(job.topic, 2)
    values = [Sent(value=b"x")] * 20
    broker.lab.put(job.topic, {0: values, 1: values})
    query = job.group(job.noting()).start()
    try:
        wait_until(lambda: len(job.calls) == 40)
        broker.pause()
        wait_until(lambda: query.engine.outage is not None)
        wait_until(lambda: job.unreachable_since_ms() is not None)
        first = query.engine.outage
        wait_until(lambda: query.engine.outage is not None and first is not None and query.engine.outage is not first)
        assert query.isActive
        broker.go_on()
        broker.lab.put(job.topic, {0: values, 1: values})
        wait_until(lambda: len(job.calls) == 80)
        query.processAllAvailable()
        assert query.engine.outage is None
        wait_until(lambda: job.unreachable_since_ms() is None)
    finally:
        query.stop()
    assert Counter(job.calls) == job.once(2, 40)


def test_who_is_to_stop_does_not_wait_for_it(job: Job) -> None:
    broker = job.broker
    broker.lab.create(job.topic, 1)
    broker.lab.put(job.topic, {0: [Sent(value=b"x")] * 10})
    query = job.group(job.noting()).option("request.timeout.ms", "10m").start()
    wait_until(lambda: len(job.calls) == 10)
    broker.pause()
    assert ended(query)
    rows = read_state(job.spark, str(job.place / "state"), GROUP).collect()
    assert [(row.start_offset, row.acquired) for row in rows] == [(10, 0)]


LARGE = 100_000
"""Of a record. Workers hand records on when 16 MB are there."""


def test_records_that_do_not_come_are_given_back_by_who_stops(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    one_ahead = {**record_reader._FETCHES, "queued.min.messages": "1"}  # what is fetched ahead would come
    monkeypatch.setattr(record_reader, "_FETCHES", one_ahead)
    broker = job.broker
    broker.lab.create(job.topic, 1)
    broker.lab.put(job.topic, {0: [Sent(value=os.urandom(LARGE))] * 500})
    query = job.group(job.noting(pauses_at=0), **{"max.partition.fetch.bytes": str(LARGE)}).start()
    wait_until(lambda: len(job.calls) > 100)
    assert ended(query)
    assert len(job.calls) < 500
    broker.go_on()
    job.group(job.noting()).trigger(availableNow=True).start().awaitTermination()
    assert Counter(job.calls) == job.once(1, 500)


@pytest.mark.parametrize("output", [False, True])
def test_records_that_spark_reads(job: Job, monkeypatch: pytest.MonkeyPatch, output: bool) -> None:
    """What was entered counts as entered; its rows are lost with the job."""
    defaults = {"request_timeout_ms": 1_000, "poll_timeout_ms": 2_000}
    monkeypatch.setattr(KafkaTopicLog.__init__, "__kwdefaults__", defaults)
    broker, records = job.broker, 20_000
    broker.lab.create(job.topic, 1)
    broker.lab.put(job.topic, {0: [Sent(value=os.urandom(1_000))] * records})
    noting = job.noting(pauses_at=0)
    group = job.group(noting).trigger(availableNow=True).option("share.partition.max.record.locks", 100_000)
    if output:
        group = group.process(lambda record: (noting(record), {"at": record.offset}), output="at bigint")
        group = group.to_delta(str(job.place / "sink"))
    query = group.start()
    wait_until(lambda: query.engine.outage is not None)
    broker.go_on()
    query.awaitTermination()
    last = {call.split()[1]: int(call.split()[2]) for call in job.calls}
    assert last == Counter(call.split()[1] for call in job.calls), "the count is the number of calls"
    assert len(last) == records
    if output:
        rows = job.spark.read.format("delta").load(str(job.place / "sink")).collect()
        assert sorted(row.at for row in rows) == list(range(records))
    else:
        assert set(last.values()) == {1}


def test_dead_letters_are_written_afterwards(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, dead = job.broker, fresh_name("dead")
    broker.lab.create(job.topic, 1)
    broker.lab.create(dead, 1)
    broker.lab.put(job.topic, {0: [Sent(value=b"%d" % n) for n in range(3)]})
    write, writes = KafkaDeadLetters.write, iter([broker.pause])

    def paused_at_first(*given: Any) -> None:
        next(writes, lambda: None)()
        write(*given)

    monkeypatch.setattr(KafkaDeadLetters, "write", paused_at_first)
    quick = {"request.timeout.ms": "1000", "delivery.timeout.ms": "2000", "max.block.ms": "2000"}
    query = job.group(lambda _: Ack.reject("never"), **quick).dead_letter(dead).trigger(availableNow=True).start()
    wait_until(lambda: (outage := query.engine.outage) is not None and "dead letters" in outage.reason)
    broker.go_on()
    query.awaitTermination()
    letters = broker.lab.log.read(job.spark, [OffsetSpan(dead, 0, 0, 2)], 1).collect()
    assert sorted(bytes(letter.value) for letter in letters) == [b"0", b"1", b"2"]
    assert broker.lab.log.log_ends(dead)[0].end_offset == 3
