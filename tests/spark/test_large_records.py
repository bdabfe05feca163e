"""Records that are too large to go to Python ten thousand at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import EmbeddedTopicLog, Record, ShareGroup
from share_spark.delivery.large_records import LARGE_BYTES, has_limit
from share_spark.engine.progress import MicroBatchProgress
from share_spark.spark.schemas import ARROW_BYTES, NO_ARROW_LIMIT
from share_spark.topics.topic_producer import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BIG = b"x" * (LARGE_BYTES + 1)


@pytest.fixture
def unlimited(spark: SparkSession) -> Iterator[SparkSession]:
    """As ``build_session`` makes it, and left so."""
    spark.conf.set(ARROW_BYTES, NO_ARROW_LIMIT)
    yield spark
    spark.conf.set(ARROW_BYTES, NO_ARROW_LIMIT)
    spark.conf.unset(ROWS)


def run(spark: SparkSession, directory: Path, *appends: list[Message]) -> tuple[list[str], list[MicroBatchProgress]]:
    """(Lines that the handler wrote, micro-batches that did something)."""
    log = EmbeddedTopicLog(spark, str(directory / "topics"))
    log.create_topic("files", 1)
    for messages in appends:
        log.append("files", messages)
    calls, progress = directory / "calls", list[MicroBatchProgress]()

    def note(record: Record) -> None:
        sizes = [
            len(record.key or b""),
            len(record.value or b""),
            sum(len(value or b"") for _, value in record.headers),
        ]
        with calls.open("a") as file:
            file.write(f"{record.offset} {record.delivery_count} {sizes}\n")

    group = ShareGroup("g", spark=spark, state=str(directory / "state")).table(str(directory / "topics"))
    group = group.subscribe("files").process(note).option("share.auto.offset.reset", "earliest")
    query = group.listen(progress.append).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return sorted(calls.read_text().splitlines()), progress


@pytest.mark.parametrize("by_spark", [True, False], ids=["read by Spark", "read by workers"])
def test_they_are_delivered_whole_and_are_not_charged(
    unlimited: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """One micro-batch later, if they would come through Spark."""
    if by_spark:
        monkeypatch.setattr(EmbeddedTopicLog, "for_workers", lambda *_, **__: None)
    messages = [
        Message(b"small", key=b"k", headers=[("h", b"v"), ("none", None)]),
        Message(BIG),
        Message(None, key=BIG),
        Message(b"", headers=[("a", BIG[:LARGE_BYTES]), ("b", b"yy"), ("c", None)]),
        Message(BIG[:LARGE_BYTES]),
    ]
    calls, progress = run(unlimited, tmp_path, messages)
    most = LARGE_BYTES
    assert calls == [
        "0 1 [1, 5, 1]",
        f"1 1 [0, {most + 1}, 0]",
        f"2 1 [{most + 1}, 0, 0]",
        f"3 1 [0, 0, {most + 2}]",
        f"4 1 [0, {most}, 0]",
    ]
    assert [one.acquired for one in progress if one.acquired] == ([5, 3] if by_spark else [5])
    assert sum(one.not_entered for one in progress) == (3 if by_spark else 0)
    assert has_limit(unlimited) == by_spark


def test_a_session_with_a_limit_keeps_it_and_delivers_them_at_once(
    unlimited: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedTopicLog, "for_workers", lambda *_, **__: None)
    unlimited.conf.set(ARROW_BYTES, "1000000")
    calls, progress = run(unlimited, tmp_path, [Message(b"small"), Message(BIG)])
    assert len(calls) == 2
    assert [one.acquired for one in progress if one.acquired] == [2]
    assert unlimited.conf.get(ARROW_BYTES) == "1000000"


@pytest.mark.long
@pytest.mark.parametrize("by_spark", [True, False], ids=["read by Spark", "read by workers"])
def test_more_of_them_than_an_arrow_batch_can_address(
    unlimited: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    if by_spark:
        monkeypatch.setattr(EmbeddedTopicLog, "for_workers", lambda *_, **__: None)
    size, appends = 900_000, 13
    calls, _ = run(unlimited, tmp_path, *[[Message(b"x" * size)] * 200] * appends)
    assert len(calls) == 200 * appends
    assert all(call.endswith(f" 1 [0, {size}, 0]") for call in calls)
