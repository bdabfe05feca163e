"""Share groups as Kafka's tools show them, read without Spark, beside what Spark's own view says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from share_spark import EmbeddedTopicLog, Message, ShareGroup, ShareGroupAdmin, read_state
from share_spark.admin.group_details import GroupMember, GroupPhase
from share_spark.cli import main
from share_spark.engine.pauses import NOT_PAUSED
from share_spark.engine.progress import MicroBatchProgress
from share_spark.handlers.acknowledgement import Ack
from share_spark.model.errors import ConfigError, StateError
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import ACCEPT, GROUP, RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AdminPlace:
    """Two groups on a topic of three partitions with six records each; billing releases every third record."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.state, self.topics = spark, str(directory / "state"), str(directory / "topics")
        log = EmbeddedTopicLog(spark, self.topics)
        log.create_topic("orders", 3)
        for partition in range(3):
            log.append("orders", [Message(b"%d" % number, partition=partition) for number in range(6)])

    def group(self, name: str, handler: Any) -> ShareGroup:
        group = ShareGroup(name, spark=self.spark, state=self.state).table(self.topics).subscribe("orders")
        return group.process(handler).option("share.auto.offset.reset", "earliest")

    def finish(self, name: str) -> None:
        assert self.group(name, lambda _: Ack.ACCEPT).trigger(availableNow=True).start().awaitTermination(120)

    @property
    def admin(self) -> ShareGroupAdmin:
        return ShareGroupAdmin(self.state)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> AdminPlace:
    return AdminPlace(spark, tmp_path)


