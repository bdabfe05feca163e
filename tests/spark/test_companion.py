"""Delivery to a companion process over an embedded topic, and its output rows in a sink."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from share_spark.engine.delivery_port import AcknowledgedSpans
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.ids import BatchStamp, SharePartitionKey
from share_spark.model.requests import AcknowledgeType, Loss
from share_spark.output.sink import DeltaOutput, DeltaSink
from share_spark.spark.schemas import spark_schema
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog
from tests.support.companions import CompanionPlace, Said
from tests.support.sink_place import made_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 40
ACCEPT = Said(AcknowledgeType.ACCEPT)
KEY = SharePartitionKey("billing", "orders", 0)


class SparkReads(EmbeddedTopicLog):
    """A log that Python cannot read."""

    def for_workers(self, *_: object, **__: object) -> None:
        return None


@pytest.fixture(params=[EmbeddedTopicLog, SparkReads])
def log(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> EmbeddedTopicLog:
    found: EmbeddedTopicLog = request.param(spark, str(tmp_path / "topics"))
    found.create_topic("orders", 1)
    headers = [("trace", b"t")]
    found.append("orders", [Message(b"%d" % n, key=b"k%d" % n, partition=0, headers=headers) for n in range(RECORDS)])
    return found


@pytest.fixture
def places(spark: SparkSession, tmp_path: Path, log: EmbeddedTopicLog) -> Iterator[list[CompanionPlace]]:
    found: list[CompanionPlace] = []
    yield found
    for place in found:
        place.delivery.close()


async def as_sent(record: Record) -> str:
    """The record is as it was sent, whoever has read it."""
    await asyncio.sleep(0.01 * (record.offset % 5))
    assert record[:3] == ("orders", 0, record.offset), record
    assert (record.key, record.value) == (b"k%d" % record.offset, b"%d" % record.offset), record
    assert record.headers == (("trace", b"t"),), record
    assert record.timestamp is not None
    assert record.timestamp.tzinfo is UTC, record
    assert record.delivery_count == (3 if record.offset >= 30 else 1), record
    return "accept"


def test_each_acquired_record_is_handled_and_no_other(
    spark: SparkSession, tmp_path: Path, log: EmbeddedTopicLog, places: list[CompanionPlace]
) -> None:
    places.append(place := CompanionPlace(tmp_path, as_sent, log, spark=spark))
    assert place.deliver((30, 32, 3), (0, 9, 1)).in_flight is not None
    place.deliver((20, 24, 1))
    place.finish()
    assert place.said == dict.fromkeys([*range(10), *range(20, 25), 30, 31, 32], ACCEPT)
    assert set(place.times.values()) == {1}


async def ends_at_7(record: Record) -> None:
    if record.offset == 7:
        await asyncio.sleep(0.3)
        os._exit(9)


def test_after_the_death_of_a_companion_the_others_are_called(
    spark: SparkSession, tmp_path: Path, log: EmbeddedTopicLog, places: list[CompanionPlace]
) -> None:
    places.append(place := CompanionPlace(tmp_path, ends_at_7, log, spark=spark))
    place.deliver((0, 9, 1))
    place.finish()
    assert place.said.pop(7) == Said(Loss.IN_HANDLER, "worker lost")
    assert set(place.said.values()) == {ACCEPT}
    place.deliver((10, 19, 1))
    place.finish()
    assert place.said == dict.fromkeys([*range(7), 8, 9, *range(10, 20)], ACCEPT)


@pytest.mark.parametrize("log", [EmbeddedTopicLog], indirect=True)
@pytest.mark.parametrize("kind", ["files", "driver"])
def test_the_rows_of_the_answers_returned_are_committed_with_them(
    spark: SparkSession,
    tmp_path: Path,
    log: EmbeddedTopicLog,
    places: list[CompanionPlace],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every third record is released, and its row dropped; the second half waits until the first has been committed."""
    go = tmp_path / "go"

    async def charged(record: Record) -> Any:
        while record.offset >= 15 and not go.exists():
            await asyncio.sleep(0.01)
        return Ack.RELEASE if record.offset % 3 == 0 else Ack.ACCEPT, [{"id": record.offset, "what": None}]

    schema = pa.schema([pa.field("id", pa.int64()), pa.field("what", pa.string())])
    places.append(place := CompanionPlace(tmp_path, charged, log, {"output": schema}, spark=spark))
    made = made_place(kind, spark, tmp_path, monkeypatch)
    output = DeltaOutput(sink=DeltaSink(spark=spark, table=made.table), delivery=place.delivery)
    output.sink.prepare(spark_schema(schema))
    output.claim(place.claim, BatchStamp(1, -1))
    assert (place.delivery.output_place is not None) == (kind == "files")
    seen: list[tuple[Sequence[int], Sequence[int]]] = []
    delivered = place.deliver((0, 29, 1))
    for number in range(1_000):
        answers: AcknowledgedSpans = dict(zip([KEY], delivered.answers, strict=False))
        output.commit(BatchStamp(1, number), answers)
        output.forget()
        accepted = [offset for offset, said in place.said.items() if said == ACCEPT]
        seen.append((made.written(), sorted(accepted)))
        if not delivered.in_flight:
            break
        if delivered.in_flight == 15:
            go.touch()
        place.delivery.wait(1)
        delivered = place.deliver()
    assert [written for written, _ in seen] == [accepted for _, accepted in seen]
    halves = [[offset for offset in range(end) if offset % 3] for end in (15, 30)]
    assert [written for written, _ in seen if written in halves][:1] == halves[:1]
    assert seen[-1][0] == halves[1]
