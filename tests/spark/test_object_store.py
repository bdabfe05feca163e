"""The main path with everything in an object store: state, topics, checkpoint, output and dead letters on s3a.

Nothing here has a rename that is atomic, or a create that fails for the second of two. What Delta makes of that is
Delta's affair (its log store for s3a is made for one driver, and there is one here); what we write beside its tables is
ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import Ack, EmbeddedTopicLog, Record, ShareGroup, cli, read_state
from share_spark.delta.journal import Journal
from share_spark.delta.location import Location
from share_spark.engine.progress import MicroBatchProgress
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.maintenance.heartbeat import SmallFile, heartbeat_file
from share_spark.model.errors import FencedError
from share_spark.model.ids import BatchStamp
from share_spark.spark.jars import JarsError
from share_spark.topics.topic_producer import Message
from tests.support.object_store import running_object_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

OUTPUT = "number bigint, attempt int"
GROUP = "billing"
PARTITIONS = 2
WAIT_S = 240


def bill(record: Record) -> Any:
    """One row per record; of every ten one is rejected, one released once."""
    number, attempt = int(record.value or b""), record.delivery_count
    row = {"number": number, "attempt": attempt}
    if number % 10 == 3:
        return Ack.reject("never"), row
    return (Ack.RELEASE if number % 10 == 7 and attempt == 1 else Ack.ACCEPT), row


def bills_for(count: int) -> list[tuple[int, int]]:
    return [(number, 2 if number % 10 == 7 else 1) for number in range(count) if number % 10 != 3]


class BucketPlace:
    """A topic in the object store, and all that a group keeps there."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark, self.root, self.sent = spark, root, 0
        self.log = EmbeddedTopicLog(spark, f"{root}/topics")
        self.log.create_topic("orders", PARTITIONS)
        Location.parse(f"{root}/bills").create(spark, OUTPUT, partitioned_by=["attempt"])
        self.progress: list[MicroBatchProgress] = []

    def put(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.log.append("orders", [Message(b"%d" % number, partition=number % PARTITIONS) for number in numbers])
        self.sent += count

    def group(self, **options: Any) -> ShareGroup:
        group = ShareGroup(GROUP, spark=self.spark, state=f"{self.root}/state").table(f"{self.root}/topics")
        given = {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": 1_000,
            "share.coordinator.snapshot.update.records.per.snapshot": 4,
        }
        group = group.subscribe("orders").process(bill, output=OUTPUT).options(**{**given, **options})
        group = group.to_delta(f"{self.root}/bills").dead_letter(f"{self.root}/dead")
        return group.listen(self.progress.append)

    def work_off(self, **options: Any) -> None:
        assert self.group(**options).trigger(availableNow=True).start().awaitTermination(WAIT_S)

    def bills(self) -> list[tuple[int, int]]:
        return sorted((row.number, row.attempt) for row in self._table("bills").collect())

    def dead(self) -> list[int]:
        return sorted(int(row.value) for row in self._table("dead").collect())

    def finished(self) -> int:
        return sum(progress.accepted + progress.rejected for progress in self.progress)

    def held(self) -> int:
        """Records that are not at their end."""
        rows = read_state(self.spark, f"{self.root}/state", GROUP).collect()
        return sum(row.available + row.acquired for row in rows)

    def assert_all_is_done_once(self) -> None:
        assert self.bills() == bills_for(self.sent)
        assert self.dead() == [number for number in range(self.sent) if number % 10 == 3]
        assert self.held() == 0

    def sink_engines(self) -> set[str]:
        """Who has appended rows to the sink."""
        entries = Location.parse(f"{self.root}/bills").delta_table(self.spark).history()
        return {row.engineInfo for row in entries.where("operation = 'WRITE'").collect()}

    def small_file(self, name: str) -> SmallFile:
        return SmallFile.of(self.spark, f"{self.root}/small/{name}")

    def _table(self, name: str) -> Any:
        return self.spark.read.format("delta").load(f"{self.root}/{name}")


@pytest.fixture(scope="module")
def place(spark: SparkSession) -> Iterator[BucketPlace]:
    """The tests go on from each other, in order."""
    try:
        with running_object_store(spark) as bucket:
            yield BucketPlace(spark, f"{bucket}/billing")
    except JarsError as error:
        pytest.skip(f"no s3a: {error}")


def wait_until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


@pytest.mark.long
def test_a_run_with_releases_and_rejects(place: BucketPlace) -> None:
    place.put(300)
    place.work_off()
    place.assert_all_is_done_once()
    assert place.sink_engines() == {"share_spark"}, "the driver has put the files"
    timings = {step: round(seconds, 2) for step, seconds in place.progress[-1].steps.items()}
    print(f"\n{len(place.progress)} micro-batches on s3a; the last one: {timings}")


def test_a_restart_goes_on_and_is_fenced_by_a_second_engine(place: BucketPlace) -> None:
    before = len(place.progress)
    first = place.group().start()
    place.put(50)
    wait_until(lambda: place.finished() == place.sent)
    assert sum(progress.acquired for progress in place.progress[before:]) == 55
    second = place.group(checkpointLocation=f"{place.root}/second").start()
    place.put(50)
    wait_until(lambda: not first.isActive)
    assert isinstance(first.exception(), FencedError)
    wait_until(lambda: place.finished() == place.sent)
    second.stop()
    assert second.exception() is None
    place.assert_all_is_done_once()


def test_engines_leave_a_heartbeat_and_nothing_unfinished(place: BucketPlace) -> None:
    beat = heartbeat_file(place.spark, Location.parse(f"{place.root}/state"), GROUP)
    assert beat.modified_at_ms() is not None
    for purpose in ("output", "dead letters"):
        journal = Journal(place.spark, f"{place.root}/state/share_state_log", purpose, GROUP)
        assert [stamp for stamp in journal.stamps() if stamp.batch_id >= 0] == []


@pytest.mark.long
def test_compaction_twice_and_a_run_after_it(place: BucketPlace, capsys: pytest.CaptureFixture[str]) -> None:
    """By its command, for which the group's engine has only just gone; and again, as if that were long ago, with tables
    that have not changed since: Delta writes a checkpoint in place here, and never twice."""
    root, location = f"{place.root}/state", Location.parse(f"{place.root}/state")
    assert cli.main(["compact", "--state", root, "--dead-letter", f"{place.root}/dead"]) == 0
    assert "snapshots are left to it" in capsys.readouterr().out
    now = {"idle_ms": 0, "history_retention_ms": 0, "vacuum_retention_ms": 0}
    order = CompactionOrder(state=location, topic_table=Location.parse(f"{place.root}/topics"), **now)
    done = [f"{step.subject}: {step.text}" for step in compact(place.spark, order).steps]
    assert any(f"snapshot of {PARTITIONS} share-partitions" in text for text in done), done
    assert not any("gave way" in text for text in done), done
    place.put(20)
    place.work_off()
    place.assert_all_is_done_once()


def test_journal_entries_are_whole_replaced_and_removed(place: BucketPlace) -> None:
    journal = Journal(place.spark, f"{place.root}/elsewhere", "output", "a group/of names")
    assert journal.stamps() == []
    journal.put(BatchStamp(2, 10), b"first")
    journal.put(BatchStamp(2, 10), b"second")
    journal.put(BatchStamp(2, 9), bytes(range(256)))
    assert journal.stamps() == [BatchStamp(2, 9), BatchStamp(2, 10)]
    assert (journal.read(BatchStamp(2, 10)), journal.read(BatchStamp(2, 9))) == (b"second", bytes(range(256)))
    journal.remove(BatchStamp(2, 9))
    journal.remove(BatchStamp(2, 9))
    assert journal.stamps() == [BatchStamp(2, 10)]
    assert journal.read(BatchStamp(2, 9)) is None


def test_a_small_file_is_written_read_and_deleted(place: BucketPlace) -> None:
    file = place.small_file("beat")
    assert (file.modified_at_ms(), file.read()) == (None, "")
    file.write("one")
    file.write("two")
    assert file.read() == "two"
    assert abs(time.time() * 1_000 - (file.modified_at_ms() or 0)) < 5_000
    assert not file.create("three")
    file.delete()
    file.delete()
    assert file.modified_at_ms() is None


def test_of_two_that_create_a_small_file_at_once_one_does(place: BucketPlace) -> None:
    """s3a looks whether there is one, then writes: of two at once, both find none."""
    start = threading.Barrier(4)

    def create(number: int) -> bool:
        start.wait()
        return place.small_file("lock").create(f"mine, {number}")

    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(create, range(4)))
    assert sum(created) == 1
    assert place.small_file("lock").read() == f"mine, {created.index(True)}"
