"""Why attempts have failed, as the log keeps it and as each way to read it tells it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import cli, record_attempts, record_history
from share_spark.admin.record_life import read_record_history
from share_spark.admin.state_reader import StateReader
from share_spark.audit.history import collect_record_history
from share_spark.delta import direct_metadata
from share_spark.engine.attempts import ENGINE_LOST
from share_spark.state import tables
from share_spark.state.tables import LOG_COLUMNS, log_table
from tests.support.engine_deaths import dies, killer_of
from tests.support.engine_on_delta import DeltaWorld, only_on_spark
from tests.support.engine_world import ACCEPT, GROUP, REJECT, RELEASE, TOPIC, Death, EngineLife
from tests.support.older_release import older_release
from tests.twins.memory_delivery import Answer, WorkerLostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"
LIMIT = "share__delivery__count__limit"
LOCKS = "share__partition__max__record__locks"

MakeWorld = Callable[..., DeltaWorld]


@pytest.fixture
def make_world(spark: SparkSession, tmp_path: Path) -> MakeWorld:
    return lambda **settings: DeltaWorld(spark, str(tmp_path / "state"), **{"history__retention": "7d", **settings})


def run(engine: EngineLife, micro_batches: int) -> None:
    for _ in range(micro_batches):
        engine.run()


def failing(_topic: str, _partition: int, offset: int, count: int) -> Answer:
    """0 fails twice in its own ways, waits in between, and is accepted; 1 is rejected; 2 kills its worker, once."""
    if (offset, count) == (0, 1):
        raise ValueError("no price")
    if (offset, count) == (0, 2):
        return RELEASE, "busy\n\x1b[2Jnow", 5_000
    if (offset, count) == (2, 1):
        raise WorkerLostError
    return (REJECT, "cancelled") if offset == 1 else ACCEPT


def ends(world: DeltaWorld, offset: int) -> list[tuple[str, int | None, str | None]]:
    """Event, count and error of what was no acquisition."""
    reader = StateReader.open(str(world.location))
    found = read_record_history(reader, group_id=GROUP, topic=TOPIC, partition=0, offset=offset)
    return [(one.event, one.delivery_count, one.error) for one in found.events if one.event != "acquired"]


def ends_by_spark(world: DeltaWorld, offset: int) -> list[tuple[str, int | None, str | None]]:
    """The same."""
    found = record_history(world.spark, world.location, group_id=GROUP, topic=TOPIC, partition=0, offset=offset)
    rows = found.where("event <> 'acquired'").collect()
    return [(row.event, row.delivery_count, row.error) for row in rows]


Told = list[tuple[str, int | None, str | None]]
"""Event, count and error."""

FAILED: dict[int, Told] = {
    0: [("released", 1, "ValueError: no price"), ("released", 2, "busy\n\x1b[2Jnow"), ("accepted", 3, None)],
    1: [("rejected", 1, "cancelled")],
    2: [("released", 1, "worker lost"), ("accepted", 2, None)],
    3: [("accepted", 1, None)],
}


def work_off(world: DeltaWorld) -> EngineLife:
    """All four records, the delayed one too."""
    world.produce(4)
    engine = world.engine()
    run(engine, 3)
    world.clock.advance(5_000)
    run(engine, 2)
    return engine


@pytest.mark.parametrize("on_executors", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_failure_is_told_with_its_error(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, on_executors: bool
) -> None:
    if on_executors:
        only_on_spark(monkeypatch)
    world = make_world(handler=failing, **{UPDATES: 2})
    work_off(world)
    assert {offset: ends(world, offset) for offset in FAILED} == FAILED
    assert ends_by_spark(world, 0) == FAILED[0]
    attempts = record_attempts(world.spark, world.location).orderBy("first_offset", "delivery_count").collect()
    said = [(row.first_offset, row.last_offset, row.outcome, row.delivery_count, row.error) for row in attempts]
    assert said == [
        (offset, offset, outcome, count, error) for offset, told in FAILED.items() for outcome, count, error in told
    ]
    sql = (
        f"SELECT f.first_offset, f.error FROM {log_table(world.location).sql_name()} LATERAL VIEW explode(errors) AS f"
    )
    assert {tuple(row) for row in world.spark.sql(sql).collect()} == {
        (offset, error) for offset, told in FAILED.items() for _, _, error in told if error
    }


def test_the_command_tells_errors_and_delays_in_one_line_each(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(handler=failing)
    work_off(world)
    place = ["--group", GROUP, "--topic", TOPIC, "--partition", "0", "--offset", "0"]
    assert cli.main(["history", "--location", str(world.location), *place]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in lines[3:9]] == [
        *(["acquired", "1"], ["released", "1"], ["acquired", "2"], ["released", "2"], ["acquired", "3"]),
        ["accepted", "3"],
    ]
    assert lines[4].endswith("ValueError: no price")
    assert lines[6].endswith("busy\\n\\x1b[2Jnow")
    found = collect_record_history(world.spark, world.location, group_id=GROUP, topic=TOPIC, partition=0, offset=0)
    reader = StateReader.open(str(world.location))
    assert read_record_history(reader, group_id=GROUP, topic=TOPIC, partition=0, offset=0) == found
    assert [one.lock_deadline_ms for one in found.events[1::2]] == [None, world.clock(), None]


def test_without_history_errors_are_not_kept_and_delays_are(make_world: MakeWorld) -> None:
    world = make_world(handler=failing, history__retention="0")
    work_off(world)
    log = log_table(world.location).load(world.spark)
    assert log.where("errors IS NOT NULL").isEmpty()
    reader = StateReader.open(str(world.location))
    found = read_record_history(reader, group_id=GROUP, topic=TOPIC, partition=0, offset=0)
    assert [one.event for one in found.events[:4]] == ["acquired", "available", "acquired", "available"]
    assert [one.lock_deadline_ms for one in found.events[1::2]] == [None, world.clock(), None]


def test_what_is_known_of_a_crash_is_its_error(make_world: MakeWorld) -> None:
    """Of three records one was done, one was in the handler, and one was not entered."""
    world = make_world(handler=killer_of(1))
    world.produce(3)
    dies(world.engine())
    world.clock.advance(30_000)
    run(world.engine(), 4)
    assert ends(world, 0)[0] == ("accepted", 1, None), "the next engine takes its answer over"
    assert ends(world, 1)[0] == ("lost", 1, ENGINE_LOST)
    assert ends(world, 2)[0] == ("not entered", 1, None)


def test_an_answer_whose_rows_are_lost_is_told_as_lost(make_world: MakeWorld) -> None:
    world = make_world(handler=killer_of(1), output=True, loses_rows=True)
    world.produce(2)
    dies(world.engine())
    world.clock.advance(30_000)
    run(world.engine(), 3)
    assert ends(world, 0)[0] == ("lost", 1, "the handler was done with it, and the answer was lost with the engine")


def test_a_restart_tells_what_the_engine_before_was_told(make_world: MakeWorld) -> None:
    world = make_world(handler=failing)
    world.produce(4)
    run(world.engine(), 2)
    world.machine_is_lost()
    world.clock.advance(30_000)
    run(world.engine(), 3)
    lost = ("lost", 2, "the engine was lost, and nothing shows which record was with its handler")
    assert ends(world, 0) == [FAILED[0][0], lost, ("accepted", 3, None)]
    assert ends(world, 1) == FAILED[1]
    assert ends(world, 2) == [FAILED[2][0], lost, ("accepted", 3, None)]


def test_errors_of_committed_output_are_told_by_the_engine_that_takes_it_over(make_world: MakeWorld) -> None:
    """They come from the journal of the sink."""

    def hook(moment: str) -> None:
        if moment == "after output":
            raise Death

    world = make_world(handler=failing, output=True)
    world.produce(4)
    engine = world.engine()
    assert engine.sink is not None
    engine.sink.hook = hook
    dies(engine)
    world.engine().run()
    assert {offset: ends(world, offset) for offset in FAILED} == {offset: told[:1] for offset, told in FAILED.items()}


def test_ten_thousand_different_errors_are_bounded(make_world: MakeWorld) -> None:
    def fails(_topic: str, _partition: int, offset: int, _count: int) -> Answer:
        raise ValueError(f"order {offset} of {'x' * 100}" if offset else "alone")

    world = make_world(handler=fails, **{LIMIT: 2, LOCKS: 20_000})
    world.produce(10_000)
    run(world.engine(), 3)
    assert ends(world, 0) == [("released", 1, "ValueError: alone"), ("delivery limit reached", 2, "ValueError: alone")]
    assert ends(world, 9_999)[0] == ("released", 1, f"ValueError: order # of {'x' * 100}")
    log = log_table(world.location).load(world.spark)
    assert log.selectExpr("max(size(ended))", "max(size(errors))").collect()[0] == (2, 2)


def test_a_table_of_an_older_release_gets_the_column_and_goes_on(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of before are read with those of after, as well as before an engine of this release was there."""
    world = make_world(handler=failing)
    with monkeypatch.context() as older:
        older_release(older)
        world.produce(1)
        run(world.engine(), 2)
    assert ends(world, 0) == ends_by_spark(world, 0) == [("released", 1, None)]
    assert record_attempts(world.spark, world.location).count() == 1
    world.clock.advance(30_000)
    before = world.versions()
    world.produce(3)
    engine = world.engine()
    run(engine, 2)
    assert ends(world, 1) == FAILED[1]
    assert ends(world, 0)[0] == ("released", 1, None)
    history = log_table(world.location).delta_table(world.spark).history(world.versions() - before).collect()
    assert [row.operation for row in history].count("ADD COLUMNS") == 1
    assert cli.main(["verify", "--location", str(world.location)]) == 0


