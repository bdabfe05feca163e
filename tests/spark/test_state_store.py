"""The share-state store on Delta, under the engine: what is durable, who may write, what a failed append does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.model.errors import FencedError, StateError
from share_spark.spark.frames import keys_of_tasks
from share_spark.state import group_log
from share_spark.state.commits import NotedCommit
from share_spark.state.tables import log_table
from tests.support.engine_on_delta import DeltaWorld, only_on_spark
from tests.support.engine_world import ACCEPT, GROUP, RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"


@pytest.fixture(params=["driver", "Spark"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who reads the log and appends to it: the driver, by its files, or Spark."""
    if request.param == "Spark":
        only_on_spark(monkeypatch)
    return str(request.param)


def test_the_log_gives_the_live_state_after_every_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """And a successor loads exactly that. Segments are short, so that some begin and end on the way."""
    world = DeltaWorld(
        spark,
        str(tmp_path / "state"),
        partitions=3,
        handler=lambda *record: RELEASE if record[2] % 3 == 0 and record[3] < 3 else ACCEPT,
        **{UPDATES: 2},
    )
    world.produce(6, 0)
    world.produce(2, 1)
    engine = world.engine()
    expected = [
        ["0-6: 0-5 Q1", "0-2: 0-1 Q1", "0-0"],
        ["0-6: 0-0 Q2, 1-2 D1, 3-3 Q2, 4-5 D1", "0-2: 0-0 Q2, 1-1 D1", "0-0"],
        ["0-6: 0-0 Q3, 1-2 D1, 3-3 Q3, 4-5 D1", "0-2: 0-0 Q3, 1-1 D1", "0-0"],
        ["6-6", "2-2", "0-0"],
    ]
    for windows in expected:
        engine.run()
        assert world.windows_by_spark() == windows
        assert world.windows_in_files() == windows
    assert engine.store.segment == 1
    successor = world.engine()
    assert dict(successor.engine._summaries) == dict(engine.engine._summaries)
    assert [successor.claim.writer_epoch, successor.store.segment] == [2, 2]


def test_a_segment_begins_with_every_share_partition_idle_ones_included(spark: SparkSession, tmp_path: Path) -> None:
    """R74-R76: and an idle engine appends nothing."""
    world = DeltaWorld(spark, str(tmp_path / "state"), partitions=2, handler=lambda *_: RELEASE, **{UPDATES: 2})
    world.produce(1, 0)
    engine = world.engine()
    for _ in range(4):
        engine.run()
    rows = log_table(world.location).load(spark).where("kind <> 'claim'").groupBy("segment", "batch_id", "kind").count()
    assert sorted(map(tuple, rows.collect())) == [
        (0, 0, "ShareSnapshot", 2),
        (0, 1, "ShareUpdate", 1),
        (1, 2, "ShareSnapshot", 2),
        (1, 3, "ShareUpdate", 1),
    ]
    world.handler = lambda *_: ACCEPT
    engine.run()
    engine.run()
    versions = world.versions()
    assert engine.run().idle
    assert world.versions() == versions


def test_a_second_engine_fences_the_first_and_the_rows_of_the_zombie_do_not_count(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"))
    world.produce(3)
    zombie = world.engine()
    zombie.run()
    world.machine_is_lost()
    successor = world.engine()
    with pytest.raises(FencedError, match="writer epoch 2"):
        zombie.run()
    written = log_table(world.location).load(spark).where("batch_id = 1").count()
    assert written == (1 if way == "Spark" else 0), "only what compares and swaps is refused before it is written"
    assert world.windows() == ["0-3: 0-2 Q1"]
    world.clock.advance(30_000)
    successor.run()
    successor.run()
    assert world.windows() == ["0-3: 0-2 Q2"]


def test_the_rows_of_a_zombie_do_not_count_for_a_claimer_that_comes_after_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first successor ended before its first append, so the newest segment is still the zombie's own."""
    world = DeltaWorld(spark, str(tmp_path / "state"))
    world.produce(3)
    zombie = world.engine()
    zombie.run()
    world.machine_is_lost()
    world.engine()
    with pytest.raises(FencedError):
        zombie.run()
    third = world.engine()
    assert [summary.start_offset for summary in third.engine._summaries.values()] == [0]
    third.run()
    assert world.windows() == ["0-3: 0-2 Q1"]


def test_of_two_claims_of_one_epoch_the_first_wins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"))
    early, late = (world.delta_store(world, name) for name in ("early", "late"))
    early.claim()
    behind = group_log.tail_of(spark, world.location, GROUP, early.log.opened(), 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(group_log, "tail_of", lambda *_: behind)
    monkeypatch.setattr("share_spark.state.group_log.CommitListing.latest_version", lambda _self: 0)
    with pytest.raises(FencedError, match="writer epoch 1, run early"):
        late.claim()


@contextmanager
def append_fails_once(happened: bool, at: int) -> Iterator[None]:
    """The ``at``th append from now raises, after it has happened or instead."""
    left = [at]

    def failing(append: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            result = append(*given, **named) if left[0] or happened else None
            if left[0] == 0:
                raise OSError("timed out")
            return result

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Location, "append", failing(Location.append))
        patch.setattr(DirectAppends, "commit", failing(DirectAppends.commit))
        yield
    assert left[0] <= 0, "no append failed"


@pytest.mark.parametrize("happened", [True, False])
def test_an_append_of_unknown_outcome_is_looked_up(spark: SparkSession, tmp_path: Path, happened: bool) -> None:
    world = DeltaWorld(
        spark, str(tmp_path / "state"), handler=lambda *record: RELEASE if record[2:] == (1, 1) else ACCEPT
    )
    world.produce(3)
    engine = world.engine(available_now=True)
    engine.run()
    with append_fails_once(happened, at=1):
        engine.run()
    assert world.windows() == ["1-3: 1-1 Q2, 2-2 D1"]
    engine.run()
    assert world.calls == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 1, 2)]
    assert world.windows() == ["3-3"]
    assert log_table(world.location).load(spark).groupBy("batch_id").count().where("count > 1").count() == 0


