"""The scheduled compaction on real tables: what it does, what it leaves alone, and beside a running engine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import EmbeddedTopicLog, cli
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_maintenance import KeptTable, maintenance_session
from share_spark.maintenance import compaction
from share_spark.maintenance.background import BackgroundMaintenance
from share_spark.maintenance.compaction import CompactionReport, compact, report_lines
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.maintenance.heartbeat import Heartbeat, heartbeat_file, lock_file
from share_spark.maintenance.idle_groups import evidence_of, snapshot_group
from share_spark.maintenance.retention import closed_files, drop_segments, log_starts_after, oldest_kept_segment
from share_spark.model.errors import ConfigError, FencedError, StateError
from share_spark.model.ids import LogEnds
from share_spark.output.letter_columns import COLUMNS, PROPERTIES
from share_spark.spark.on_demand import SparkOnDemand
from share_spark.state.tables import log_table
from share_spark.topics.topic_producer import Message
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import ACCEPT, GROUP, RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"
HOUR_MS = 3_600_000


def order(world: DeltaWorld, **more: Any) -> CompactionOrder:
    """Without the bounds that the command line keeps: nothing here waits for an hour."""
    return CompactionOrder(state=world.location, **{"idle_ms": 0, **more})


def texts(report: CompactionReport) -> list[str]:
    return [f"{step.subject}: {step.text}" for step in report.steps]


def segments(world: DeltaWorld) -> dict[int, int]:
    """Rows of records by segment."""
    rows = log_table(world.location).load(world.spark).where("kind <> 'claim'").groupBy("segment").count()
    return {row.segment: row["count"] for row in rows.orderBy("segment").collect()}


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> DeltaWorld:
    return DeltaWorld(spark, str(tmp_path / "state"), partitions=2, handler=lambda *_: RELEASE)


@pytest.mark.parametrize("has_session", [True, False])
def test_a_group_without_engine_gets_a_snapshot_once(spark: SparkSession, world: DeltaWorld, has_session: bool) -> None:
    """R74: a restart then reads one row per share-partition. The counts go on from where they were."""
    world.produce(3)
    engine = world.engine()
    for _ in range(3):
        engine.run()
    windows, session = world.windows(), spark if has_session else None
    assert segments(world) == {0: 4}
    (step, *_) = texts(compact(session, order(world)))
    assert step == "group billing: snapshot of 2 share-partitions instead of 2 updates"
    assert segments(world) == {0: 4, 1: 2}
    assert world.windows() == windows
    (step, *_) = texts(compact(session, order(world)))
    assert step == "group billing: nothing since its last snapshot"
    assert segments(world) == {0: 4, 1: 2}
    successor = world.engine()
    assert successor.claim.writer_epoch == 3
    assert successor.windows == engine.windows


def test_a_living_engine_is_left_alone(spark: SparkSession, world: DeltaWorld) -> None:
    world.produce(3)
    engine = world.engine()
    engine.run()
    engine.run()
    maintenance = BackgroundMaintenance(
        spark=spark, location=world.location, store=engine.store, refresh_ms=HOUR_MS, retention_ms=0
    )
    maintenance.start(engine.claim)
    (step, *_) = texts(compact(spark, order(world, idle_ms=60_000)))
    assert "an engine runs it" in step
    engine.run()
    maintenance.close()


@pytest.mark.long
def test_an_idle_engine_counts_as_running_while_its_heartbeat_is_recent(spark: SparkSession, world: DeltaWorld) -> None:
    """It appends nothing, so by the log alone it would count as ended."""
    world.produce(1)
    engine = world.engine()
    engine.run()
    engine.run()
    file = heartbeat_file(spark, world.location, GROUP)
    heartbeat = Heartbeat(file=file, say=lambda: "run1", every_ms=100)
    heartbeat.start()
    time.sleep(2.5)
    (step, *_) = texts(compact(spark, order(world, idle_ms=2_000)))
    assert "an engine runs it" in step
    engine.run()
    heartbeat.close()
    time.sleep(2.5)
    assert "snapshot of 2" in texts(compact(spark, order(world, idle_ms=2_000)))[0]
    with pytest.raises(FencedError, match="compaction-"):
        engine.run()


def test_an_engine_that_starts_while_the_evidence_is_looked_at_wins(spark: SparkSession, world: DeltaWorld) -> None:
    world.produce(3)
    world.engine().run()
    world.machine_is_lost()
    commits = world.delta_store(world, "looks").log.opened()
    found = evidence_of(spark, world.location, GROUP, commits, commits.latest_version())
    engine = world.engine()
    assert snapshot_group(spark, world.location, commits, found) is None
    engine.run()
    assert world.windows() == ["0-3: 0-2 Q1", "0-0"]


def test_what_an_engine_left_in_its_journal_is_for_the_next_engine(
    spark: SparkSession, world: DeltaWorld, tmp_path: Path
) -> None:
    """Whether it counts depends on the segment of the engine that wrote it."""
    world.produce(3)
    engine = world.engine()
    engine.run()
    engine.run()
    journal = tmp_path / "state" / "share_state_log" / "_share_spark" / "dead-letters" / GROUP
    journal.mkdir(parents=True)
    (journal / "1-1").write_text("[]")
    assert "the next one finishes first" in texts(compact(spark, order(world)))[0]
    assert list(segments(world)) == [0]
    (journal / "1-1").rename(journal / "1--1")  # an engine notes its claim of a sink, which is nothing left undone
    (journal / ".1-2.tmp").write_text("[")  # nor is what it did not live to put in its place
    assert "snapshot of 2" in texts(compact(spark, order(world)))[0]


def test_closed_segments_and_the_rows_of_zombies_go(spark: SparkSession, world: DeltaWorld) -> None:
    world.produce(3)
    zombie = world.engine()
    zombie.run()
    successor = world.engine()
    with pytest.raises(FencedError):
        zombie.run()
    for _ in range(2):
        successor.run()
    before = world.windows()
    assert list(segments(world)) == [0, 1]
    compact(spark, order(world, idle_ms=HOUR_MS, history_retention_ms=HOUR_MS))
    assert list(segments(world)) == [0, 1]
    report = compact(spark, order(world, idle_ms=HOUR_MS, history_retention_ms=1))
    assert "group billing: prune 1 files of segments below 1" in texts(report)
    assert log_table(world.location).load(spark).where("run_id = 'run1'").isEmpty()
    assert list(segments(world)) == [1]
    assert world.windows() == before
    assert world.engine().claim.writer_epoch == 3


@pytest.mark.parametrize("has_session", [True, False])
def test_history_that_is_kept_is_joined_into_few_files(spark: SparkSession, tmp_path: Path, has_session: bool) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"), handler=lambda *_: RELEASE, **{UPDATES: 4})
    world.produce(3)
    engine = world.engine()
    for _ in range(8):
        engine.run()
    rows, before = segments(world), world.windows()
    assert list(rows) == [0, 1]
    live = files_of(world, 1)
    report = compact(spark if has_session else None, order(world, idle_ms=HOUR_MS))
    assert "share_state_log: join 5 files of 1 closed segments" in texts(report)
    assert (len(files_of(world, 0)), files_of(world, 1)) == (1, live)
    assert (segments(world), world.windows_by_spark()) == (rows, before)
    engine.run()
    world.engine()


def test_what_only_spark_can_do_is_said(spark: SparkSession, world: DeltaWorld) -> None:
    """What was done before stays."""
    world.produce(3)
    engine = world.engine()
    engine.run()
    engine.run()
    with pytest.raises(
        ConfigError, match=r"share_state_log: old files are looked for \(VACUUM\): only Spark can do that"
    ):
        compact(None, order(world, vacuum_retention_ms=0))
    assert segments(world) == {0: 3, 1: 2}
    asked: list[str] = []

    def start(why: str) -> SparkSession:
        asked.append(why)
        return spark

    assert texts(compact(SparkOnDemand(start), order(world, vacuum_retention_ms=0)))[0].endswith(
        "nothing since its last snapshot"
    )
    assert asked == [f"{world.location}/share_state_log: old files are looked for (VACUUM)"]


def test_where_python_cannot_read_the_log_spark_says_and_does_the_same(
    spark: SparkSession, world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        world.produce(3)
        engine = world.engine()
        engine.run()
        engine.run()
    place, commits = log_table(world.location), engine.store.log.opened()
    version, moment_ms = commits.latest_version(), int(time.time() * 1_000)

    def look() -> Any:
        table = KeptTable(spark, place)
        partitions = sorted((sorted(found.values.items()), *found[1:]) for found in table.partitions())
        kept = [
            oldest_kept_segment(table, GROUP, 1, retention_ms=retention_ms, now_ms=moment_ms)
            for retention_ms in (1, HOUR_MS)
        ]
        found = evidence_of(spark, world.location, GROUP, commits, version)
        return table.size(), partitions, kept, found

    natively = look()
    assert natively[2] == [1, 0]
    assert natively[3].locked_until_ms == world.clock() + 30_000
    with monkeypatch.context() as patch:
        patch.setattr(TableLog, "open", lambda *_, **__: (_ for _ in ()).throw(UnknownTableError("a test")))
        assert look() == natively
        assert drop_segments(KeptTable(spark, place), GROUP, 1)
    assert list(segments(world)) == [1]
    assert (world.windows_by_spark(), closed_files(KeptTable(spark, place), GROUP, 1)) == (world.windows(), 0)


def files_of(world: DeltaWorld, segment: int) -> list[str]:
    return sorted(log_table(world.location).load(world.spark).where(f"segment = {segment}").inputFiles())


@pytest.mark.long
def test_old_versions_and_old_commits_go(spark: SparkSession, world: DeltaWorld, tmp_path: Path) -> None:
    """Commits as far back as a checkpoint that is old enough: by that, versions younger than it stay readable."""
    world.produce(3)
    engine = world.engine()
    for _ in range(5):
        engine.run()
    before, log = world.windows(), tmp_path / "state" / "share_state_log"
    report = compact(spark, order(world, history_retention_ms=1, vacuum_retention_ms=0))
    (name, old, new), *_ = report.sizes
    assert (name, old.rows, new.rows) == ("share_state_log", 7, 3)
    assert len(list(log.rglob("part-*.parquet"))) == 2
    for number, path in enumerate(sorted((log / "_delta_log").glob("0*"))):  # of equal times Delta keeps all
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    engine = world.engine()
    engine.run()
    before = world.windows()
    compact(spark, order(world, history_retention_ms=1, vacuum_retention_ms=0))
    kept = [int(path.stem) for path in (log / "_delta_log").glob("*.json")]
    assert len(kept) < max(kept) / 2
    assert world.windows() == before
    assert dict(world.engine().engine._summaries) == dict(engine.engine._summaries)


def test_what_is_younger_than_the_retention_is_left_though_delta_rounds_it_to_hours(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file that no commit knows yet: that of an append in flight."""
    spark.range(1).write.format("delta").save(str(tmp_path / "table"))
    table = KeptTable(maintenance_session(spark), Location.parse(str(tmp_path / "table")))
    file = tmp_path / "table" / "part-00000-in-flight.parquet"
    file.write_text("")
    table.vacuum(60_000)
    assert file.exists()
    table.vacuum(0)
    assert not file.exists()


