"""Sinks that are partitioned: rows in files of workers, as Spark and delta-rs read them, beside what Spark writes."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from share_spark.api.share_group import ShareGroup
from share_spark.delivery.output_files import OutputFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_log import UnknownTableError
from share_spark.handlers.handler import Record
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog
from tests.support.partition_texts import TEXTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES: dict[str, list[Any]] = {
    "string": TEXTS,
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-1, 0],
    "int": [-(2**31), 7],
    "bigint": [-(2**63), 2**63 - 1],
    "date": [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    "timestamp": [
        datetime(2026, 1, 1, 12, 0, 0, 123_456, UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    ],
    "timestamp_ntz": [datetime.fromisoformat("2026-03-29 02:30:00.123456"), datetime.fromisoformat("0001-01-01")],
    "decimal(10,2)": [Decimal("1.50"), Decimal("12345678.00")],
}
"""By Spark's name of the type. delta-rs cannot read negative decimals, whoever has written them."""

COLUMNS = [f"c{number}" for number in range(len(VALUES))]


def make(spark: SparkSession, place: Path) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, VALUES, strict=True))
    spark.sql(f"CREATE TABLE delta.`{place}` (id bigint, {columns}) USING DELTA PARTITIONED BY ({', '.join(COLUMNS)})")
    return str(place)


def mixed_rows(seed: int) -> list[dict[str, Any]]:
    """Each value at least once, and nulls."""
    chance = random.Random(seed)
    rows = []
    for number, text in enumerate([*TEXTS, None, *chance.choices(TEXTS, k=6)]):
        row: dict[str, Any] = {"id": number, "c0": text}
        for name, values in list(zip(COLUMNS, VALUES.values(), strict=True))[1:]:
            row[name] = [*values, None][number % (len(values) + 1)] if number < len(TEXTS) else chance.choice(values)
        rows.append(row)
    return rows


def partitions(place: str) -> set[tuple[str | None, ...]]:
    """As the log has them."""
    texts = [file.read_text() for file in Path(place, "_delta_log").glob("*.json")]
    actions = [json.loads(line) for text in texts for line in text.splitlines()]
    return {tuple(one["add"]["partitionValues"][name] for name in COLUMNS) for one in actions if "add" in one}


def written(spark: SparkSession, place: Path, seed: int) -> tuple[str, list[dict[str, Any]], pa.Table]:
    """(A table with mixed rows in files of ours, the rows, the rows)."""
    table, rows = make(spark, place), mixed_rows(seed)
    appends = DirectAppends.of_files(spark, table)
    assert appends.place_for_workers is not None
    files, given = OutputFiles(appends.place_for_workers), pa.Table.from_pylist(rows, appends.log.schema)
    files.write(given)
    appends.commit(files.close())
    return table, rows, given


def test_values_of_each_type_are_read_by_spark_and_by_delta_rs(spark: SparkSession, tmp_path: Path) -> None:
    table, rows, _ = written(spark, tmp_path / "table", 3)
    expected = [{name: None if value == "" else value for name, value in row.items()} for row in rows]
    assert spark.read.format("delta").load(table).orderBy("id").toArrow().to_pylist() == expected
    assert DeltaTable(table).to_pyarrow_table().sort_by("id").to_pylist() == expected
    assert DeltaTable(table).vacuum(0, dry_run=True, enforce_retention_duration=False) == []
    pruned = spark.read.format("delta").load(table).where("c7 = timestamp'2026-01-01 12:00:00.123456Z' AND c0 = '100%'")
    assert pruned.count() == sum(row["c0"] == "100%" and row["c7"] == VALUES["timestamp"][0] for row in rows)


@pytest.mark.long
def test_spark_writes_the_same_values(spark: SparkSession, tmp_path: Path) -> None:
    """But for texts that are too long for its directories."""
    table, rows, given = written(spark, tmp_path / "table", 4)
    by_spark = make(spark, tmp_path / "by_spark")
    short = given.filter(pa.array([len(str(row["c0"])) < 99 for row in rows]))
    frame = spark.createDataFrame(short, spark.read.format("delta").load(by_spark).schema)
    frame.coalesce(1).write.format("delta").mode("append").save(by_spark)
    assert len(partitions(by_spark)) > len(TEXTS) - 3
    assert partitions(by_spark) - partitions(table) == set()


def test_rows_of_nothing_but_partition_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = f"{tmp_path}/t"
    spark.sql(f"CREATE TABLE delta.`{table}` (id bigint, a string) USING DELTA PARTITIONED BY (a)")
    appends = DirectAppends.of_files(spark, table)
    assert appends.place_for_workers is not None
    files = OutputFiles(appends.place_for_workers)
    files.write(pa.table({"a": ["x", "", "x"]}))
    appends.commit(files.close())
    assert sorted(map(tuple, spark.read.format("delta").load(table).collect()), key=str) == [
        (None, "x"),
        (None, "x"),
        (None, None),
    ]


@pytest.mark.parametrize(
    ("columns", "by", "reason"),
    [
        ("id bigint, b binary", "b", "partitioned by b binary"),
        ("id bigint, b double", "b", "partitioned by b double"),
        ("id bigint, day date NOT NULL", "day", "column day must not be null"),
    ],
)
def test_what_is_left_to_spark(spark: SparkSession, tmp_path: Path, columns: str, by: str, reason: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` ({columns}) USING DELTA PARTITIONED BY ({by})")
    with pytest.raises(UnknownTableError, match=reason):
        DirectAppends.of_files(spark, f"{tmp_path}/t")


def test_files_of_other_partition_columns_are_not_committed(spark: SparkSession, tmp_path: Path) -> None:
    """The table has been made anew with the same columns meanwhile. A column that is added is no hindrance."""
    table = f"{tmp_path}/t"
    spark.sql(f"CREATE TABLE delta.`{table}` (id bigint, a string, b string) USING DELTA PARTITIONED BY (a)")
    appends = DirectAppends.of_files(spark, table)
    assert appends.place_for_workers is not None
    files = OutputFiles(appends.place_for_workers)
    files.write(pa.table({"id": pa.array([1], pa.int64()), "a": ["x"], "b": ["y"]}))
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN later int")
    appends.commit(files.close())
    assert [tuple(row) for row in spark.read.format("delta").load(table).collect()] == [(1, "x", "y", None)]
    files.write(pa.table({"id": pa.array([2], pa.int64()), "a": ["x"], "b": ["y"]}))
    spark.sql(
        f"REPLACE TABLE delta.`{table}` (id bigint, a string, b string, later int) USING DELTA PARTITIONED BY (b)"
    )
    with pytest.raises(UnknownTableError, match="columns have changed"):
        appends.commit(files.close())
    assert spark.read.format("delta").load(table).count() == 0


def sale(record: Record) -> Any:
    number = int(record.value)
    return 1, {"Number": number, "day": date(2026, 1, 1 + number % 3) if number % 4 else None}


def test_a_run_into_a_partitioned_sink(spark: SparkSession, tmp_path: Path) -> None:
    """No commit is Spark's, and the table's names count, whatever the case of the output's."""
    table, log = f"{tmp_path}/sales", EmbeddedTopicLog(spark, f"{tmp_path}/topics")
    spark.sql(f"CREATE TABLE delta.`{table}` (number bigint, Day date) USING DELTA PARTITIONED BY (Day)")
    log.create_topic("orders", 2)
    log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in range(40)])
    group = ShareGroup("sales", spark=spark, state=f"{tmp_path}/state").table(f"{tmp_path}/topics").subscribe("orders")
    group = group.process(sale, output="Number bigint, day date").to_delta(table).trigger(availableNow=True)
    assert group.option("share.auto.offset.reset", "earliest").start().awaitTermination(120)
    expected = [(n, date(2026, 1, 1 + n % 3) if n % 4 else None) for n in range(40)]
    rows = spark.read.format("delta").load(table).orderBy("number").collect()
    assert [(row.number, row.Day) for row in rows] == expected
    found = DeltaTable(table)
    assert sorted(found.to_pyarrow_table()["number"].to_pylist()) == list(range(40))
    assert {entry.get("engineInfo") for entry in found.history() if entry["operation"] == "WRITE"} == {"share_spark"}
    directories = {path.parent.name for path in Path(table).rglob("*.parquet")}
    assert directories == {"Day=__HIVE_DEFAULT_PARTITION__", *(f"Day=2026-01-0{day}" for day in (1, 2, 3))}
