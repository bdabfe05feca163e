"""Delivery on a running session: kinds, errors, one reading of the records. Killed workers have a file of their own."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import functions as F

from share_spark.delivery.deliver import _called, _marked
from share_spark.delivery.packed_handler import packed
from share_spark.delivery.result import DeliveryResult, HeldFrame, decoded, read_once
from share_spark.delivery.worker import DeliveryRun, HandlerTask, Terms
from share_spark.engine.attempts import ErrorRun
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, arrow_handler, as_handler, frame_handler, pandas_handler
from share_spark.model.errors import HandlerError, TopicError
from share_spark.model.ids import TopicPartition
from share_spark.spark.threads import with_task_thread
from tests.support.handled import handled, new_place

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
    return [(*run,) for run in result.partitions[TopicPartition("orders", partition)].ranges]


def bill(record: Record) -> Any:
    if record.offset == 3:
        raise ValueError(f"no price for {(record.value or b'').decode()}")
    return Ack.reject("cancelled") if record.offset in (10, 11) else None


def accept_all(batch: pa.RecordBatch) -> pa.Array[Any]:
    return pa.array([1] * batch.num_rows, pa.int8())


def test_record_handler(records: DataFrame) -> None:
    result = handled(records, as_handler(bill))
    expected = [(0, 2, 1), (3, 3, 2), (4, 9, 1), (10, 11, 3), (12, 48, 1), (50, 98, 1)]
    assert runs(result) == expected == runs(result, 1)
    assert result.partitions[TopicPartition("orders", 1)].errors == (
        ErrorRun(3, 3, "ValueError: no price for v103"),
        ErrorRun(10, 11, "cancelled"),
    )
    assert (result.accepted, result.released, result.rejected) == (190, 2, 4)


@pytest.mark.parametrize("columns", [None, ["value"]])
def test_arrow_handler(records: DataFrame, columns: list[str] | None) -> None:
    assert runs(handled(records, as_handler(accept_all, columns=columns))) == [(0, 48, 1), (50, 98, 1)]


def test_costs_of_all_tasks_are_added_up(records: DataFrame) -> None:
    def price(record: Record) -> Any:
        return Ack.accept(cost=record.offset) if record.partition == 0 and record.offset < 5 else None

    assert handled(records, as_handler(price)).cost == 10.0


def test_costs_of_batches_in_a_column_and_by_a_function(records: DataFrame) -> None:
    @pandas_handler
    def score(frame: pd.DataFrame) -> pd.DataFrame:
        frame["ack"], frame["cost"] = "accept", frame["offset"] % 2
        return frame

    def tokens(record: Record) -> float:
        if record.offset == 7:
            raise LookupError("no price")
        return 3

    many = as_handler(arrow_handler(lambda batch: [1] * batch.num_rows), cost=tokens)
    assert handled(records, as_handler(score)).cost == sum(row.offset % 2 for row in records.collect())
    for handler in (many, as_handler(lambda _: None, cost=tokens)):
        result = handled(records, handler)
        assert (result.released, result.accepted) == (2, records.count() - 2)
        assert result.cost == 3.0 * result.accepted


def test_pandas_handler(records: DataFrame) -> None:
    @pandas_handler
    def odd_later(frame: pd.DataFrame) -> Any:
        frame["ack"] = (frame["offset"] < 20).map({True: "accept", False: "release"})
        return frame

    assert runs(handled(records, as_handler(odd_later))) == [(0, 19, 1), (20, 48, 2), (50, 98, 2)]


def test_frame_handler(records: DataFrame) -> None:
    @frame_handler
    def some(frame: Any) -> Any:
        return frame.where("offset < 20").withColumn("ack", F.when(F.col("offset") < 5, "reject").otherwise("accept"))

    assert runs(handled(records, as_handler(some))) == [(0, 4, 3), (5, 19, 1), (20, 48, 2), (50, 98, 2)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda frame: frame, "returned a frame without column ack"),
        (lambda _: 5, "returned int, not a DataFrame"),
        (lambda frame: frame.union(frame).withColumn("ack", F.lit(1)), r"returned record orders-0@0 twice"),
    ],
)
def test_frames_that_break_the_contract(records: DataFrame, answer: Any, message: str) -> None:
    fault = handled(records, as_handler(frame_handler(answer))).fault
    assert isinstance(fault, HandlerError)
    assert re.search(message, str(fault))


def test_rows_of_a_frame_without_an_answer_are_released(records: DataFrame) -> None:
    answer = F.when(F.col("offset") == 3, "drop").otherwise("accept")
    result = handled(records, as_handler(frame_handler(lambda frame: frame.withColumn("ack", answer))))
    assert (result.accepted, result.released) == (194, 2)
    assert result.partitions[TopicPartition("orders", 0)].errors[0].error.startswith("answered 'drop'")


def test_a_frame_handler_that_raises_releases_everything(records: DataFrame) -> None:
    result = handled(records, as_handler(frame_handler(lambda _: 1 / 0)))
    assert result.released == 196
    assert result.partitions[TopicPartition("orders", 0)].errors[0].error == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("ack", "error", "message"),
    [
        ("if(offset = 7, raise_error('no city'), 'accept')", "NULL", "no city"),
        ("'reject'", "CAST(unhex('FF') AS string)", "UnicodeDecodeError"),
    ],
)
def test_a_frame_that_fails_when_it_is_computed_releases_everything(
    records: DataFrame, ack: str, error: str, message: str
) -> None:
    answer = frame_handler(lambda frame: frame.withColumns({"ack": F.expr(ack), "error": F.expr(error)}))
    result = handled(records, as_handler(answer))
    assert (result.released, result.fault) == (196, None)
    assert message in result.partitions[TopicPartition("orders", 0)].errors[0].error


def test_records_of_a_frame_that_cannot_be_read_are_not_answered(records: DataFrame) -> None:
    broken = records.where("raise_error('no disk') IS NULL")
    with pytest.raises(Exception, match="no disk"):
        handled(broken, as_handler(frame_handler(lambda frame: frame.withColumn("ack", F.lit("accept")))))


def test_a_broken_contract_comes_from_the_worker_as_one_line(records: DataFrame) -> None:
    result = handled(records, as_handler(arrow_handler(lambda batch: [1] * (batch.num_rows + 1))))
    assert isinstance(result.fault, HandlerError)
    assert re.fullmatch(r"handler tests\S+ returned \d+ acknowledgements for \d+ records", str(result.fault))
    assert (result.accepted, result.released, result.rejected) == (0, 0, 0)


def test_each_record_is_read_once_and_handled_once(records: DataFrame, tmp_path: Path) -> None:
    """Each reading of a batch before the handler writes a line to a separate file."""
    seen = str(tmp_path)

    def note(batches: Any) -> Any:
        for batch in batches:
            (Path(seen) / f"read-{batch.column('partition')[0]}-{batch.column('offset')[0]}").open("a").write("x\n")
            yield batch

    result = handled(records.mapInArrow(note, records.schema), as_handler(accept_all))
    assert result.accepted == 196
    assert {path.read_text() for path in tmp_path.glob("read-*")} == {"x\n"}


def price(record: Record) -> Any:
    """Output for each record, accepted below offset 5, released at 5, rejected above."""
    ack = Ack.ACCEPT if record.offset < 5 else Ack.RELEASE if record.offset == 5 else Ack.REJECT
    return ack, [{"id": record.offset, "at": record.timestamp, "tags": ["a", None]}] * 2


PRICES = "id bigint NOT NULL, at timestamp, tags array<string>, note struct<text:string>"


def test_output_rows_of_accepted_records_are_there_to_be_read_once_acknowledged(records: DataFrame) -> None:
    result = handled(records, as_handler(price, output=PRICES))
    assert runs(result) == [(0, 4, 1), (5, 5, 2), (6, 48, 3), (50, 98, 3)]
    assert result.outputs is not None
    assert [field.simpleString() for field in result.outputs.schema] == [
        *("id:bigint", "at:timestamp", "tags:array<string>", "note:struct<text:string>")
    ]
    rows = result.outputs.collect()
    assert sorted(row.id for row in rows) == sorted([*range(5)] * 4)
    assert rows[0].tags == ["a", None]
    assert rows[0].at is not None
    assert rows[0].note is None
    result.close()
    with pytest.raises(PythonException, match=r"OutputLostError: output rows of handler .*price were lost"):
        result.outputs.collect()


def test_a_handler_without_rows_has_no_outputs(records: DataFrame) -> None:
    handler = as_handler(lambda _: Ack.ACCEPT, output="id bigint")
    result = handled(records, handler)
    assert (result.accepted, result.outputs) == (196, None)
    result.close()


def test_lost_output_never_calls_the_handler_again(records: DataFrame, tmp_path: Path) -> None:
    """Lost blocks, all or some, are an error for the reader: no second call, and no row is left out silently."""
    seen = str(tmp_path / "calls")

    def note(record: Record) -> Any:
        with Path(seen).open("a") as calls:
            calls.write(f"{record.partition}-{record.offset}\n")
        return Ack.ACCEPT, {"id": record.offset}

    result = handled(records, as_handler(note, output="id bigint"))
    assert result.outputs is not None
    assert result.outputs.count() == 196
    _remove_one_block(records.sparkSession)
    with pytest.raises(PythonException, match="OutputLostError"):
        result.outputs.collect()
    result.close()
    assert len(Path(seen).read_text().splitlines()) == 196


def _remove_one_block(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    master = jvm.org.apache.spark.SparkEnv.get().blockManager().master()
    persistent: Any = spark.sparkContext._jsc.getPersistentRDDs()
    newest = max(persistent.keySet())
    master.removeBlock(jvm.org.apache.spark.storage.RDDBlockId(newest, 1))


def test_output_of_another_attempt_is_not_taken_for_ours(records: DataFrame) -> None:
    handler = as_handler(price, output=PRICES)
    task = HandlerTask(
        name=handler.name,
        payload=packed(handler),
        place=new_place(),
        delivery="x",
        output=handler.output,
    )
    held = HeldFrame(_called(records, task))
    with _marked(records.sparkSession, DeliveryRun("x")):
        attempts = decoded(held.runs(), read_once).produced
    assert held.outputs(attempts).count() == sum(attempts.values()) == 20
    with pytest.raises(SparkRuntimeException, match="OutputLostError: output rows are of another attempt"):
        held.outputs({next(iter(attempts)): 0}).collect()
    held.free()


def test_a_few_output_rows_are_one_task_and_so_one_file(records: DataFrame) -> None:
    result = handled(records, as_handler(price, output=PRICES))
    assert result.outputs is not None
    assert result.outputs.rdd.getNumPartitions() == 1
    result.close()


def test_one_record_whose_output_does_not_fit_is_released_and_the_others_are_put_out(records: DataFrame) -> None:
    def late(record: Record) -> Any:
        return Ack.ACCEPT, {"id": record.offset if record.offset != 50 else "no number"}

    result = handled(records, as_handler(late, output="id bigint"))
    assert (result.fault, result.accepted, result.released) == (None, 194, 2)
    (run,) = result.partitions[TopicPartition("orders", 0)].errors
    assert (run.first, run.last) == (50, 50)
    assert run.error.startswith("returned output column id that is no int64: ")
    assert result.outputs is not None
    assert result.outputs.count() == 194
    result.close()


def test_a_contract_broken_as_a_whole_frees_what_is_kept(records: DataFrame) -> None:
    def short(batch: pa.RecordBatch) -> Any:
        return pa.table({"ack": [1], "id": [1]})

    jsc: Any = records.sparkSession.sparkContext._jsc
    before = set(jsc.getPersistentRDDs().keySet())
    result = handled(records, as_handler(short, output="id bigint"))
    assert isinstance(result.fault, HandlerError)
    assert set(jsc.getPersistentRDDs().keySet()) <= before


def test_records_that_cannot_be_read_are_a_fault_of_the_topic(records: DataFrame) -> None:
    unreadable = records.withColumn("offset", F.expr("raise_error('disk on fire')").cast("bigint"))
    result = handled(unreadable, as_handler(accept_all))
    assert isinstance(result.fault, TopicError)
    assert "disk on fire" in str(result.fault)
    assert "\n" not in str(result.fault)
    assert result.partitions == {}


def test_past_its_budget_a_delivery_enters_nothing_more(records: DataFrame) -> None:
    def slow(_: Record) -> None:
        time.sleep(0.05)

    result = handled(records, as_handler(slow), terms=Terms(budget_s=0.5))
    assert 3 <= result.accepted == result.entered < 60
    assert result.accepted + result.not_entered == 196


def test_output_schemas_that_cannot_be(records: DataFrame) -> None:
    with pytest.raises(HandlerError, match="the output schema is wrong"):
        as_handler(price, output="id bigbig")
    with pytest.raises(HandlerError, match="the output schema is wrong"):
        as_handler(price, output=pa.schema([("id", pa.month_day_nano_interval())]))
    with pytest.raises(HandlerError, match="not a list of columns"):
        as_handler(price, output=pa.schema([]))


def test_the_first_record_of_each_task_names_the_stage_attempt(records: DataFrame) -> None:
    found = [row["__task"] for row in with_task_thread(records, ["offset"], "__task").collect()]
    threads = [thread for thread in found if thread is not None]
    assert len(threads) == 3
    assert all(re.search(r"in stage \d+\.0 \(TID \d+\)", thread) for thread in threads)