def test_a_dry_run_says_it_and_changes_nothing(spark: SparkSession, world: DeltaWorld, tmp_path: Path) -> None:
    for _ in range(2):
        world.produce(3)
        engine = world.engine()
        engine.run()
        engine.run()
    before = contents(tmp_path)
    report = compact(spark, order(world, history_retention_ms=1, vacuum_retention_ms=0, dry_run=True))
    assert contents(tmp_path) == before
    lines = report_lines(report)
    assert lines[0] == f"compaction of {world.location} (dry run: nothing was changed)"
    assert "  group billing: would snapshot it: 1 updates since the last one" in lines
    assert "  group billing: would prune 3 files of segments below 1" in lines
    assert [name for name, *_ in report.sizes] == ["share_state_log", "share_partition_state"]


def test_of_two_compactions_the_second_stops(
    spark: SparkSession, world: DeltaWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(1)
    world.engine().run()
    file = lock_file(spark, world.location)
    assert file.create("elsewhere, process 1")
    before = contents(tmp_path)
    with pytest.raises(StateError, match=r"another compaction of .* is at work \(elsewhere, process 1\)"):
        compact(spark, order(world))
    assert contents(tmp_path) == before
    os.utime(file.path, (1_000_000, 1_000_000))
    compact(spark, order(world))
    assert file.modified_at_ms() is None


def test_of_many_that_begin_at_once_one_holds_the_lock(spark: SparkSession, world: DeltaWorld) -> None:
    world.produce(1)
    world.engine().run()
    gate, won = threading.Barrier(8), []

    def begin(number: int) -> None:
        file = lock_file(spark, world.location)
        gate.wait()
        if file.create(f"process {number}"):
            won.append(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert lock_file(spark, world.location).read() == f"process {won[0]}"


def test_dead_letters_and_records_go_when_their_time_is_over(
    spark: SparkSession, world: DeltaWorld, tmp_path: Path
) -> None:
    world.produce(1)
    world.engine().run()
    letters, topics = Location.parse(str(tmp_path / "letters")), Location.parse(str(tmp_path / "topics"))
    letters.create(spark, COLUMNS, properties=PROPERTIES)
    for hours in (3, 3, 0):
        spark.sql(
            f"INSERT INTO {letters.sql_name()} (group_id, offset, archived_at) "
            f"SELECT 'billing', {hours}, current_timestamp() - INTERVAL {hours} HOURS"
        )
    log = EmbeddedTopicLog(spark, topics)
    log.create_topic("orders", 2)
    old, new = (spark.sql(f"SELECT current_timestamp() - INTERVAL {hours} HOURS").first()[0] for hours in (3, 0))
    log.append("orders", [Message(b"1", partition=0, timestamp=old), Message(b"2", partition=0, timestamp=old)])
    log.append("orders", [Message(b"3", partition=0, timestamp=new), Message(b"4", partition=1, timestamp=old)])
    wanted = {"dead_letter": letters, "dead_letter_retention_ms": 2 * HOUR_MS}
    wanted |= {"topic_table": topics, "topic_retention_ms": 2 * HOUR_MS}
    steps = texts(compact(spark, order(world, **wanted)))
    assert "letters: delete 2 letters" in steps
    assert "topics: move the log start of orders to (partition: offset) 0: 2, 1: 1" in steps
    assert [row.offset for row in letters.load(spark).collect()] == [0]
    assert dict(log.log_ends("orders")) == {0: LogEnds(2, 3), 1: LogEnds(1, 1)}
    assert [row.offset for row in topics.load(spark).collect()] == [2]
    assert log_starts_after(spark, topics, int(time.time() * 1_000) - 2 * HOUR_MS) == {}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"group_id": "shipping"}, "Group 'shipping' does not exist"),
        ({"dead_letter": "state/share_state_log"}, "is not a dead-letter table of share_spark"),
        ({"topic_table": "nowhere"}, "is not a topic table of share_spark"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_changed(
    spark: SparkSession, world: DeltaWorld, tmp_path: Path, more: dict[str, str], message: str
) -> None:
    world.produce(1)
    world.engine().run()
    before = contents(tmp_path)
    given = {key: value if key == "group_id" else Location.parse(str(tmp_path / value)) for key, value in more.items()}
    with pytest.raises((ConfigError, StateError), match=message):
        compact(spark, order(world, **given))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("spoil", ["nothing", "foreign", "newer"])
def test_a_location_that_is_not_ours_is_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: str
) -> None:
    table = f"{tmp_path}/share_state_log"
    if spoil == "foreign":
        spark.range(1).write.format("delta").save(table)
    if spoil == "newer":
        properties = "'share_spark.table' = 'share_state_log', 'share_spark.format.version' = '99'"
        spark.sql(f"CREATE TABLE delta.`{table}` (a int) USING DELTA TBLPROPERTIES ({properties})")
    before = contents(tmp_path)
    capsys.readouterr()
    assert cli.main(["compact", "--state", str(tmp_path)]) == cli.BAD_INPUT
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    wanted = {"nothing": "no share-group state at", "foreign": "is not a table of", "newer": "newer share_spark"}
    assert wanted[spoil] in err
    assert contents(tmp_path) == before


