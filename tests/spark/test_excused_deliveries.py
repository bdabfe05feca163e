"""Deliveries that do not count towards the limit, in the state log: also in one that an older release has made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import cli, record_history
from share_spark.state.tables import log_table
from tests.support.engine_on_delta import DeltaWorld, only_on_spark
from tests.support.engine_world import GROUP, RELEASE, TOPIC, Death
from tests.support.older_release import older_release
from tests.twins.memory_delivery import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_MS = 30_000
UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"


def dies_at_first(_topic: str, _partition: int, _offset: int, count: int) -> Answer:
    if count == 1:
        raise Death
    return RELEASE


@pytest.fixture(params=[False, True], ids=["files", "Spark"])
def world(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DeltaWorld:
    """Its handler brings the first engine down, and fails from then on; two failures are the limit."""
    if request.param:
        only_on_spark(monkeypatch)
    settings = {"share__delivery__count__limit": 2, UPDATES: 2, "history__retention": "7d"}
    made = DeltaWorld(spark, str(tmp_path / "state"), handler=dies_at_first, **settings)
    made.produce(1)
    return made


def first_engine_dies(world: DeltaWorld) -> None:
    with pytest.raises(Death):
        world.engine().run()
    world.clock.advance(LOCK_MS)


def excused_in_log(world: DeltaWorld) -> list[int]:
    rows = log_table(world.location).load(world.spark).where("size(excused) > 0").orderBy("batch_id", "writer_epoch")
    return [one.excused for row in rows.collect() for one in row.excused]


def goes_on_to_the_dead_letter(world: DeltaWorld) -> None:
    """By one engine after another, each of which loads what the one before has written."""
    windows = list[str]()
    while windows[-1:] != ["1-1"]:
        world.engine().run()
        assert world.windows_by_spark() == world.windows_in_files()
        windows += world.windows_in_files()
        world.clock.advance(LOCK_MS)
    assert windows == ["0-1: 0-0 V1", "0-1: 0-0 Q2", "0-1: 0-0 Q3", "1-1"]
    assert [(letter.delivery_count, letter.reason) for letter in world.dead_letters.letters] == [
        (3, "delivery limit reached")
    ]


def test_they_outlive_the_engines(world: DeltaWorld) -> None:
    first_engine_dies(world)
    goes_on_to_the_dead_letter(world)
    assert set(excused_in_log(world)) == {1}
    assert cli.main(["verify", "--location", str(world.location)]) == 0


def test_a_log_of_an_older_release_is_read_as_it_is_and_continued(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older_release(older)
        first_engine_dies(world)
    assert "excused" not in log_table(world.location).load(world.spark).columns
    assert world.windows_by_spark() == world.windows_in_files() == ["0-1: 0-0 Q1"]
    history = record_history(world.spark, world.location, group_id=GROUP, topic=TOPIC, partition=0, offset=0)
    assert [row.event for row in history.collect()] == ["acquired"]
    assert cli.main(["verify", "--location", str(world.location)]) == 0
    goes_on_to_the_dead_letter(world)
    assert set(excused_in_log(world)) == {1}
    assert cli.main(["verify", "--location", str(world.location)]) == 0
