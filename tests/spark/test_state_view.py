"""The state of a group as users see it: exact from the log, a little late from the table; and what is pruned."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable

from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_maintenance import KeptTable, maintenance_session
from share_spark.maintenance.background import BackgroundMaintenance
from share_spark.model.errors import StateError
from share_spark.state.state_view import read_state
from share_spark.state.tables import log_table, state_table
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import ACCEPT, RELEASE

pytestmark = pytest.mark.usefixtures("row_form")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"


def maintenance_of(world: DeltaWorld, engine: object, retention_ms: int = 0) -> BackgroundMaintenance:
    """Never runs by itself: a round is ``close``."""
    return BackgroundMaintenance(
        spark=world.spark,
        location=world.location,
        store=engine.store,  # type: ignore[attr-defined]
        refresh_ms=3_600_000,
        retention_ms=retention_ms,
    )


def segments(world: DeltaWorld) -> list[int]:
    rows = log_table(world.location).load(world.spark).where("kind <> 'claim'").select("segment").distinct().collect()
    return sorted(row.segment for row in rows)


def test_the_table_is_the_state_for_any_session_and_for_times_past(spark: SparkSession, tmp_path: Path) -> None:
    world = DeltaWorld(
        spark, str(tmp_path / "state"), partitions=2, handler=lambda *record: RELEASE if record[2] == 1 else ACCEPT
    )
    world.produce(3, 0)
    engine = world.engine()
    engine.run()
    for _ in range(2):
        maintenance = maintenance_of(world, engine)
        maintenance.start(engine.claim)
        maintenance.note(engine.run().touched, engine.store.segment)
        maintenance.close()
    table = state_table(world.location).sql_name()
    reader = spark.newSession()
    late = ("updated_at", "bucket", "as_of_batch")
    assert_df_equality(
        reader.sql(f"SELECT * FROM {table}").drop(*late),
        world.frame().drop(*late),
        ignore_row_order=True,
        ignore_nullable=True,
    )
    then, now = (
        reader.sql(f"SELECT max_delivery_count FROM {table} {at} WHERE partition = 0").collect()
        for at in ("VERSION AS OF 1", "")
    )
    assert (then[0][0], now[0][0]) == (2, 3)


def test_it_is_refreshed_after_others_have_cleaned_up_its_log(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The group was idle for longer than the table keeps its commits, and other groups were not."""
    world = DeltaWorld(spark, str(tmp_path / "state"), handler=lambda *_: ACCEPT)
    world.produce(3)
    engine = world.engine()
    maintenance = maintenance_of(world, engine)
    maintenance.start(engine.claim)
    maintenance.note(engine.run().touched, engine.store.segment)
    maintenance._refresh()
    table = Path(str(state_table(world.location)))
    other = DirectAppends.to(spark, str(table), replaces=True)
    for number in range(3):
        other.commit([], transactions={"another group": number})
    DeltaTable(str(table)).create_checkpoint()
    for commit in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    maintenance.note(engine.run().touched, engine.store.segment)
    maintenance.close()
    assert DeltaTable(str(table)).to_pyarrow_table()["start_offset"].to_pylist() == [3]
    assert [record.message for record in caplog.records if "failed" in record.message] == []


def test_it_is_refreshed_from_a_checkpoint_that_another_process_wrote(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Delta reads it in a thread of its own, for the session of whoever asks: here a thread that has none."""
    world = DeltaWorld(spark, str(tmp_path / "state"), handler=lambda *_: ACCEPT)
    table = state_table(world.location)
    for records in (3, 5):
        world.produce(records)
        engine = world.engine()
        maintenance = maintenance_of(world, engine)
        for _ in range(2):
            engine.run()
        KeptTable(maintenance_session(spark), table).checkpoint()
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
        maintenance.start(engine.claim)
        closing = threading.Thread(target=maintenance.close)
        closing.start()
        closing.join()
    assert caplog.messages == []
    assert table.load(spark).head().start_offset == 8  # type: ignore[union-attr]


def test_a_row_says_where_everything_is(spark: SparkSession, tmp_path: Path) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"), handler=lambda *record: RELEASE if record[2] == 0 else ACCEPT)
    world.produce(3)
    engine = world.engine()
    engine.run()
    engine.run()
    (row,) = world.frame().collect()
    assert (row.topic, row.partition, row.start_offset, row.end_offset) == ("orders", 0, 0, 3)
    assert (row.available, row.acquired, row.acknowledged, row.archived) == (0, 1, 2, 0)
    assert (row.max_delivery_count, row.as_of_batch, row.writer_epoch) == (2, 1, 1)
    assert [tuple(run)[:5] for run in row.in_flight] == [
        (0, 0, "Acquired", 2, "spark-run1"),
        (1, 2, "Acknowledged", 1, None),
    ]
    assert row.next_lock_deadline.timestamp() * 1_000 == world.clock() + 30_000


def test_a_row_says_what_is_delayed_and_until_when_and_so_does_the_next_engine(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"), handler=lambda *record: (RELEASE, "", 7_000 + record[2]))
    world.produce(3)
    engine = world.engine()
    engine.run()
    engine.run()
    (row,) = world.frame().collect()
    assert (row.available, row.delayed, row.next_lock_deadline) == (3, 3, None)
    assert row.next_available.timestamp() * 1_000 == world.clock() + 7_000
    assert [run.lock_deadline.timestamp() * 1_000 for run in row.in_flight] == [
        world.clock() + 7_000 + n for n in range(3)
    ]
    assert world.engine().next_available_ms == world.clock() + 7_000


def test_closed_segments_go_unless_their_history_is_wanted(spark: SparkSession, tmp_path: Path) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"), partitions=2, handler=lambda *_: RELEASE, **{UPDATES: 1})
    world.produce(1)
    engine = world.engine()
    for _ in range(3):
        engine.run()
    before = world.windows_by_spark()
    for retention_ms, kept in ((3_600_000, [0, 1, 2]), (0, [2])):
        maintenance = maintenance_of(world, engine, retention_ms)
        maintenance.start(engine.claim)
        maintenance.note([], engine.store.segment)
        maintenance.close()
        assert segments(world) == kept
    assert world.windows_by_spark() == before
    engine.run()
    world.engine()
    assert world.windows_by_spark() == ["0-1: 0-0 Q4", "0-0"]


def test_no_state_is_an_error_and_creates_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no share-group state at"):
        read_state(spark, str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []
