"""A group whose state, topics and dead letters are named by the catalog: commands by its name, and by its directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import Ack, EmbeddedTopicLog, Message, ShareGroup
from share_spark.cli import main
from share_spark.cli.command import STARTED
from share_spark.delta.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "named_queues"
GROUP = ["--group", "billing"]
RECORD = [*GROUP, "--topic", "orders", "--partition", "0", "--offset", "1"]


@pytest.fixture(scope="module")
def directory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the tables, after a run in which one of two records was rejected."""
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    log = EmbeddedTopicLog(spark, f"{SCHEMA}.topics")
    log.create_topic("orders", 1)
    log.append("orders", [Message(b"good", partition=0), Message(b"bad", partition=0)])
    group = ShareGroup("billing", spark=spark, state=SCHEMA).table(f"{SCHEMA}.topics").subscribe("orders")
    group = group.process(lambda record: Ack.REJECT if record.value == b"bad" else Ack.ACCEPT)
    group = group.dead_letter(f"{SCHEMA}.letters").trigger(availableNow=True)
    group = group.option("checkpointLocation", str(tmp_path_factory.mktemp("checkpoint")))
    query = group.options(**{"share.auto.offset.reset": "earliest", "history.retention": "7d"}).start()
    assert query.awaitTermination(120)
    return str(Path(Location.parse(f"{SCHEMA}.share_state_log").directory(spark).removeprefix("file:")).parent)


def test_by_its_directory_a_group_is_seen_without_spark(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine has said where its tables are, too."""
    assert main(["groups", "--location", directory, "--describe", *GROUP]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["billing", "orders", "0", "2", "0"]
    file = tmp_path / "queues.html"
    assert main(["report", "--location", directory, "--html", str(file)]) == 0
    assert "rejected" in file.read_text(), "its dead letters"


def test_by_its_name_it_is_seen_with_spark(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, said in (
        (["verify", "--location", SCHEMA], "the log is self-consistent"),
        (["compact", "--state", SCHEMA, "--dry-run"], "billing"),
        (["dead-letters", "list", "--table", f"{SCHEMA}.letters"], "orders:0:1"),
        (["dead-letters", "show", "--table", f"{SCHEMA}.letters", *RECORD, "--location", SCHEMA], "acquired"),
        (
            ["dead-letters", "redrive", "--table", f"{SCHEMA}.letters", "--all", "--topic-table", f"{SCHEMA}.topics"],
            "1 letter would be sent again to orders",
        ),
    ):
        assert main(command) == 0, capsys.readouterr().err
        assert said in capsys.readouterr().out, command


def test_what_no_catalog_has_is_one_line(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, said in (
        (
            ["history", "--location", "main.queues", *RECORD],
            "cannot be looked up in the catalogs of this Spark session",
        ),
        (["verify", "--location", "nowhere"], "no share-group state at nowhere"),
        (["compact", "--state", "nowhere"], "no share-group state at nowhere"),
        (["dead-letters", "list", "--table", f"{SCHEMA}.others"], f"no dead-letter table at {SCHEMA}.others"),
    ):
        assert main(command) == (2 if command[0] in ("verify", "compact") else 1)
        *why_spark, line = capsys.readouterr().err.splitlines()
        assert why_spark in ([], ["share-spark: nowhere.share_state_log is a name of the catalog" + STARTED])
        assert said in line
