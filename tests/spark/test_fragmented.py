"""Segments of many ranges: they end, and what was written is restored in little memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.delta.location import Location
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.spark.schemas import ARROW_ROWS
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from tests.support.engine_on_delta import DeltaWorld, only_on_spark
from tests.support.engine_world import ACCEPT, RELEASE
from tests.support.fragmented import GROUP, STRIDE, TIME_MS, states_of, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGES, UPDATES, PARTITIONS = 2_000, 81, 3


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
    assert world.engine().windows == engine.windows


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_long_fragmented_segment_is_restored(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """486,000 ranges in updates, of which no more than some rows are Python objects at a time."""
    if by_spark:
        only_on_spark(monkeypatch)
    location = Location.parse(str(tmp_path / "state"))
    write_segment(spark, location, partitions=PARTITIONS, ranges=RANGES, updates=UPDATES)
    settings = spark.conf.getAll
    log = GroupLog(spark=spark, location=location, group_id=GROUP, run_id="new")
    store = DeltaShareStateStore(log=log, updates_per_snapshot=500)
    assert store.claim().writer_epoch == 2
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