@pytest.mark.long
@pytest.mark.parametrize(("has_session", "retention_ms", "done"), [(True, 1, "prune"), (False, None, "join")])
def test_beside_a_running_engine(
    spark: SparkSession, tmp_path: Path, has_session: bool, retention_ms: int | None, done: str
) -> None:
    """Compactions in a loop: no micro-batch fails, no engine is fenced, and a restart finds what the engine had."""
    world = DeltaWorld(
        spark,
        str(tmp_path / "state"),
        partitions=2,
        handler=lambda *record: ACCEPT if record[3] > 2 else RELEASE,
        **{UPDATES: 3},
    )
    engine = world.engine()
    maintenance = BackgroundMaintenance(
        spark=spark, location=world.location, store=engine.store, refresh_ms=1_000, retention_ms=HOUR_MS
    )
    maintenance.start(engine.claim)
    over, reports, faults = threading.Event(), [], []
    wanted = order(world, idle_ms=60_000, history_retention_ms=retention_ms, vacuum_retention_ms=600_000)

    def keep_compacting() -> None:
        while not over.is_set():
            try:
                reports.append(compact(spark if has_session else None, wanted))
            except Exception as fault:  # noqa: BLE001 - reported below
                faults.append(fault)

    def was_done() -> bool:
        return any(f": {done} " in line for report in reports for line in texts(report))

    thread = threading.Thread(target=keep_compacting)
    thread.start()
    batches = 0
    try:
        until = time.monotonic() + 120
        while not (len(reports) >= 3 and was_done()) and not faults and time.monotonic() < until:
            world.produce(2, batches % 2)
            maintenance.note(engine.run().touched, engine.store.segment)
            batches += 1
            time.sleep(0.1)  # what the least delivery by Spark takes; Delta's own commits give way to faster ones
    finally:
        over.set()
        thread.join()
    assert faults == []
    assert len(reports) >= 3
    assert was_done()
    engine.run(stopping=True)
    maintenance.close()
    successor = world.engine()
    assert dict(successor.engine._summaries) == dict(engine.engine._summaries)


