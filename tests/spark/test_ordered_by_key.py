"""Order by key, end to end: handlers note what they are entered with, and the notes are judged from outside."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from share_spark.api.share_group import ShareGroup
from share_spark.delivery import record_sources
from share_spark.delivery.acquired_records import acquired_records, by_key, with_earlier
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges, EarlierRanges
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, arrow_handler, as_handler, frame_handler
from share_spark.model.errors import ConfigError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog
from tests.support.handled import handled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [b"a", b"b", b"c", b"d", b"e", None]


class Orders:
    """A topic of two partitions. Every ninth record is released once, one of them for some seconds."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory, self.written = spark, directory, 0
        self.log = EmbeddedTopicLog(spark, str(directory / "topics"))
        self.log.create_topic("orders", 2)

    def put(self, records: int) -> None:
        """Each key is in one partition."""
        numbers = range(self.written, self.written + records)
        keys = [(number, KEYS[number * number % 11 % len(KEYS)]) for number in numbers]
        self.log.append(
            "orders", [Message(b"%d" % number, key=key, partition=(key or b"x")[0] % 2) for number, key in keys]
        )
        self.written += records

    def group(self, handler: Any) -> ShareGroup:
        group = ShareGroup("billing", spark=self.spark, state=str(self.directory / "state")).ordered_by_key()
        group = group.table(str(self.directory / "topics")).subscribe("orders").process(handler)
        return group.option("share.auto.offset.reset", "earliest").option("max.records.per.trigger", 40)

    def survive_a_restart(self, handler: Any) -> None:
        """With delayed records."""
        self.put(60)
        first = self.group(handler).start()
        while not self.notes.exists() or self.notes.read_text().count("release") < 3:
            assert not first.awaitTermination(0.1)
        first.stop()
        self.put(20)
        self.work_off(handler)

    def survive_deaths(self, handler: Any) -> None:
        """Of the processes of a handler for which offset 20 is deadly."""
        self.put(120)
        self.work_off(handler)
        assert self.notes.read_text().count("die") == 2, "in both partitions"

    def work_off(self, handler: Any) -> None:
        query = self.group(handler).trigger(availableNow=True).start()
        assert query.awaitTermination(120), (query.recentProgress[-4:], query.engine.look())
        self.judge()

    @property
    def notes(self) -> Path:
        return self.directory / "notes"

    def judge(self) -> None:
        """By partition and key: entered in order, one at a time, and not before its predecessor had ended."""
        offsets: dict[tuple[str, str], list[int]] = defaultdict(list)
        done: set[tuple[str, str, int]] = set()
        inside: set[tuple[str, str]] = set()
        for line in self.notes.read_text().splitlines():
            what, partition, key, text = line.split()
            place, offset = (partition, key), int(text)
            if what == "enter" and key != "None":
                assert place not in inside, line
                assert all((*place, before) in done for before in offsets[place] if before < offset), line
                assert offset >= max(offsets[place], default=0), line
                inside.add(place)
                offsets[place].append(offset)
            elif what != "enter":
                inside.discard(place)
                done |= {(*place, offset)} if what == "accept" else set()
        accepted = [line for line in self.notes.read_text().splitlines() if line.startswith("accept")]
        assert len(accepted) == len(set(accepted)) == self.written


def noting(notes: Path, deadly: int | None = None) -> Any:
    """Says of a record what becomes of it, and notes it before and after. The first delivery of one at offset
    ``deadly`` kills its worker."""

    def note(what: str, record: Record) -> None:
        key = record.key.decode() if record.key else None
        file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{what} {record.partition} {key} {record.offset}\n".encode())
        os.close(file)

    def handle(record: Record) -> Any:
        note("enter", record)
        if record.offset == deadly and record.delivery_count == 1:
            note("die", record)
            os._exit(1)
        is_odd = record.offset % 9 == 2 and record.delivery_count == 1
        note("release" if is_odd else "accept", record)
        if not is_odd:
            return Ack.ACCEPT
        return Ack.release(delay=4) if record.offset == 11 else Ack.RELEASE

    return handle


@pytest.fixture(params=["workers read the records", "Spark reads the records"])
def _by_both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param.startswith("Spark"):
        monkeypatch.setattr(record_sources, "keyed_input", lambda *_: None)