@pytest.fixture(scope="module")
def idle_group(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state of a group with one record, for tests that change nothing."""
    state = str(tmp_path_factory.mktemp("idle") / "state")
    world = DeltaWorld(spark, state, partitions=1)
    world.produce(1)
    world.engine().run()
    return state


def test_a_group_while_its_engine_runs_and_after_it(place: AdminPlace) -> None:
    """Where its topics are it says itself."""
    query = place.group("billing", lambda record: Ack.ACCEPT if record.offset < 4 else Ack.RELEASE).start()
    (member,) = members_of(place, "billing")
    assert (member.group_id, member.member_id.startswith("spark-"), member.writer_epoch) == ("billing", True, 1)
    assert place.admin.list_groups()[0].phase is GroupPhase.STABLE
    query.stop()
    assert place.admin.describe_members("billing") == []
    assert [(one.group_id, one.phase) for one in place.admin.list_groups()] == [("billing", GroupPhase.EMPTY)]
    place.finish("billing")
    rows = place.admin.describe_offsets("billing")
    assert [(row.topic, row.partition, row.start_offset, row.lag) for row in rows] == [
        ("orders", partition, 6, 0) for partition in range(3)
    ]


def members_of(place: AdminPlace, group: str) -> Sequence[GroupMember]:
    """Once there are any."""
    for _ in range(300):
        with suppress(StateError):
            if members := place.admin.describe_members(group):
                return members
        time.sleep(0.1)
    raise AssertionError("no engine shows itself")


def test_the_lag_in_time_is_the_age_of_the_oldest_unfinished_record(
    place: AdminPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of partition 0 that is the fourth record, a day old; partition 1 has an hour, and 2 nothing."""
    place.finish("billing")
    log, now = EmbeddedTopicLog(place.spark, place.topics), datetime.now(UTC)
    old, older = now - timedelta(hours=1, minutes=30), now - timedelta(days=3)
    log.append("orders", [Message(b"late", partition=0, timestamp=older), Message(b"x", partition=0, timestamp=old)])
    log.append(
        "orders", place.spark.createDataFrame([(b"y", 1, old)], "value binary, partition int, timestamp timestamp")
    )
    ages = place.admin.lag_ms("billing")
    assert {key: round(age / 3_600_000, 1) for key, age in ages.items()} == {("orders", 0): 72.0, ("orders", 1): 1.5}
    assert main(["groups", "--location", place.state, "--describe", "--group", "billing", "--verbose"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    assert [(line[5], " ".join(line[6:8])) for line in lines] == [("2", "3 d"), ("1", "90 min"), ("0", "0 s")]


def test_what_it_says_is_what_spark_says(spark: SparkSession, tmp_path: Path) -> None:
    """With several engines, fenced appends and segments on the way."""
    settings = {"share__coordinator__snapshot__update__records__per__snapshot": 3}
    world = DeltaWorld(
        spark,
        str(tmp_path / "state"),
        partitions=3,
        handler=lambda _topic, _partition, offset, count: RELEASE if offset % 3 == 0 and count < 3 else ACCEPT,
        **settings,
    )
    admin = ShareGroupAdmin(str(tmp_path / "state"))
    for turn in range(3):
        engine = world.engine()
        for partition in range(3):
            world.produce(4, partition)
            engine.run()
            expected = [
                (row.topic, row.partition, row.start_offset, row.end_offset, row.available, row.acquired, row.archived)
                for row in read_state(spark, world.location, GROUP).orderBy("partition").collect()
            ]
            found = [
                (row.topic, row.partition, row.start_offset, row.end_offset, row.available, row.acquired, row.archived)
                for row in admin.describe_offsets(GROUP)
            ]
            assert found == expected, turn
    assert {row.lag for row in admin.describe_offsets(GROUP)} == {None}, "no engine says where the topics are"


def test_without_commits_the_rows_say_it(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = DeltaWorld(spark, str(tmp_path / "state"), partitions=2, handler=lambda *_: RELEASE)
    world.produce(3)
    engine = world.engine()
    engine.run()
    engine.run()
    expected = ShareGroupAdmin(str(tmp_path / "state")).describe_offsets(GROUP)
    monkeypatch.setattr("share_spark.state.commits.LOOK_BACK", 1)
    assert ShareGroupAdmin(str(tmp_path / "state")).describe_offsets(GROUP) == expected


def test_it_needs_no_spark(place: AdminPlace, tmp_path: Path) -> None:
    """In a process of its own, in which a JVM cannot be started."""
    place.finish("billing")
    before = contents(tmp_path)
    command = [sys.executable, "-m", "share_spark.cli", "groups", "--location", place.state, "--describe", "--json"]
    environment = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    done = subprocess.run([*command, "--group", "billing"], capture_output=True, text=True, env=environment, check=True)
    assert [(row["partition"], row["start_offset"], row["lag"]) for row in json.loads(done.stdout)] == [
        (partition, 6, 0) for partition in range(3)
    ]
    assert contents(tmp_path) == before


def contents(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}


def test_the_tables_are_those_of_kafka(place: AdminPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.finish("billing")
    place.finish("audit")

    def shown(*arguments: str) -> str:
        assert main(["groups", "--location", place.state, *arguments]) == 0
        return capsys.readouterr().out

    assert shown("--list") == "audit\nbilling\n"
    assert shown("--list", "--state") == "GROUP   STATE\naudit   Empty\nbilling Empty\n"
    assert shown("--list", "--state", "stable") == "GROUP STATE\n"
    assert shown("--describe", "--group", "audit").splitlines() == [
        "Share group 'audit' has no active members.",
        "",
        "GROUP TOPIC  PARTITION START-OFFSET LAG",
        "audit orders 0         6            0",
        "audit orders 1         6            0",
        "audit orders 2         6            0",
    ]
    assert "LEADER-EPOCH" in shown("--describe", "--all-groups", "--verbose")
    (row,) = shown("--describe", "--group", "audit", "--state").splitlines()[1:]
    assert row.startswith("audit -                Empty 0        worked off, 2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--describe"], "Option [describe] takes one of these options: [all-groups], [group]"),
        (["--describe", "--group", "nobody"], "Group 'nobody' does not exist"),
        (["--list", "--state", "Busy"], "Invalid state list 'Busy'. Valid states are: Dead, Empty, Stable"),
        (["--describe", "--group", "billing", "--offsets", "--members"], "takes at most one of these options"),
        (["--list", "--describe"], "not allowed with argument"),
        (["--list", "--group", "billing"], "Option [list] does not take the option [group]"),
    ],
)
def test_bad_input_is_one_line(
    idle_group: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["groups", "--location", idle_group, *arguments]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_terminal_view(place: AdminPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.finish("billing")
    assert main(["top", "--location", place.state, "--interval", "0.1", "--count", "1"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["GROUP", "STATE", "ENGINE", "TOPIC", "LAG", "FINISHED/S", "TO", "GO", "ACQUIRED", "WAITING"],
        ["billing", "Empty", "worked", "off", ANY, "s", "ago", "orders", "0", "0", "0", "s", "0", "0"],
        [],
    ]
    assert main(["top", "--location", place.state, "--interval", "0"]) == 1
    assert "is not a number of seconds" in capsys.readouterr().err


def test_what_is_no_state(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no share-group state at"):
        ShareGroupAdmin(str(tmp_path)).list_groups()
    with pytest.raises(ConfigError, match="a name of the catalog"):
        ShareGroupAdmin("main.queues").list_groups()


def offsets(place: AdminPlace, group: str) -> list[int]:
    return [row.start_offset for row in place.admin.describe_offsets(group)]


def test_a_group_begins_where_it_is_reset_to(place: AdminPlace, capsys: pytest.CaptureFixture[str]) -> None:
    """And delivers from there, each record for the first time again."""
    place.finish("billing")
    command = ["groups", "--location", place.state, "--group", "billing", "--reset-offsets"]
    assert main([*command, "--topic", "orders:0,2", "--to-offset", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "GROUP   TOPIC  PARTITION NEW-OFFSET",
        "billing orders 0         2",
        "billing orders 2         2",
        "",
        "Nothing was changed: --execute does it.",
    ]
    assert offsets(place, "billing") == [6, 6, 6]
    assert main([*command, "--topic", "orders:1", "--to-offset", "99"]) == 0
    assert capsys.readouterr().out.splitlines()[2:5] == [
        "",
        "WARN: 99 is beyond the end of the log of orders:1: 6 is taken.",
        "",
    ]
    assert main([*command, "--topic", "orders:0,2", "--to-offset", "2", "--execute"]) == 0
    assert offsets(place, "billing") == [2, 6, 2]
    assert [row.lag for row in place.admin.describe_offsets("billing")] == [4, 0, 4]
    assert main([*command, "--all-topics", "--shift-by", "-100", "--execute"]) == 0
    assert offsets(place, "billing") == [0, 0, 0], "never below the log start"
    assert main([*command, "--all-topics", "--to-latest", "--execute"]) == 0
    assert main([*command, "--topic", "orders:1", "--shift-by", "-2", "--execute"]) == 0
    progress: list[MicroBatchProgress] = []
    group = place.group("billing", lambda _: Ack.ACCEPT).trigger(availableNow=True).listen(progress.append)
    assert group.start().awaitTermination(120)
    assert sum(batch.acquired for batch in progress) == 2
    assert offsets(place, "billing") == [6, 6, 6]


def test_groups_and_topics_are_deleted(place: AdminPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.finish("billing")
    place.finish("audit")
    place.admin.alter_configs("audit", {"share.delivery.count.limit": 3})
    command = ["groups", "--location", place.state]
    assert main([*command, "--delete", "--group", "audit"]) == 0
    assert capsys.readouterr().out.startswith("Share groups ('audit') would be deleted.")
    assert main([*command, "--delete", "--group", "audit", "--execute"]) == 0
    assert capsys.readouterr().out == "Deletion of requested share groups ('audit') was successful.\n"
    assert [one.group_id for one in place.admin.list_groups()] == ["billing"]
    assert read_state(place.spark, place.state, "audit").count() == 0
    place.admin.alter_configs("billing", {"delivery.rate.limit": 50})
    place.admin.set_pauses("billing", place.admin.plan_pause("billing"))
    assert main([*command, "--delete-offsets", "--group", "billing", "--topic", "orders", "--execute"]) == 0
    assert capsys.readouterr().out.splitlines() == ["TOPIC  STATUS", "orders Successful"]
    assert main([*command, "--list", "--state"]) == 0, "as in Kafka it stays, and what is set for it is seen"
    assert capsys.readouterr().out.splitlines()[1:] == ["billing Empty"]
    assert main([*command, "--describe", "--group", "billing", "--state"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(" all topics delivery.rate.limit=50.0")
    assert main([*command, "--delete", "--group", "billing", "--execute"]) == 0
    capsys.readouterr()
    assert place.admin.list_groups() == []
    assert [name for name in files_beside(place) if name.endswith(("/audit", "/billing"))] == []
    assert main([*command, "--describe", "--group", "audit"]) != 0
    assert "Group 'audit' does not exist" in capsys.readouterr().err
    place.finish("audit")
    assert offsets(place, "audit") == [6, 6, 6], "as a group that was never there"
    assert {one.value for one in place.admin.describe_configs("audit") if "count.limit" in one.name} == {"5"}


def files_beside(place: AdminPlace) -> list[str]:
    """The small files beside the state log."""
    return [str(path) for path in Path(place.state).rglob("_share_spark/**/*") if path.is_file()]


def test_a_group_is_paused_and_resumed(place: AdminPlace, capsys: pytest.CaptureFixture[str]) -> None:
    """By a running engine too, and by the next one."""
    query = place.group("billing", lambda _: Ack.ACCEPT).start()
    query.processAllAvailable()
    command = ["groups", "--location", place.state, "--group", "billing"]
    assert main([*command, "--pause", "--topic", "orders:0"]) == 0
    assert capsys.readouterr().out.startswith("Would be paused of share group 'billing': orders:0.")
    assert place.admin.pauses("billing") == NOT_PAUSED
    assert main([*command, "--pause", "--topic", "orders:0", "--until", "2999-01-01", "--execute"]) == 0
    time.sleep(1.2)  # an engine looks once a second
    log = EmbeddedTopicLog(place.spark, place.topics)
    log.append("orders", [Message(b"new", partition=partition) for partition in range(3)])
    for _ in range(300):
        if offsets(place, "billing") == [6, 7, 7]:
            break
        time.sleep(0.1)
    query.stop()
    place.finish("billing")
    assert offsets(place, "billing") == [6, 7, 7]
    capsys.readouterr()
    assert main([*command, "--describe", "--state"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["GROUP", "COORDINATOR", "(ID)", "STATE", "#MEMBERS", "LAST-END", "PAUSED"]
    assert row.endswith(" orders:0 until 2999-01-01T00:00:00+00:00")
    assert main([*command, "--resume", "--execute"]) == 0
    assert capsys.readouterr().out == "Still paused of share group 'billing': nothing.\n"
    place.finish("billing")
    assert offsets(place, "billing") == [7, 7, 7]


def test_nothing_is_changed_while_an_engine_runs(place: AdminPlace, capsys: pytest.CaptureFixture[str]) -> None:
    query = place.group("billing", lambda _: Ack.ACCEPT).start()
    members_of(place, "billing")
    for verb in (["--delete"], ["--reset-offsets", "--all-topics", "--to-earliest"]):
        assert main(["groups", "--location", place.state, "--group", "billing", *verb, "--execute"]) != 0
        assert capsys.readouterr().err == "share-spark: Share group 'billing' is not empty.\n"
    query.stop()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reset-offsets", "--all-topics"], "[to-earliest], [to-latest], [to-datetime], [to-offset], [shift-by]"),
        (["--reset-offsets", "--to-latest"], "takes one of these options: [all-topics], [topic]"),
        (["--reset-offsets", "--topic", "bills", "--to-latest"], "group 'billing' has no topic 'bills'"),
        (["--reset-offsets", "--topic", "orders:7", "--to-latest"], "has no partition 7 of topic 'orders'"),
        (["--reset-offsets", "--topic", "orders:x", "--to-latest"], "'orders:x' is no topic"),
        (["--reset-offsets", "--all-topics", "--to-datetime", "2999-01-01"], "is in the future"),
        (["--reset-offsets", "--all-topics", "--to-datetime", "today"], "'today' is no time"),
        (["--reset-offsets", "--all-topics", "--to-latest", "--to-earliest"], "not allowed with argument"),
        (["--delete-offsets"], "Option [delete-offsets] takes the following options: [topic], [group]"),
        (["--delete-offsets", "--topic", "bills", "--execute"], "group 'billing' has no topic 'bills'"),
        (["--pause", "--topic", "orders:7", "--execute"], "has no partition 7 of topic 'orders'"),
        (["--pause", "--until", "2001-01-01", "--execute"], "2001-01-01 is past"),
        (["--pause", "--until", "soon", "--execute"], "not a duration: 'soon'"),
        (["--pause", "--resume"], "not allowed with argument"),
        (["--resume", "--until", "1h"], "Option [resume] does not take the option [until]"),
    ],
)
def test_changes_that_cannot_be_are_one_line(
    idle_group: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(Path(idle_group))
    command = ["groups", "--location", idle_group, "--group", GROUP, "--topic-table", idle_group]
    assert main([*command, *arguments]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert contents(Path(idle_group)) == before
