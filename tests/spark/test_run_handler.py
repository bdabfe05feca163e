"""The test kit against Spark: the same handlers and records, in a share group on Spark, have the same rows, letters and
counts."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from share_spark import Ack, DeadLetters, EmbeddedTopicLog, Message, Record, ShareGroup, arrow_handler
from share_spark.testing import run_handler
from tests.support.cluster import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTPUT = "id bigint, text string"
VALUES = [b"good", b"raise", b"reject", b"release once", b"misfit", b"throttle once", b"", b"good"]

Note = Callable[[int], None]


def answer(value: bytes, offset: int, count: int) -> Any:
    if value == b"raise":
        raise ValueError("no")
    if value == b"reject":
        return Ack.reject("never")
    if value == b"release once" and count == 1:
        return Ack.release("later")
    if value == b"misfit":
        return Ack.ACCEPT, {"id": "x", "text": ""}
    return Ack.ACCEPT, {"id": offset, "text": value.decode()}


def record_by_record(note: Note) -> Any:
    def handle(record: Record) -> Any:
        note(record.offset)
        return answer(record.value or b"", record.offset, record.delivery_count)

    return handle


def waiting(note: Note) -> Any:
    handle, throttled = record_by_record(note), set[int]()

    async def wait(record: Record) -> Any:
        await asyncio.sleep(0.001)
        if record.value == b"throttle once" and record.offset not in throttled:
            throttled.add(record.offset)
            note(record.offset)
            return Ack.throttled(retry_after=1)
        return handle(record)

    return wait


def in_batches(note: Note) -> Any:
    def handle(batch: pa.RecordBatch) -> Any:
        rows = batch.select(["value", "offset"]).to_pylist()
        for row in rows:
            note(row["offset"])
        acks = [int(Ack.REJECT) if row["value"] == b"reject" else int(Ack.ACCEPT) for row in rows]
        ids = [row["offset"] for row in rows]
        return pa.table({"ack": pa.array(acks, pa.int8()), "id": ids, "text": ["t"] * len(rows)})

    return arrow_handler(handle)


@pytest.mark.parametrize("make", [record_by_record, waiting, in_batches])
def test_spark_does_the_same(spark: SparkSession, tmp_path: Path, make: Callable[[Note], Any]) -> None:
    notes = tmp_path / "notes"

    def note(offset: int) -> None:
        file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, b"%d\n" % offset)
        os.close(file)

    noted: list[int] = []
    run = run_handler(make(noted.append), VALUES, output=OUTPUT, limit=3)
    topics = EmbeddedTopicLog(spark, f"{tmp_path}/topics")
    topics.create_topic("orders", 1)
    topics.append("orders", [Message(value, partition=0) for value in VALUES])
    group = ShareGroup("billing", spark=spark, state=f"{tmp_path}/state").table(f"{tmp_path}/topics")
    group = group.subscribe("orders").process(make(note), output=OUTPUT)
    group = group.to_delta(f"{tmp_path}/rows").dead_letter(f"{tmp_path}/letters").trigger(availableNow=True)
    options = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 3}
    for name, value in options.items():
        group = group.option(name, value)
    assert group.start().awaitTermination(120)

    rows = [row.asDict() for row in spark.read.format("delta").load(f"{tmp_path}/rows").orderBy("id").collect()]
    assert sorted(run.rows, key=lambda row: row["id"]) == rows
    letters = sorted(DeadLetters(f"{tmp_path}/letters").letters(), key=lambda letter: letter.offset)
    facts = [(one.offset, one.delivery_count, one.reason, one.error) for one in letters]
    assert [(one.offset, one.delivery_count, one.reason, one.error) for one in run.letters] == facts
    counts = Counter(map(int, notes.read_text().split()))
    assert run.counts == dict(sorted(counts.items()))
    assert Counter(noted) == counts


def test_the_example_for_pytest_passes(tmp_path: Path) -> None:
    code = pytest.main(
        [str(ROOT / "examples" / "testing_a_handler.py"), "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    )
    assert code == pytest.ExitCode.OK
