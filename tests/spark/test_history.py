"""The audit on real tables: what the log says of one record and of all attempts, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import cli, record_attempts, record_history
from share_spark.admin.record_life import read_record_history
from share_spark.admin.state_reader import StateReader
from share_spark.audit.history import collect_record_history
from share_spark.maintenance.background import BackgroundMaintenance
from share_spark.model.errors import ConfigError, FencedError, StateError
from share_spark.state.tables import log_table, state_table
from tests.support.engine_on_delta import DeltaWorld, newest_log, only_on_spark
from tests.support.engine_world import ACCEPT, GROUP, REJECT, RELEASE, TOPIC, EngineLife, at
from tests.twins.memory_delivery import Answer

pytestmark = pytest.mark.usefixtures("row_form")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"
LIMIT = "share__delivery__count__limit"

MakeWorld = Callable[..., DeltaWorld]


@pytest.fixture
def make_world(spark: SparkSession, tmp_path: Path) -> MakeWorld:
    return lambda **settings: DeltaWorld(spark, str(tmp_path / "state"), **{"history__retention": "7d", **settings})


def by_offset(_topic: str, _partition: int, offset: int, count: int) -> Answer:
    """0 is accepted, 1 released once, 2 rejected, 3 released for ever."""
    if offset == 1:
        return RELEASE if count == 1 else ACCEPT
    return {0: ACCEPT, 2: REJECT, 3: RELEASE}.get(offset, ACCEPT)


def event_texts(world: DeltaWorld, offset: int, partition: int = 0) -> list[str]:
    """``event count [note] batch.epoch`` of one record, each with its member if it is an acquisition."""
    record = record_at(offset, partition)
    found = collect_record_history(world.spark, world.location, **record)
    assert read_record_history(StateReader.open(str(world.location)), **record) == found, "without Spark"
    return [text_of(event, event.written) for event in found.events]


def record_at(offset: int, partition: int = 0) -> dict[str, Any]:
    return {"group_id": GROUP, "topic": TOPIC, "partition": partition, "offset": offset}


def text_of(event: Any, written: Any) -> str:
    """``written``: the row itself, or what it holds."""
    return (
        f"{event.event} {event.delivery_count}"
        + (f" by {event.member_id}" if event.event == "acquired" else "")
        + (f" [{event.note}]" if event.note else "")
        + f" in {written.writer_epoch}.{written.batch_id}"
    )


def run(engine: EngineLife, micro_batches: int) -> None:
    for _ in range(micro_batches):
        engine.run()


def test_each_kind_of_end_is_reported_in_order_over_several_segments(make_world: MakeWorld) -> None:
    world = make_world(handler=by_offset, **{UPDATES: 2, LIMIT: 3})
    world.produce(4)
    run(world.engine(), 5)
    first = "acquired 1 by spark-run1 in 1.0"
    assert event_texts(world, 0) == [first, "accepted 1 in 1.1"]
    assert event_texts(world, 1) == [first, "released 1 in 1.1", "acquired 2 by spark-run1 in 1.1", "accepted 2 in 1.2"]
    assert event_texts(world, 2) == [first, "rejected 1 in 1.1"]
    assert event_texts(world, 3) == [
        first,
        *("released 1 in 1.1", "acquired 2 by spark-run1 in 1.1"),
        *("released 2 in 1.2", "acquired 3 by spark-run1 in 1.2"),
        "delivery limit reached 3 in 1.3",
    ]
    assert event_texts(world, 4) == []
    for offset in (3, 4):
        frame = record_history(world.spark, str(world.location), **record_at(offset))
        assert [text_of(row, row) for row in frame.collect()] == event_texts(world, offset)
    segments = log_table(world.location).load(world.spark).select("segment").distinct()
    assert segments.count() > 1


def test_a_row_has_its_deadline_and_its_writer(make_world: MakeWorld) -> None:
    world = make_world()
    world.produce(1)
    run(world.engine(), 2)
    acquired, accepted = record_history(
        world.spark, world.location, group_id=GROUP, topic=TOPIC, partition=0, offset=0
    ).collect()
    assert acquired.lock_deadline.timestamp() * 1_000 == world.clock() + 30_000
    assert (accepted.member_id, accepted.lock_deadline, accepted.run_id) == ("spark-run1", None, "run1")
    written = newest_log(world).where("batch_id = 1").first()
    assert written is not None
    assert accepted.written_at == written.written_at


def test_what_a_crash_took_is_lost(make_world: MakeWorld) -> None:
    world = make_world(**{UPDATES: 1})
    world.produce(1)
    world.engine().run()
    world.machine_is_lost()
    world.clock.advance(30_000)
    second = world.engine()
    run(second, 3)
    assert event_texts(world, 0) == [
        *("acquired 1 by spark-run1 in 1.0", "lost 1 in 2.0"),
        *("acquired 2 by spark-run2 in 2.1", "accepted 2 in 2.2"),
    ]


def test_an_answer_that_was_taken_over_is_reported_with_its_error(make_world: MakeWorld) -> None:
    world = make_world(**{UPDATES: 1})
    world.handler = lambda *_: (REJECT, "never")
    world.produce(1)
    world.engine().run()
    run(world.engine(), 1)
    assert event_texts(world, 0) == ["acquired 1 by spark-run1 in 1.0", "rejected 1 in 2.0"]
    (attempt,) = record_attempts(world.spark, world.location, GROUP).collect()
    assert (attempt.outcome, attempt.error) == ("rejected", "never")


@pytest.mark.parametrize("notes_left", [pytest.param(True, marks=pytest.mark.long), False])
def test_what_a_zombie_appended_is_not_reported(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, notes_left: bool
) -> None:
    """Its acknowledgements did not count: the record was delivered again. With the commits gone as well."""
    only_on_spark(monkeypatch)
    world = make_world()
    world.produce(1)
    zombie = world.engine()
    zombie.run()
    world.machine_is_lost()
    successor = world.engine()
    with pytest.raises(FencedError):
        zombie.run()
    world.clock.advance(30_000)
    run(successor, 3)
    rows = log_table(world.location).load(world.spark).where("exists(ended, run -> run.outcome = 'accepted')")
    assert rows.count() == 2
    if not notes_left:
        clean_up(world)
    expected = [
        *("acquired 1 by spark-run1 in 1.0", "lost 1 in 2.0"),
        *("acquired 2 by spark-run2 in 2.1", "accepted 2 in 2.2"),
    ]
    assert event_texts(world, 0) == expected
    found = record_attempts(world.spark, world.location, GROUP).orderBy("writer_epoch", "batch_id")
    assert [(row.delivery_count, row.outcome) for row in found.collect()] == [(1, "lost"), (2, "accepted")]


def clean_up(world: DeltaWorld) -> None:
    """Log clean-up, up to the newest commit."""
    table = log_table(world.location)
    jvm: Any = world.spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(world.spark._jsparkSession, str(table))
    none = jvm.scala.Option.empty()
    log.checkpoint(log.update(False, none, none), none)
    for path in sorted((Path(str(table)) / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.parametrize(
    ("updates", "kept"),
    [
        (2, "7d"),
        pytest.param(2, "0", marks=pytest.mark.long),
        pytest.param(500, "7d", marks=pytest.mark.long),
        (500, "0"),
    ],
)
def test_a_truncation_is_reported_and_the_record_after_it_begins_with_its_own_count(
    make_world: MakeWorld, kept: str, updates: int
) -> None:
    world = make_world(handler=by_offset, history__retention=kept, **{UPDATES: updates})
    world.produce(4)
    engine = world.engine()
    run(engine, 3)
    world.topics.truncate(at(), 1)
    run(engine, 2)
    world.produce(3)
    run(engine, 3)
    lost = "[the log has lost this record; what follows is another one at the same offset]"
    events = {offset: event_texts(world, offset) for offset in range(4)}
    assert not any("truncated" in event for event in events[0])
    for offset in (1, 2, 3):
        (place,) = (place for place, event in enumerate(events[offset]) if event.startswith("truncated"))
        assert lost in events[offset][place]
        assert [event.split(" by ")[0] for event in events[offset][place + 1 :] if "acquired" in event][:1] == [
            "acquired 1"
        ]
        assert sum(event.startswith("acquired 1") for event in events[offset]) == 2
    assert cli.main(["verify", "--location", str(world.location)]) == 0


def test_without_history_the_states_are_reported(make_world: MakeWorld) -> None:
    world = make_world(handler=by_offset, history__retention="0")
    world.produce(4)
    run(world.engine(), 3)
    first, unknown = "acquired 1 by spark-run1 in 1.0", "[reason not kept]"
    assert event_texts(world, 0) == [first, f"finished 1 {unknown} in 1.1"]
    assert event_texts(world, 2) == [first, f"archived 1 {unknown} in 1.1"]
    assert event_texts(world, 3)[:3] == [first, f"available 1 {unknown} in 1.1", "acquired 2 by spark-run1 in 1.1"]
    assert record_attempts(world.spark, world.location).isEmpty()


def test_what_was_pruned_is_earlier_than_the_log(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(handler=lambda *record: RELEASE if record[2] == 1 else ACCEPT, **{UPDATES: 1})
    world.produce(3)
    run(world.engine(), 3)
    log_table(world.location).delta_table(world.spark).delete("segment < 2")
    assert event_texts(world, 2) == ["acknowledged 1 [earlier than the log] in 1.2"]
    assert event_texts(world, 1)[-1] == "acquired 3 by spark-run1 in 1.2"
    assert event_texts(world, 0) == []
    code, lines = command(world, capsys, offset="0")
    assert code == 0
    assert lines[2] == (
        "  nothing known: it lies below the start offset since before the log begins, or was never acquired"
    )
    assert lines[-1].endswith("older segments are gone (history.retention)")


def test_all_attempts_join_with_records(make_world: MakeWorld) -> None:
    world = make_world(handler=by_offset, partitions=2, **{LIMIT: 2})
    world.produce(4)
    world.produce(1, 1)
    run(world.engine(), 3)
    records = world.spark.range(4)
    ended = record_attempts(world.spark, str(world.location), topic=TOPIC).where("partition = 0")
    joined = ended.join(records, records.id.between(ended.first_offset, ended.last_offset))
    rows = joined.orderBy("id", "delivery_count").select("id", "delivery_count", "outcome")
    assert [tuple(row) for row in rows.collect()] == [
        (0, 1, "accepted"),
        (1, 1, "released"),
        (1, 2, "accepted"),
        (2, 1, "rejected"),
        (3, 1, "released"),
        (3, 2, "delivery limit reached"),
    ]
    assert record_attempts(world.spark, world.location, GROUP, "payments").isEmpty()
    assert record_attempts(world.spark, world.location, "shipping").isEmpty()


def command(world: DeltaWorld, capsys: pytest.CaptureFixture[str], **changed: str) -> tuple[int, list[str]]:
    """Exit code and lines of ``share-spark history``, of either stream."""
    given = {
        "location": str(world.location),
        "group": GROUP,
        "topic": TOPIC,
        "partition": "0",
        "offset": "1",
        **changed,
    }
    capsys.readouterr()
    code = cli.main(["history", *(part for key, value in given.items() for part in (f"--{key}", value))])
    out, err = capsys.readouterr()
    assert bool(err) == (code != 0), err
    return code, (out or err).splitlines()


def test_the_command_prints_a_table(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(handler=by_offset)
    world.produce(2)
    run(world.engine(), 3)
    code, lines = command(world, capsys)
    assert code == 0
    assert lines[0] == "group billing: orders, partition 0, offset 1"
    assert lines[2].split() == [
        "written",
        "at",
        "event",
        "count",
        "member",
        "locked",
        "until",
        "batch",
        "epoch",
        "note",
        "error",
    ]
    assert [line.split()[1:4] for line in lines[3:7]] == [
        ["acquired", "1", "spark-run1"],
        ["released", "1", "spark-run1"],
        ["acquired", "2", "spark-run1"],
        ["accepted", "2", "spark-run1"],
    ]
    assert lines[3].split()[4] == "1970-01-01T00:17:10.000Z"
    assert lines[-1].startswith("the log of this share-partition goes back to 20")
    assert lines[-1].endswith("Z, its beginning")
    assert command(world, capsys, offset="7")[1][2] == "  nothing known: it was not acquired yet"


def test_what_is_not_there_is_one_line(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    world = make_world()
    world.produce(1)
    world.engine().run()
    nowhere = str(tmp_path / "nowhere")
    log = f"{world.location}/share_state_log"
    unknown = f"Group 'shipping' does not exist: the state in {log} has none of that name."
    for changed, line in (
        ({"group": "shipping"}, unknown),
        ({"topic": "payments"}, "group 'billing' has no topic 'payments'"),
        ({"partition": "4"}, "group 'billing' has no partition 4 of topic 'orders'"),
        ({"offset": "-1"}, "argument --offset: '-1' is not a number from 0 up (--help lists the options)"),
        ({"location": nowhere}, f"no share-group state at {nowhere}"),
    ):
        assert command(world, capsys, **changed) == (cli.FAILED, [f"share-spark: {line}"])
    with pytest.raises(ConfigError, match="offset -1 is below 0"):
        record_history(world.spark, world.location, group_id=GROUP, topic=TOPIC, partition=0, offset=-1)
    with pytest.raises(StateError, match="Group 'shipping' does not exist"):
        record_history(world.spark, world.location, group_id="shipping", topic=TOPIC, partition=0, offset=0)
    with pytest.raises(StateError, match="no share-group state at"):
        record_attempts(world.spark, nowhere)


def test_the_state_table_says_what_it_said_before(make_world: MakeWorld) -> None:
    """Delta's time travel, by version and by time: the answer to *what was in flight when*. Three runs, one after the
    other, each of which brings the table up to date as it ends."""
    world = make_world(handler=lambda *_: RELEASE)
    world.produce(1)
    for _ in range(3):
        engine = world.engine()
        run(engine, 2)
        refresh(world, engine)
        world.machine_is_lost()
        world.clock.advance(30_000)
    table = state_table(world.location)
    times = {row.version: row.timestamp for row in table.delta_table(world.spark).history().collect()}
    query = f"SELECT max_delivery_count FROM {table.sql_name()}"
    version = min(at for at in times if world.spark.sql(f"{query} VERSION AS OF {at}").count())
    ways = (f"VERSION AS OF {version}", f"TIMESTAMP AS OF '{times[version]}'", f"VERSION AS OF {version + 1}", "")
    found = [[row[0] for row in world.spark.sql(f"{query} {way}").collect()] for way in ways]
    assert found == [[2], [2], [3], [4]], times


def refresh(world: DeltaWorld, engine: EngineLife) -> None:
    """A round of background maintenance, which rewrites the table."""
    maintenance = BackgroundMaintenance(
        spark=world.spark, location=world.location, store=engine.store, refresh_ms=3_600_000, retention_ms=3_600_000
    )
    maintenance.start(engine.claim)
    maintenance.close()
