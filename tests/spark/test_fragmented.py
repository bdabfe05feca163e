"""Segments of many ranges: they end, and what was written is restored in little memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.delta.location import Location
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.spark.arrow_types import ARROW_ROWS
from share_spark.state import live_frame
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import ACCEPT, RELEASE
from tests.support.fragmented import GROUP, STRIDE, TIME_MS, measured, states_of, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGES, UPDATES, PARTITIONS = 5_000, 81, 3


def test_large_updates_end_a_segment(spark: SparkSession, tmp_path: Path) -> None:
    """Each micro-batch writes some ten ranges; the first two micro-batches are one segment, and so on."""
    world = DeltaWorld(
        spark,
        str(tmp_path / "state"),
        handler=lambda *record: RELEASE if record[2] % 2 else ACCEPT,
        share__delivery__count__limit=25,
    )
    world.produce(20)
    engine = world.engine()
    engine.store.least_ranges = 2
    segments = []
    for _ in range(8):
        engine.run()
        segments.append(engine.store.segment)
    assert segments == sorted(segments)
    assert 1 <= segments[-1] < 7
    assert dict(world.engine().engine._summaries) == dict(engine.engine._summaries)


def test_a_long_fragmented_segment_is_restored_in_little_memory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,215,000 ranges in updates, of which no more than a batch of rows are Python objects at a time."""
    monkeypatch.setattr("share_spark.state.direct_rows.MOST_RANGES", 100_000)
    monkeypatch.setitem(live_frame.BATCHES, ARROW_ROWS, "16")
    location = Location.parse(str(tmp_path / "state"))
    write_segment(spark, location, partitions=PARTITIONS, ranges=RANGES, updates=UPDATES)
    settings = spark.conf.getAll
    log = GroupLog(spark=spark, location=location, group_id=GROUP, run_id="new")
    store = DeltaShareStateStore(log=log, updates_per_snapshot=500)
    assert store.claim().writer_epoch == 2
    with measured(tmp_path / "measures") as tasks:
        summaries = store.load()
    assert spark.conf.get(ARROW_ROWS) == settings.get(ARROW_ROWS, "10000")
    assert len(summaries) == PARTITIONS
    assert {(summary.end_offset, summary.next_deadline_ms) for summary in summaries.values()} == {(RANGES * STRIDE, 9)}
    assert store.last_time_ms == TIME_MS
    expected = [
        run
        for at in range(0, RANGES * STRIDE, STRIDE)
        for run in (
            InFlightBatch(at, at, DeliveryState.ACQUIRED, UPDATES, "spark-dead", 9),
            InFlightBatch(at + 1, at + STRIDE - 1, DeliveryState.ACKNOWLEDGED, 1),
        )
    ]
    found = states_of(store)
    assert len(found) == PARTITIONS
    assert all(list(state.in_flight) == expected for state in found)
    assert 0 < max(task.peak_mb for task in tasks) < 260, "some 120 of them are Python with its libraries"
    assert max(task.most_rows for task in tasks) == 16


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_frame_goes_on_under_the_settings_of_the_user(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    """Rows come to a load few at a time; a micro-batch is none of that."""
    monkeypatch.setattr(DeltaWorld, "driver", None)
    world = DeltaWorld(spark, str(tmp_path / "state"), partitions=parallelism)
    world.produce(2)
    world.engine().run()
    store = world.engine().store
    assert store.live.state.frame is not None
    assert store.live.state.frame.sparkSession is spark
    plan = store.live.state.frame._jdf.sparkSession()
    assert plan.equals(spark._jsparkSession)
