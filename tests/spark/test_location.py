"""Creating a table while another program creates it, or after one ended while it did."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from share_spark.delta import location
from share_spark.delta.location import Location
from share_spark.engine.ports import RECORD_COLUMNS
from share_spark.model.errors import ConfigError
from share_spark.output.letter_columns import COLUMNS
from share_spark.spark.schemas import columns_in, spark_schema
from share_spark.state.tables import LOG_COLUMNS, STATE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def uncommitted(directory: Path) -> Location:
    """As a creator leaves it that was killed before its commit."""
    log = directory / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / ".00000000000000000000.json.4711.tmp").write_text("{}")
    return Location.parse(str(directory))


def test_what_a_killed_creator_has_left_is_created_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "_MAKING_S", 0.3)
    table = uncommitted(tmp_path / "orders")
    assert table.is_free(spark)
    table.create(spark, "a int", properties={"share_spark.table": "orders"})
    assert table.properties(spark)["share_spark.table"] == "orders"


def test_who_is_making_it_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """It has begun before us, and commits while we wait."""
    made = tmp_path / "made"
    Location.parse(str(made)).create(spark, "a int", properties={"share_spark.table": "his"})
    commit = (made / "_delta_log" / "00000000000000000000.json").read_bytes()
    table = uncommitted(tmp_path / "orders")
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(table.create, spark, "b string", properties={"share_spark.table": "ours"})
        (tmp_path / "orders" / "_delta_log" / "00000000000000000000.json").write_bytes(commit)
        ours.result()
    assert table.properties(spark)["share_spark.table"] == "his"


def test_what_another_has_just_begun_is_left_to_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was there when we looked first, and another program begins before we look again."""
    table = uncommitted(tmp_path / "orders")
    looks = iter([False])
    monkeypatch.setattr(Location, "_is_begun", lambda *_: next(looks, True))
    table._clear_beginning(spark)
    assert (tmp_path / "orders" / "_delta_log" / ".00000000000000000000.json.4711.tmp").exists()


def test_what_another_process_has_made_is_seen_though_there_was_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Delta remembers a log without commits."""
    made, table = tmp_path / "made", uncommitted(tmp_path / "orders")
    Location.parse(str(made)).create(spark, "a int")
    assert not table.exists(spark)
    log = tmp_path / "orders" / "_delta_log"
    (log / "00000000000000000000.json").write_bytes((made / "_delta_log" / "00000000000000000000.json").read_bytes())
    assert table.exists(spark)
    assert not table.is_free(spark)


def test_a_creation_that_did_nothing_is_made_again(spark: SparkSession, tmp_path: Path) -> None:
    """Delta creates nothing where another process has made a directory a moment ago, and does not say so."""
    table = Location.parse(str(tmp_path / "orders"))
    tries: list[int] = []

    def create() -> None:
        tries.append(1)
        if len(tries) > 1:
            spark.sql(f"CREATE TABLE IF NOT EXISTS {table.sql_name()} (a int) USING DELTA")

    table.make(spark, create)
    assert table.exists(spark)
    assert len(tries) == 2


def test_a_name_of_no_catalog_is_one_line(spark: SparkSession) -> None:
    for ask in (Location.parse("main.queues.state").exists, Location.parse("main.queues.state").is_free):
        with pytest.raises(
            ConfigError, match=r"main\.queues\.state cannot be looked up in the catalogs of this"
        ) as fault:
            ask(spark)
        assert "\n" not in str(fault.value)


def test_many_make_it_at_once(spark: SparkSession, tmp_path: Path) -> None:
    table = Location.parse(str(tmp_path / "orders"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: table.create(spark, "a int", properties={"by": str(n)}), range(8)))
    assert table.load(spark).columns == ["a"]
    assert len(list((tmp_path / "orders" / "_delta_log").glob("*.json"))) == 1


def test_a_log_with_a_commit_or_a_directory_with_anything_else_is_not_free(spark: SparkSession, tmp_path: Path) -> None:
    table, foreign = uncommitted(tmp_path / "orders"), uncommitted(tmp_path / "foreign")
    (tmp_path / "orders" / "_delta_log" / "00000000000000000000.json").write_text("{}")
    (tmp_path / "foreign" / "part-0.parquet").write_text("rows")
    assert not table.is_free(spark)
    assert not foreign.is_free(spark)


def test_columns_of_our_tables_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    written = "a ARRAY<STRUCT<b: Int,c:string>>"
    for text in (LOG_COLUMNS, f"{STATE_COLUMNS}, bucket int", COLUMNS, RECORD_COLUMNS, written):
        assert spark_schema(columns_in(text)) == StructType.fromDDL(text)
    for text in ("a", "a map<string,int>", "a int NOT NULL", ""):
        with pytest.raises(ValueError, match=r"is no column with a type|is not known as a type"):
            columns_in(text)
