"""Delivery on a running session: kinds, errors, one reading of the records. Killed workers have a file of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from share_spark.model.errors import HandlerError
from share_spark.model.ids import TopicPartition
from share_spark.process.acknowledgement import Ack
from share_spark.process.delivery import _with_task, deliver
from share_spark.process.handlers import Record, arrow_handler, as_handler, frame_handler, pandas_handler
from share_spark.process.result import DeliveryResult, ErrorRun

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def records(spark: SparkSession) -> DataFrame:
    """Offsets 0 to 99 of orders-0 and orders-1 without every 50th, in 3 tasks."""
    columns = [
        "'orders' topic",
        "cast(id div 100 as int) partition",
        "id % 100 offset",
        "current_timestamp() timestamp",
    ]
    content = ["cast(null as binary) key", "cast(concat('v', id) as binary) value"]
    headers = "cast(null as array<struct<key:string,value:binary>>) headers"
    return spark.range(0, 200, 1, 3).where("id % 50 <> 49").selectExpr(*columns, *content, headers, "1 delivery_count")


def runs(result: DeliveryResult, partition: int = 0) -> list[tuple[int, int, int]]:
    acks = result.partitions[TopicPartition("orders", partition)]
    return list(zip(acks.first.tolist(), acks.last.tolist(), acks.ack.tolist(), strict=True))


def bill(record: Record) -> Any:
    if record.offset == 3:
        raise ValueError(f"no price for {(record.value or b'').decode()}")
    return Ack.reject("cancelled") if record.offset in (10, 11) else None


def accept_all(batch: pa.RecordBatch) -> pa.Array[Any]:
    return pa.array([1] * batch.num_rows, pa.int8())


def test_record_handler(records: DataFrame) -> None:
    result = deliver(records, as_handler(bill))
    expected = [(0, 2, 1), (3, 3, 2), (4, 9, 1), (10, 11, 3), (12, 48, 1), (50, 98, 1)]
    assert runs(result) == expected == runs(result, 1)
    assert result.partitions[TopicPartition("orders", 1)].errors == (
        ErrorRun(3, 3, "ValueError: no price for v103"),
        ErrorRun(10, 11, "cancelled"),
    )
    assert (result.accepted, result.released, result.rejected) == (190, 2, 4)


@pytest.mark.parametrize("columns", [None, ["value"]])
def test_arrow_handler(records: DataFrame, columns: list[str] | None) -> None:
    assert runs(deliver(records, as_handler(accept_all, columns=columns))) == [(0, 48, 1), (50, 98, 1)]


def test_pandas_handler(records: DataFrame) -> None:
    @pandas_handler
    def odd_later(frame: pd.DataFrame) -> Any:
        frame["ack"] = (frame["offset"] < 20).map({True: "accept", False: "release"})
        return frame

    assert runs(deliver(records, as_handler(odd_later))) == [(0, 19, 1), (20, 48, 2), (50, 98, 2)]


def test_frame_handler(records: DataFrame) -> None:
    @frame_handler
    def some(frame: Any) -> Any:
        return frame.where("offset < 20").withColumn("ack", F.when(F.col("offset") < 5, "reject").otherwise("accept"))

    assert runs(deliver(records, as_handler(some))) == [(0, 4, 3), (5, 19, 1), (20, 48, 2), (50, 98, 2)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda frame: frame, "returned a frame without column ack"),
        (lambda _: 5, "returned int, not a DataFrame"),
        (lambda frame: frame.union(frame).withColumn("ack", F.lit(1)), r"returned record orders-0@0 twice"),
        (lambda frame: frame.withColumn("ack", F.lit("drop")), "answered 'drop'"),
    ],
)
def test_frames_that_break_the_contract(records: DataFrame, answer: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        deliver(records, as_handler(frame_handler(answer)))


def test_a_frame_handler_that_raises_releases_everything(records: DataFrame) -> None:
    result = deliver(records, as_handler(frame_handler(lambda _: 1 / 0)))
    assert result.released == 196
    assert result.partitions[TopicPartition("orders", 0)].errors[0].error == "ZeroDivisionError: division by zero"


def test_a_broken_contract_comes_from_the_worker_as_one_line(records: DataFrame) -> None:
    with pytest.raises(HandlerError) as caught:
        deliver(records, as_handler(arrow_handler(lambda batch: [1] * (batch.num_rows + 1))))
    assert re.fullmatch(r"handler tests\S+ returned \d+ acknowledgements for \d+ records", str(caught.value))


def test_each_record_is_read_once_and_handled_once(records: DataFrame, tmp_path: Path) -> None:
    """Each reading of a batch before the handler leaves a line in a file of its own."""
    seen = str(tmp_path)

    def note(batches: Any) -> Any:
        for batch in batches:
            (Path(seen) / f"read-{batch.column('partition')[0]}-{batch.column('offset')[0]}").open("a").write("x\n")
            yield batch

    result = deliver(records.mapInArrow(note, records.schema), as_handler(accept_all))
    assert result.accepted == 196
    assert {path.read_text() for path in tmp_path.glob("read-*")} == {"x\n"}


def test_output_is_checked_and_staged(records: DataFrame, tmp_path: Path) -> None:
    def price(record: Record) -> Any:
        return (Ack.ACCEPT, {"id": record.offset}) if record.offset < 2 else None

    def stage(rows: pa.Table) -> str:
        return f"{rows.num_rows} rows"

    handler = as_handler(price, output="id bigint")
    assert sorted(deliver(records, handler, stage_output=stage).staged_outputs) == ["0 rows", "2 rows", "2 rows"]
    assert deliver(records, handler).staged_outputs == ()
    with pytest.raises(HandlerError, match="the output schema is wrong"):
        as_handler(price, output="id bigbig")


def test_the_first_record_of_each_task_tells_the_stage_attempt(records: DataFrame) -> None:
    told = [row["__task"] for row in _with_task(records, ["offset"]).collect()]
    threads = [thread for thread in told if thread is not None]
    assert len(threads) == 3
    assert all(re.search(r"in stage \d+\.0 \(TID \d+\)", thread) for thread in threads)
