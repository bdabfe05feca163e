"""What operators change and check while no JVM can be started, on state that engines have made; engines go on from it.
And what only Spark can do."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import Ack, EmbeddedTopicLog, Message, ShareGroup, ShareGroupAdmin
from share_spark.admin.group_changes import StartAt
from share_spark.audit.verify import verify
from share_spark.cli import main
from share_spark.delta.app_transactions import AppTransactions
from share_spark.delta.journal import OUTPUT, Journal
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog
from share_spark.maintenance import compaction, share_coordinator
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.errors import ConfigError, StateError
from share_spark.model.ids import BatchStamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "billing"
HOUR_MS = 3_600_000


class Lab:
    """The topics orders and other, of one partition and six records each; each record that is accepted is a row."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.state, self.bills = spark, str(directory / "state"), str(directory / "bills")
        self.topics = str(directory / "topics")
        for topic in ("orders", "other"):
            EmbeddedTopicLog(spark, self.topics).create_topic(topic, 1)
            self.append(topic)

    def append(self, topic: str) -> None:
        EmbeddedTopicLog(self.spark, self.topics).append(topic, [Message(b"%d" % number) for number in range(6)])

    def run(self) -> Counter[tuple[str, int]]:
        """An engine that works off what there is. Returns how often each record is in the table now."""
        group = ShareGroup(GROUP, spark=self.spark, state=self.state).table(self.topics)
        group = group.subscribe("orders", "other").option("share.auto.offset.reset", "earliest")
        group = group.process(
            lambda record: (Ack.ACCEPT, {"t": record.topic, "o": record.offset}), output="t string, o int"
        )
        assert group.to_delta(self.bills).trigger(availableNow=True).start().awaitTermination(120)
        return self.rows()

    def rows(self) -> Counter[tuple[str, int]]:
        return Counter((row.t, row.o) for row in self.spark.read.format("delta").load(self.bills).collect())

    def status(self) -> list[tuple[str, str]]:
        rows = self.spark.read.format("delta").load(f"{self.state}/share_partition_state").collect()
        return sorted((row.group_id, row.topic) for row in rows)

    def offsets(self) -> dict[str, int]:
        return {row.topic: row.start_offset for row in ShareGroupAdmin(self.state).describe_offsets(GROUP)}

    def groups(self, *arguments: str) -> list[str]:
        return ["groups", "--location", self.state, "--group", GROUP, *arguments]

    def sink_number(self) -> int:
        """Of the last delivery or claim."""
        log_id = TableLog.open(ShareGroupAdmin(self.state).look().reader.log.files).table_id
        return AppTransactions(None, self.bills).latest(f"share_spark/{GROUP}@{log_id}")


def without_jvm(arguments: list[str], *, code: int = 0) -> tuple[list[str], list[str]]:
    """Lines of stdout and stderr, in a process of its own."""
    environment = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "share_spark.cli", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    found = Lab(spark, tmp_path)
    assert set(found.run().values()) == {1}
    return found


def test_a_group_is_reset_and_its_next_engine_delivers_from_there(lab: Lab) -> None:
    """The sink is claimed with the group, so that an engine that only sleeps cannot write there any more."""
    arguments = lab.groups("--reset-offsets", "--topic", "orders", "--to-offset", "4")
    said, _ = without_jvm(arguments)
    assert (said[-1], lab.offsets()) == ("Nothing was changed: --execute does it.", {"orders": 6, "other": 6})
    assert without_jvm([*arguments, "--execute"]) == (
        ["GROUP   TOPIC  PARTITION NEW-OFFSET", "billing orders 0         4"],
        [],
    )
    assert lab.offsets() == {"orders": 4, "other": 6}
    assert lab.sink_number() == BatchStamp(2, -1).number
    assert {place for place, times in lab.run().items() if times == 2} == {("orders", 4), ("orders", 5)}
    said, _ = without_jvm(["verify", "--location", lab.state])
    assert said[1].split()[:2] == [GROUP, "2"]
    assert said[-1].startswith("the log is self-consistent")


def test_a_topic_is_forgotten_and_begins_anew(lab: Lab) -> None:
    """Its row of the status table goes with it."""
    assert lab.status() == [(GROUP, "orders"), (GROUP, "other")]
    said, _ = without_jvm(lab.groups("--delete-offsets", "--topic", "orders", "--execute"))
    assert said == ["TOPIC  STATUS", "orders Successful"]
    assert (lab.offsets(), lab.status()) == ({"other": 6}, [(GROUP, "other")])
    assert {place[0] for place, times in lab.run().items() if times == 2} == {"orders"}
    assert lab.status() == [(GROUP, "orders"), (GROUP, "other")]


def test_a_group_is_deleted_and_begins_anew(lab: Lab) -> None:
    said, _ = without_jvm(lab.groups("--delete", "--execute"))
    assert said == ["Deletion of requested share groups ('billing') was successful."]
    assert (ShareGroupAdmin(lab.state).list_groups(), lab.status()) == ([], [])
    assert set(lab.run().values()) == {2}
    assert verify(lab.spark, lab.state).agrees