def test_a_running_job_compacts_by_itself(spark: SparkSession, world: DeltaWorld) -> None:
    """By ``compaction.interval``, in its thread of background maintenance, its session's settings untouched."""
    world.produce(3)
    world.engine().run()
    engine = world.engine()
    engine.run()
    settings = dict(spark.conf.getAll)
    maintenance = BackgroundMaintenance(
        spark=spark,
        location=world.location,
        store=engine.store,
        refresh_ms=100,
        retention_ms=HOUR_MS,
        compaction_interval_ms=100,
    )
    maintenance.start(engine.claim)
    until(lambda: len(files_of(world, 0)) == 1)
    maintenance.close()
    changed = {key: value for key, value in spark.conf.getAll.items() if settings.get(key) != value}
    assert [key for key in changed if "lastCommitVersionInSession" not in key] == []
    engine.run()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_the_lock_of_a_compaction_that_fails_is_given_back(
    spark: SparkSession, world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(1)
    world.engine().run()
    with monkeypatch.context() as patch:
        patch.setattr(compaction._Compaction, "work", lambda *_: (_ for _ in ()).throw(OSError("disk")))
        with pytest.raises(OSError, match="disk"):
            compact(spark, order(world))
    assert lock_file(spark, world.location).modified_at_ms() is None