@pytest.mark.parametrize("by_spark", [False, True])
def test_the_column_that_is_added_is_that_of_a_new_table(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    world = make_world()
    with monkeypatch.context() as older:
        older_release(older)
        add_errors(world, is_there=False)
    if by_spark:
        monkeypatch.setattr(direct_metadata, "_add_directly", lambda *_: False)
    add_errors(world)
    versions = world.versions()
    add_errors(world)
    assert world.versions() == versions, "once"
    new = world.location.table("new")
    new.create(world.spark, LOG_COLUMNS)
    fields, added = new.load(world.spark).schema, log_table(world.location).load(world.spark).schema
    assert sorted(fields, key=str) == sorted(added, key=str)


@pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_engine_of_an_older_release_goes_on_beside_it(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """It runs another group of the same table when the column comes, and neither reads nor writes it."""
    if by_spark:
        only_on_spark(monkeypatch)
    world = make_world(handler=failing)
    with monkeypatch.context() as older:
        older_release(older)
        world.produce(1)
        old = world.engine()
        run(old, 1)
    add_errors(world)
    with monkeypatch.context() as older:
        older_release(older)
        run(old, 1)
        world.produce(3)
        world.clock.advance(30_000)
        run(world.engine(), 3)
    assert [event for event, _, _ in ends(world, 1)] == ["rejected"]
    assert log_table(world.location).load(world.spark).where("errors IS NOT NULL").isEmpty()


def add_errors(world: DeltaWorld, *, is_there: bool = True) -> None:
    """An engine begins to run some group of the table. Is the column there now?"""
    tables.ensure_tables(world.spark, world.location)
    assert ("errors" in log_table(world.location).load(world.spark).columns) == is_there
