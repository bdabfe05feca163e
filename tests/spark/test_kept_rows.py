"""Records that were released come from the workers' files when they are delivered again, not from the topic log."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from share_spark.delivery.deliver import SparkDelivery
from share_spark.engine.delivery_port import AcquiredSpan, Delivered, DeliveryLimits
from share_spark.engine.ports import DeadLetter, OffsetSpan
from share_spark.engine.ranges import AcquiredRanges, EarlierRanges
from share_spark.engine.spans import covering_spans
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, as_handler
from share_spark.model.config import DEFAULT_CONFIG
from share_spark.model.ids import NO_STAMP, BatchStamp, TopicPartition
from share_spark.output.dead_letter_sinks import AnnouncedDeadLetters
from share_spark.output.dead_letter_table import DeltaDeadLetters
from share_spark.topics.topic_file_rows import TopicFileReader
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog
from tests.support.claims import claim_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 80


class WatchedLog(EmbeddedTopicLog):
    """Notes what is read, be it by Spark or by the workers themselves."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        super().__init__(spark, location)
        self.spans: list[tuple[int, int, int]] = []
        self.gives_files = True

    def read(self, spark: SparkSession, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
        self._note(spans)
        return super().read(spark, spans, tasks)

    def for_workers(
        self, spark: SparkSession | None, acquired: Sequence[AcquiredSpan], *, ordered: bool
    ) -> TopicFileReader | None:
        if not self.gives_files:
            return None
        self._note(covering_spans(acquired))
        return super().for_workers(spark, acquired, ordered=ordered)

    def _note(self, spans: Sequence[OffsetSpan]) -> None:
        self.spans += [(partition, first, last) for _, partition, first, last in spans]


class KeptPlace:
    """A topic of two partitions, and a delivery to a handler that notes its calls."""

    def __init__(self, spark: SparkSession, directory: Path, *, ordered: bool = False) -> None:
        self.log, self.calls = WatchedLog(spark, str(directory / "topics")), directory / "calls"
        self.log.create_topic("orders", 2)
        for partition in (0, 1):
            messages = [Message(b"%d-%d" % (partition, number), partition=partition) for number in range(RECORDS)]
            self.log.append("orders", messages)
        self.state = directory / "state"
        handler = as_handler(Often(str(self.calls)))
        self.delivery = SparkDelivery(spark=spark, log=self.log, handler=handler, ordered=ordered)
        self.delivery.start(claim_of("billing", str(self.state), epoch=1))

    def deliver(self, *ranges: tuple[int, int, int], delayed: Sequence[int] = ()) -> Delivered:
        """The same ranges of both partitions. ``delayed``: offsets before them that are not finished."""
        earlier = EarlierRanges(np.array([(at, at, 60_000) for at in delayed], np.int64).reshape(-1, 3))
        self.log.spans.clear()
        self.calls.write_text("")
        spans = [
            AcquiredSpan(TopicPartition("orders", at), AcquiredRanges(np.array(ranges, np.int64)), earlier)
            for at in (0, 1)
        ]
        return self.delivery.deliver(spans, limits=DeliveryLimits.of(DEFAULT_CONFIG))

    def called(self) -> list[str]:
        return sorted(self.calls.read_text().split())

    def files(self) -> list[Path]:
        return sorted(self.state.rglob("*.arrow"))


class Often:
    """Releases every tenth record twice, rejects every tenth, and kills its worker in the third attempt at one."""

    def __init__(self, calls: str) -> None:
        self.calls = calls

    def __call__(self, record: Record) -> Ack:
        assert record.value == b"%d-%d" % (record.partition, record.offset)
        with Path(self.calls).open("a") as file:
            print(f"{record.partition}-{record.offset}-{record.delivery_count}", file=file)
        if record.delivery_count == 3 and record.offset == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        if record.offset % 10 == 7:
            return Ack.reject("bad")
        return Ack.RELEASE if record.offset % 10 == 0 and record.delivery_count < 3 else Ack.ACCEPT


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> KeptPlace:
    return KeptPlace(spark, tmp_path)


def released(found: Delivered) -> list[int]:
    assert found.fault is None
    return [sum(one.answer == Ack.RELEASE for one in span.ranges) for span in found.answers]


@pytest.mark.parametrize("gives_files", [True, False], ids=["read by workers", "read by Spark"])
def test_released_records_are_not_read_again(place: KeptPlace, gives_files: bool) -> None:
    place.log.gives_files = gives_files
    assert released(place.deliver((0, 29, 1))) == [3, 3]
    assert place.log.spans
    assert released(place.deliver((0, 0, 2), (10, 10, 2), (20, 20, 2))) == [3, 3]
    assert place.log.spans == []
    assert place.called() == sorted(f"{partition}-{offset}-2" for partition in (0, 1) for offset in (0, 10, 20))
    assert released(place.deliver((0, 0, 3), (10, 10, 3), (30, 39, 1))) == [1, 1]
    assert {span[1:] for span in place.log.spans} == {(30, 39)}
    expected = [f"{at}-{offset}-{count}" for at in (0, 1) for offset, count in ((0, 3), (10, 3))]
    assert place.called() == sorted([*expected, *(f"{at}-{offset}-1" for at in (0, 1) for offset in range(30, 40))])
    place.delivery.close()
    assert place.files() == []


def test_a_worker_that_dies_with_them(place: KeptPlace) -> None:
    """The repeat of its task finds the same records, and goes on from the ledger."""
    place.deliver((0, 29, 1))
    place.deliver((0, 0, 2), (10, 10, 2), (20, 20, 2))
    found = place.deliver((0, 0, 3), (10, 10, 3), (20, 20, 3))
    assert place.log.spans == []
    assert place.called() == sorted(f"{partition}-{offset}-3" for partition in (0, 1) for offset in (0, 10, 20))
    said = {first: code for span in found.answers for first, _, code in span.ranges}
    assert {offset for offset, code in said.items() if code == Ack.ACCEPT} == {0, 10}
    assert (said[20], place.files()) == (Ack.RELEASE, []), "what was in the handler is in no file of this delivery"


@pytest.mark.parametrize("lost", ["a file", "all", "the log was truncated"])
def test_without_their_files_they_come_from_the_log(place: KeptPlace, lost: str) -> None:
    place.deliver((0, 29, 1))
    if lost == "the log was truncated":
        place.delivery.forget_last({})
        assert place.files() == []
    for file in place.files()[: 1 if lost == "a file" else None]:
        file.unlink()
    assert released(place.deliver((0, 0, 2), (10, 10, 2), (20, 20, 2))) == [3, 3]
    assert {span[1:] for span in place.log.spans} == {(0, 20)}


def test_in_order_of_keys_nothing_unfinished_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    """However long a record is delayed: it comes with each delivery."""
    place = KeptPlace(spark, tmp_path, ordered=True)
    assert released(place.deliver((0, 29, 1))) == [3, 3]
    for begin in range(30, 80, 5):
        place.deliver((begin, begin + 4, 1), delayed=[0, 10])
        assert {span[1:] for span in place.log.spans} == {(begin, begin + 4)}
    place.deliver((0, 0, 2), (10, 10, 2))
    assert place.log.spans == []
    assert place.called() == sorted(f"{partition}-{offset}-2" for partition in (0, 1) for offset in (0, 10))


def test_in_order_of_keys_what_workers_cannot_read_spark_reads_with_all_the_rest(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The two distribute keys in different ways."""
    place = KeptPlace(spark, tmp_path, ordered=True)
    place.log.gives_files = False
    assert released(place.deliver((0, 29, 1))) == [3, 3]
    place.deliver((0, 0, 2), (30, 34, 1), delayed=[10])
    assert {span[1:] for span in place.log.spans} == {(0, 34)}
    expected = [f"{at}-{offset}-1" for at in (0, 1) for offset in range(30, 35)]
    assert place.called() == sorted([*expected, "0-0-2", "1-0-2"])


def test_a_dead_letter_of_a_delivery_that_released_nothing(place: KeptPlace, spark: SparkSession) -> None:
    place.deliver((7, 9, 1))
    letter = DeadLetter(TopicPartition("orders", 0), 7, 7, 1, "rejected", "bad")
    assert len(letters_written(place, spark, [letter], kept=True)) == 1


def test_dead_letters_are_what_the_topic_log_would_give(place: KeptPlace, spark: SparkSession) -> None:
    place.deliver((0, 29, 1))
    at = TopicPartition("orders", 0), TopicPartition("orders", 1)
    letters = [
        DeadLetter(at[0], 7, 7, 1, "rejected", "bad"),
        DeadLetter(at[0], 10, 10, 1, "delivery limit reached", None),
        DeadLetter(at[1], 17, 17, 1, "rejected", "bad"),
    ]
    assert letters_written(place, spark, letters, kept=True) == letters_written(place, spark, letters, kept=False)
    gone = [*letters, DeadLetter(at[1], 18, 18, 1, "delivery limit reached", "the engine died")]
    assert len(letters_written(place, spark, gone, kept=True, is_read=True)) == 4, "an accepted one is not kept"


def letters_written(
    place: KeptPlace, spark: SparkSession, letters: list[DeadLetter], *, kept: bool, is_read: bool = False
) -> list[tuple[object, ...]]:
    """Into a new table, without their times."""
    dead = f"{place.state}-{kept}-{is_read}"
    found = {"kept": place.delivery.kept_records} if kept else {}
    port = AnnouncedDeadLetters(spark=spark, log=place.log, target=DeltaDeadLetters(dead), **found)
    port.recover(claim_of("billing", f"{dead}-state", epoch=2), NO_STAMP, {})
    place.log.spans.clear()
    port.announce(BatchStamp(2, 0), letters)
    port.write(BatchStamp(2, 0))
    assert bool(place.log.spans) == (is_read or not kept)
    rows = spark.read.format("delta").load(dead).drop("archived_at").orderBy("partition", "offset")
    return [tuple(row) for row in rows.collect()]


def test_the_next_engine_removes_what_is_left(place: KeptPlace, spark: SparkSession) -> None:
    place.deliver((0, 29, 1))
    assert place.files()
    successor = SparkDelivery(spark=spark, log=place.log, handler=as_handler(Often(str(place.calls))))
    successor.start(claim_of("billing", str(place.state), epoch=2))
    successor.forget_traces()
    assert place.files() == []
