"""`share-spark configs` and ``ShareGroupAdmin.alter_configs`` beside an engine that runs, and after it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import Ack, EmbeddedTopicLog, Message, Record, ShareGroup, ShareGroupAdmin, ShareGroupQuery
from share_spark.admin.dead_letters import DeadLetters
from share_spark.cli import main
from share_spark.model.errors import ConfigError, StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK, LIMIT, MOST = "share.record.lock.duration.ms", "share.delivery.count.limit", "max.records.per.trigger"


def bill(record: Record) -> Ack:
    if record.value == b"slow":
        time.sleep(20)
    return Ack.ACCEPT


class Place:
    """A group on a topic with one record."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.state, self.topics = spark, str(directory / "state"), str(directory / "topics")
        self.letters = str(directory / "letters")
        self.log = EmbeddedTopicLog(spark, self.topics)
        self.log.create_topic("orders", 1)
        self.put(b"first")

    def put(self, *values: bytes) -> None:
        self.log.append("orders", [Message(value, partition=0) for value in values])

    def start(self, *, available_now: bool = False) -> ShareGroupQuery:
        group = ShareGroup("billing", spark=self.spark, state=self.state).table(self.topics).subscribe("orders")
        group = group.process(bill).dead_letter(self.letters).trigger(availableNow=available_now)
        return group.options(**{"share.auto.offset.reset": "earliest", LOCK: "20s"}).start()

    @property
    def admin(self) -> ShareGroupAdmin:
        return ShareGroupAdmin(self.state)


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """After a run."""
    found = Place(spark, tmp_path_factory.mktemp("configs"))
    assert found.start(available_now=True).awaitTermination(120)
    return found


def test_a_running_engine_takes_them_over(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """And the next one: they are the group's. The time limit goes to the workers, the others decide on the driver."""
    query = place.start()
    query.processAllAvailable()
    command = ["configs", "--location", place.state, "--alter", "--entity-type", "groups", "--entity-name", "billing"]
    pairs = f"{LIMIT}=2,{MOST}=4,delivery.timeout.ms=300"
    assert main([*command, "--add-config", pairs]) == 0
    assert capsys.readouterr().out == (
        f"Dynamic configs for group billing would be: {LIMIT}=2, {MOST}=4, delivery.timeout.ms=300\n\n"
        "Nothing was changed: --execute does it.\n"
    )
    assert main([*command, "--add-config", pairs, "--execute"]) == 0
    assert capsys.readouterr().out == "Completed updating config for group billing.\n"
    time.sleep(1.2)  # an engine looks once a second
    place.put(b"slow", *[b"quick"] * 9)
    query.processAllAvailable()
    query.stop()
    assert max(one.acquired for one in query.recentProgress if one.acquired > 1) == 4
    (letter,) = DeadLetters(place.letters).letters()
    assert (letter.offset, letter.delivery_count) == (1, 2)
    assert "300 ms" in (letter.error or "")
    place.put(*[b"quick"] * 9)
    again = place.start(available_now=True)
    assert again.awaitTermination(120)
    assert max(one.acquired for one in again.recentProgress) == 4
    place.admin.alter_configs("billing", delete=[LIMIT, MOST, "delivery.timeout.ms"])


def test_what_is_set_and_where_it_comes_from(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """What the job said is known from its last engine."""
    command = ["configs", "--location", place.state, "--describe"]
    assert place.admin.alter_configs("billing", {LOCK: "40s"}) == {LOCK: "40000"}
    found = f"{LOCK}=40000 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{LOCK}=40000, JOB_CONFIG:{LOCK}=20000, "
    assert main([*command, "--group", "billing"]) == 0
    lines = ["Dynamic configs for group billing are:", f"  {found}DEFAULT_CONFIG:{LOCK}=30000}}"]
    assert capsys.readouterr().out.splitlines() == lines
    assert main([*command, "--all"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["All configs for group billing are:", lines[1]]
    assert f"  {LIMIT}=5 sensitive=false synonyms={{DEFAULT_CONFIG:{LIMIT}=5}}" in shown
    assert main([*command, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["billing"]
    assert (entry["name"], entry["value"], entry["source"]) == (LOCK, "40000", "DYNAMIC_GROUP_CONFIG")
    place.admin.alter_configs("billing", delete=[LOCK])
    assert main(command) == 0
    assert capsys.readouterr().out == "Dynamic configs for group billing are:\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--add-config", f"{LIMIT}=1"], f"{LIMIT}: 1 is outside 2..25"),
        (["--add-config", "colour=red"], "Unknown group config name: colour"),
        (["--add-config", "metrics.port=1"], "metrics.port cannot be set for a running group"),
        (["--delete-config", LIMIT], f"Invalid config(s): {LIMIT}"),
        (["--add-config", f"{LIMIT}=3", "--group", "audit"], "Exactly one entity name"),
    ],
)
def test_what_cannot_be_set_changes_nothing(
    place: Place, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["configs", "--location", place.state, "--alter", "--group", "billing", "--execute"]
    assert main([*command, *arguments]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert {one.source for one in place.admin.describe_configs("billing")} == {"JOB_CONFIG", "DEFAULT_CONFIG"}


def test_a_group_that_is_not_there(place: Place) -> None:
    with pytest.raises(StateError, match="Group 'bills' does not exist"):
        place.admin.alter_configs("bills", {LIMIT: 3})
    with pytest.raises(StateError, match="Group 'bills' does not exist"):
        place.admin.describe_configs("bills")


def test_values_have_to_fit_to_what_the_job_says(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"is above share\.record\.redelivery\.backoff\.max\.ms"):
        place.admin.plan_configs(
            "billing",
            {"share.record.redelivery.backoff.policy": "exponential", "share.record.redelivery.backoff.ms": "2h"},
        )