class FailingListing:
    """A listing that breaks after it has shown the newest commit."""

    def __init__(self, listing: Any) -> None:
        self.listing, self.fails = listing, True

    def after(self, version: int) -> Iterator[NotedCommit]:
        yield from self.listing.after(version)
        if self.fails:
            self.fails = False
            raise OSError("connection reset")

    def holds(self, version: int) -> bool:
        return bool(self.listing.holds(version))

    def back_from(self, version: int) -> Iterator[NotedCommit]:
        return iter(self.listing.back_from(version))


def test_a_look_at_the_log_that_breaks_half_way_forgets_nothing(spark: SparkSession, tmp_path: Path) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"))
    world.produce(3)
    engine = world.engine(available_now=True)
    engine.store.log.commits = FailingListing(engine.store.log.commits)
    engine.run_until_done(most=5)
    assert world.calls == [(0, offset, 1) for offset in range(3)]
    assert world.windows() == ["3-3"]


def test_groups_share_a_location_and_do_not_meet(spark: SparkSession, tmp_path: Path) -> None:
    first = DeltaWorld(spark, str(tmp_path / "state"))
    first.produce(3)
    engine = first.engine()
    engine.run()
    other = first.delta_store(first, "other-run")
    other.log.group_id = "shipping"
    assert other.claim().writer_epoch == 1
    assert other.load() == {}
    engine.run()
    assert first.windows() == ["3-3"]


def test_the_session_keeps_its_settings(spark: SparkSession, tmp_path: Path) -> None:
    before = settings_of(spark)
    world = DeltaWorld(spark, str(tmp_path / "state"))
    world.produce(1)
    world.engine(available_now=True).run_until_done()
    assert settings_of(spark) == before


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Without the one that Delta itself writes at every commit."""
    return {key: value for key, value in spark.conf.getAll.items() if "lastCommitVersionInSession" not in key}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda spark, place: spark.range(1).write.format("delta").save(f"{place}/share_state_log"), "not a table of"),
        (lambda spark, place: spark.range(1).write.format("delta").save(str(place)), "is itself a Delta table"),
        (
            lambda _, place: (place / "share_state_log").mkdir(parents=True) or (place / "share_state_log/x").touch(),
            "holds something",
        ),
    ],
    ids=["another table", "a table itself", "files of others"],
)
def test_a_location_that_holds_something_else_is_refused(
    spark: SparkSession, tmp_path: Path, spoil: Callable[[Any, Path], Any], message: str
) -> None:
    place = tmp_path / "state"
    spoil(spark, place)
    files = sorted(path for path in place.rglob("*"))
    with pytest.raises(StateError, match=message):
        DeltaWorld(spark, str(place)).engine()
    assert sorted(path for path in place.rglob("*")) == files


def test_a_location_of_a_newer_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"))
    world.engine()
    name = log_table(world.location).sql_name()
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('share_spark.format.version' = '99')")
    with pytest.raises(StateError, match="written by a newer share_spark"):
        world.engine()


@pytest.mark.parametrize("tasks", [1, 2, 5, 8])
def test_spark_sends_each_key_to_a_task_of_its_own(spark: SparkSession, tasks: int) -> None:
    rows = spark.createDataFrame([(number,) for number in keys_of_tasks(tasks)], "bucket int")
    placed = rows.repartition(tasks, "bucket").select("bucket", F.spark_partition_id().alias("task"))
    assert {row.bucket: row.task for row in placed.collect()} == {b: t for t, b in enumerate(keys_of_tasks(tasks))}