@pytest.mark.usefixtures("_by_both")
def test_record_by_record_and_across_a_restart_with_delayed_records(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(spark, tmp_path)
    orders.survive_a_restart(noting(orders.notes))


@pytest.mark.usefixtures("_by_both")
def test_batches_have_no_key_twice(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(spark, tmp_path)
    orders.put(60)
    handle = noting(orders.notes)

    def batch(records: pa.RecordBatch) -> Any:
        rows = records.select(["partition", "offset", "key", "delivery_count"]).to_pylist()
        keys = [(row["partition"], row["key"]) for row in rows if row["key"] is not None]
        assert len(set(keys)) == len(keys)
        return [handle(Record("orders", **row)) for row in rows]

    orders.work_off(arrow_handler(batch))


@pytest.mark.usefixtures("_by_both")
def test_a_worker_that_dies_with_a_record(spark: SparkSession, tmp_path: Path) -> None:
    """What was held back before, and stayed with the workers, keeps its order."""
    orders = Orders(spark, tmp_path)
    orders.survive_deaths(noting(orders.notes, deadly=20))


def waiting(notes: Path, deadly: int | None = None) -> Any:
    """The same handler, whose calls wait a little."""
    handle = noting(notes, deadly)

    async def wait(record: Record) -> Any:
        await asyncio.sleep(0.01 * (record.offset % 4))
        answer = handle(record)
        await asyncio.sleep(0.001)
        return answer

    return wait


@pytest.mark.parametrize("threads", [None, 8])
def test_calls_that_wait_and_a_restart_with_delayed_records(
    spark: SparkSession, tmp_path: Path, threads: int | None
) -> None:
    orders = Orders(spark, tmp_path)
    handler = waiting(orders.notes) if threads is None else as_handler(noting(orders.notes), threads=threads)
    orders.survive_a_restart(handler)


def test_a_companion_that_dies_with_a_record(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(spark, tmp_path)
    orders.survive_deaths(waiting(orders.notes, deadly=20))


def listed(notes: Path, deadly: int | None = None) -> Any:
    """The same handler for lists of records, in which no key is twice."""
    handle = waiting(notes, deadly)

    async def wait(records: list[Record]) -> list[Any]:
        keys = [(record.partition, record.key) for record in records if record.key is not None]
        assert len(set(keys)) == len(keys)
        # What it has noted of the other records, and not answered, would be noted again.
        first = sorted(records, key=lambda record: record.offset != deadly)
        answers = {record: await handle(record) for record in first}
        return [answers[record] for record in records]

    return as_handler(wait, batch=4)


def test_lists_of_records_and_a_restart_with_delayed_records(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(spark, tmp_path)
    orders.survive_a_restart(listed(orders.notes))


def test_a_companion_that_dies_with_a_list(spark: SparkSession, tmp_path: Path) -> None:
    """All of it is suspected, and delivered again one by one."""
    orders = Orders(spark, tmp_path)
    orders.survive_deaths(listed(orders.notes, deadly=20))


def test_output_rows_of_records_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that stay on the executors, of tasks that read a shuffle."""

    def handle(record: Record) -> Any:
        return Ack.RELEASE if record.offset == 0 else (Ack.ACCEPT, [{"id": record.offset}])

    orders = Orders(spark, tmp_path)
    orders.log.append("orders", [Message(b"", key=b"ab"[at % 2 :][:1], partition=0) for at in range(8)])
    span = AcquiredSpan(TopicPartition("orders", 0), AcquiredRanges(np.array([[0, 2, 1], [4, 7, 1]])))
    span = span._replace(earlier=EarlierRanges(np.array([[3, 3, 9_000]])))
    records = acquired_records(spark, orders.log, with_earlier([span]), tasks=2, third="delivery_count")
    result = handled(by_key(records, 2), as_handler(handle, output="id bigint"), topic="orders", ordered=True)
    (found,) = result.partitions.values()
    assert found.ranges == (
        (0, 0, 2),
        (1, 1, 1),
        *((offset, offset, Loss.NOT_ENTERED) for offset in (2, 4, 5, 6, 7)),
    )
    assert found.delays == ((5, 5, 9_000), (7, 7, 9_000))
    assert result.outputs is not None
    assert [row.id for row in result.outputs.collect()] == [1]
    result.close()


@pytest.mark.parametrize(("option", "value"), [("delivery.order", "key"), ("delivery.cost.limit", "100")])
def test_a_handler_of_frames_is_refused(spark: SparkSession, tmp_path: Path, option: str, value: str) -> None:
    def frames(records: Any) -> Any:
        return records

    group = Orders(spark, tmp_path).group(frame_handler(frames)).option("delivery.order", "none").option(option, value)
    with pytest.raises(ConfigError, match=rf"^{option}: handler .*frames takes a whole Spark frame"):
        group.start()
    assert not (tmp_path / "state").exists()
