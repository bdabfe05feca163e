"""Rows in the notes of commits, for readers with and without Spark, until they are in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.audit.verify import verify
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_maintenance import KeptTable
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.model.errors import StateError
from share_spark.state import tables
from share_spark.state.tables import check_properties, log_table
from tests.support.engine_on_delta import DeltaWorld, newest_log, only_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaWorld:
    """Two micro-batches, the second of which is in a note alone."""
    monkeypatch.setattr(DeltaWorld, "notes_rows", True)
    world = DeltaWorld(spark, str(tmp_path / "state"), partitions=2)
    world.produce(3, 0)
    world.produce(2, 1)
    engine = world.engine()
    engine.run()
    engine.run()
    return world


def rows_by_sql(world: DeltaWorld) -> int:
    return log_table(world.location).load(world.spark).where("batch_id = 1").count()


def refuse(*_: object, **__: object) -> None:
    raise UnknownTableError("a test")


def test_all_readers_see_a_row_before_it_is_in_a_file_and_sql_after(world: DeltaWorld) -> None:
    wanted = world.windows()
    assert rows_by_sql(world) == 0
    assert world.windows_by_spark() == wanted
    before = [verify(spark, world.location).verdicts for spark in (world.spark, None)]
    assert before[0] == before[1]
    assert all(verdict.fault is None and verdict.rows == 2 for verdict in before[0])
    KeptTable(None, log_table(world.location)).file_noted_rows()
    assert rows_by_sql(world) == 2
    assert world.windows() == world.windows_by_spark() == wanted
    assert verify(None, world.location).verdicts == before[0]


def test_where_only_spark_reads_the_log_the_rows_are_there_too(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = newest_log(world).collect()
    monkeypatch.setattr(TableLog, "open", refuse)
    assert sorted(map(str, newest_log(world).collect())) == sorted(map(str, found))
    monkeypatch.undo()
    KeptTable(None, log_table(world.location)).file_noted_rows()
    monkeypatch.setattr(TableLog, "open", refuse)
    assert newest_log(world).count() == len(found)


def test_where_only_spark_appends_it_files_the_rows(world: DeltaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = world.windows()
    monkeypatch.setattr(TableLog, "check_can_append", refuse)
    for _ in range(2):
        KeptTable(world.spark, log_table(world.location)).file_noted_rows()
        assert rows_by_sql(world) == 2
    monkeypatch.undo()
    assert world.windows() == world.windows_by_spark() == wanted
    assert not TableLog.open(CommitFiles.at(None, str(log_table(world.location).path))).noted


def test_an_engine_that_only_spark_can_serve_goes_on_from_notes(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_on_spark(monkeypatch)
    world.produce(1, 0)
    engine = world.engine()
    for _ in range(3):
        engine.run()
    monkeypatch.undo()
    assert world.windows() == world.windows_by_spark()
    assert verify(None, world.location).agrees


def test_compaction_files_what_a_dead_engine_has_noted(world: DeltaWorld) -> None:
    wanted = world.windows()
    compact(world.spark, CompactionOrder(state=world.location))
    assert rows_by_sql(world) == 2
    assert world.windows() == wanted


def test_the_next_engine_may_be_one_without_notes(world: DeltaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaWorld, "notes_rows", False)
    world.produce(1, 0)
    engine = world.engine()
    for _ in range(2):
        engine.run()
    assert world.windows() == world.windows_by_spark()


def test_a_release_that_does_not_know_notes_refuses_the_log(world: DeltaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = log_table(world.location).properties(world.spark)
    check_properties("the log", properties)
    monkeypatch.setattr(tables, "NOTED_FORMAT_VERSION", 2)  # as in such a release
    with pytest.raises(StateError, match="a newer share_spark"):
        check_properties("the log", properties)


def test_a_table_that_cannot_be_marked_gets_no_notes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaWorld, "notes_rows", True)
    monkeypatch.setattr(tables, "change_properties", refuse)
    world = DeltaWorld(spark, str(tmp_path / "state"))
    world.produce(3, 0)
    engine = world.engine()
    for _ in range(2):
        engine.run()
    assert rows_by_sql(world) == 1
    assert isinstance(engine.store.log._direct, DirectAppends)