def test_a_state_is_compacted_and_an_engine_goes_on_from_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has been silent for long enough its engine counts as running; then the group gets a snapshot, and the
    segment before it one file."""
    said, _ = without_jvm(["compact", "--state", lab.state])
    assert said[:2] == [
        f"compaction of {lab.state}",
        "  group billing: an engine runs it, or has until lately: snapshots are left to it",
    ]
    monkeypatch.setattr(compaction, "wall_clock_ms", lambda: wall_clock_ms() + HOUR_MS)
    steps = compact(None, CompactionOrder(state=Location.parse(lab.state))).steps
    assert [step.text.partition(" instead")[0] for step in steps if step.subject == "group billing"] == [
        "snapshot of 2 share-partitions"
    ]
    assert [step.text.split()[0] for step in steps if step.subject == "share_state_log"] == ["join"]
    assert lab.sink_number() == BatchStamp(2, -1).number
    assert verify(lab.spark, lab.state).agrees
    assert lab.offsets() == {"orders": 6, "other": 6}
    lab.append("orders")
    assert sorted(lab.run().items()) == [
        *((("orders", n), 1) for n in range(12)),
        *((("other", n), 1) for n in range(6)),
    ]


def test_work_that_is_left_to_the_next_engine_is_left_without_a_jvm_too(lab: Lab) -> None:
    """An entry in the journal of the sink may be of rows that are there."""
    journal = Journal(None, f"{lab.state}/share_state_log", OUTPUT, GROUP)
    journal.put(BatchStamp(1, 9), b"{}\n")
    _, (line,) = without_jvm(lab.groups("--reset-offsets", "--all-topics", "--to-earliest", "--execute"), code=1)
    assert line == (
        "share-spark: the last engine of group 'billing' has left work that the next one finishes first; start one"
    )
    assert lab.offsets() == {"orders": 6, "other": 6}


def test_an_operator_who_dies_after_the_claim_has_changed_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = ShareGroupAdmin(lab.state)
    plan = admin.plan_reset(GROUP, StartAt.EARLIEST)

    def die(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(share_coordinator, "claim_idle_sinks", die)
        with pytest.raises(KeyboardInterrupt):
            admin.reset_offsets(plan)
    assert lab.offsets() == {"orders": 6, "other": 6}
    admin.reset_offsets(plan)
    assert lab.offsets() == {"orders": 0, "other": 0}
    assert set(lab.run().values()) == {2}


def test_a_sink_that_only_spark_can_claim_starts_spark(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a constraint, which Spark's writer checks."""
    lab.spark.sql(f"ALTER TABLE delta.`{lab.bills}` ADD CONSTRAINT positive CHECK (o >= 0)")
    arguments = lab.groups("--reset-offsets", "--topic", "orders", "--to-offset", "4", "--execute")
    _, (why, fault) = without_jvm(arguments, code=1)
    starts = f"share-spark: {lab.bills} can be claimed by Spark only (the table has the feature checkConstraints); "
    assert why == starts + "Spark is started for that, which takes longer"
    assert fault.startswith("share-spark: Java was not found")
    admin = ShareGroupAdmin(lab.state)
    with pytest.raises(ConfigError, match=r"checkConstraints.*only Spark can do that; give a Spark session"):
        admin.reset_offsets(admin.plan_reset(GROUP, StartAt.OFFSET, 4))
    assert lab.offsets() == {"orders": 6, "other": 6}
    assert main(arguments) == 0
    assert capsys.readouterr().err.splitlines() == [why]
    assert lab.offsets() == {"orders": 4, "other": 6}
    assert {place for place, times in lab.run().items() if times == 2} == {("orders", 4), ("orders", 5)}


def test_a_status_table_that_only_spark_can_change_is_no_reason_to_leave_half_of_it(lab: Lab) -> None:
    """Of a deleted topic either everything goes, or nothing."""
    table = f"delta.`{lab.state}/share_partition_state`"
    lab.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT positive CHECK (start_offset >= 0)")
    with pytest.raises(ConfigError, match=r"rows of .* can be deleted by Spark only .*checkConstraints"):
        ShareGroupAdmin(lab.state).delete_offsets(GROUP, ["orders"])
    assert lab.offsets() == {"orders": 6, "other": 6}
    ShareGroupAdmin(lab.state, spark=lab.spark).delete_offsets(GROUP, ["orders"])
    assert (lab.offsets(), lab.status()) == ({"other": 6}, [(GROUP, "other")])


def test_a_sink_that_is_not_to_be_seen_may_be_where_only_spark_can_look(lab: Lab, tmp_path: Path) -> None:
    """A path without a scheme may be one of a cluster's own file system."""
    journal = Journal(None, f"{lab.state}/share_state_log", OUTPUT, GROUP)
    Path(lab.bills).rename(tmp_path / "elsewhere")
    (stamp,) = journal.stamps()
    assert Location.parse(lab.bills).path in (journal.read(stamp) or b"").decode()
    admin = ShareGroupAdmin(lab.state)
    plan = admin.plan_reset(GROUP, StartAt.EARLIEST)
    with pytest.raises(ConfigError, match="is not to be seen on this machine: only Spark can do that"):
        admin.reset_offsets(plan)
    ShareGroupAdmin(lab.state, spark=lab.spark).reset_offsets(plan)
    assert lab.offsets() == {"orders": 0, "other": 0}


def test_a_running_engine_is_left_alone_without_a_jvm_too(lab: Lab) -> None:
    """By its heartbeat, when the change was planned before it began."""
    admin = ShareGroupAdmin(lab.state)
    plan = admin.plan_reset(GROUP, StartAt.EARLIEST)
    beat = Path(f"{lab.state}/share_state_log/_share_spark/alive/{GROUP}")
    beat.write_text("spark-new")
    with pytest.raises(Exception, match="is run by an engine"):
        admin.reset_offsets(plan)
    with pytest.raises(StateError, match="is not empty"):
        admin.delete_group(GROUP)
    assert lab.offsets() == {"orders": 6, "other": 6}
