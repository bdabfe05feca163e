"""`share-spark dead-letters` without Spark: what it prints, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from share_spark import cli
from share_spark.admin import redrive_targets
from share_spark.admin.dead_letters import DeadLetters
from share_spark.admin.letters import LetterFilter
from share_spark.cli import dead_letter_commands
from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import EnvironmentFault
from tests.support.letter_tables import make_letters, row, set_columns
from tests.support.memory_topics import MemoryTopics

HEADERS = [{"key": "tenant", "value": b"a"}, {"key": "kafka_dlt-original-partition", "value": b"\0\0\0\3"}]
KAFKA = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.fixture
def place(tmp_path: Path) -> str:
    rejected = row(3, error=None, reason="rejected", value=b'{"city":"\xc3\xbc"}', headers=HEADERS)
    return make_letters(tmp_path / "dead", [row(0), row(1), row(2, topic="bills")], [rejected])


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    found = cli.main(["dead-letters", *arguments])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out if code == 0 else captured.err


def test_letters_of_records_of_any_year(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [row(0, timestamp=1_700_000_000_000_000_000), row(1, timestamp=-1_000), row(2, timestamp=None)]
    place = make_letters(tmp_path / "dead", rows)
    found = json.loads(shown(capsys, "list", "--table", place, "--letters", "--json"))
    assert sorted(one["offset"] for one in found) == [0, 1, 2]
    times = ["9999-12-30T00:00:00.000Z", "1969-12-31T23:59:59.999Z", "-"]
    for offset, time in enumerate(times):
        record = ["--topic", "orders", "--partition", "0", "--offset", str(offset)]
        assert f"  record time   {time}" in shown(capsys, "show", "--table", place, *record).splitlines()


def test_letters_by_error(capsys: pytest.CaptureFixture[str], place: str) -> None:
    assert shown(capsys, "list", "--table", place).splitlines() == [
        "COUNT REDRIVEN FIRST-SEEN               LAST-SEEN                GROUP   EXAMPLE    REASON                 "
        "ERROR",
        "3     0        2026-01-02T12:00:00.000Z 2026-01-02T12:02:00.000Z billing bills:0:2  delivery limit reached "
        "ValueError: no city #",
        "1     0        2026-01-02T12:03:00.000Z 2026-01-02T12:03:00.000Z billing orders:0:3 rejected               -",
    ]
    assert len(shown(capsys, "list", "--table", place, "--limit", "1").splitlines()) == 2
    found = json.loads(shown(capsys, "list", "--table", place, "--json", "--error", "CITY"))
    assert [(one["count"], one["error"]) for one in found] == [(3, "ValueError: no city #")]


def test_letters_one_by_one(capsys: pytest.CaptureFixture[str], place: str) -> None:
    lines = shown(capsys, "list", "--table", place, "--letters", "--topic", "orders:0", "--limit", "2").splitlines()
    assert [line.split()[1:4] for line in lines] == [
        ["TOPIC", "PARTITION", "OFFSET"],
        ["orders", "0", "3"],
        ["orders", "0", "1"],
    ]
    found = json.loads(shown(capsys, "list", "--table", place, "--letters", "--reason", "rejected", "--json"))
    assert (found[0]["offset"], found[0]["headers"][0]) == (3, {"key": "tenant", "value": "YQ=="})


def test_a_topic_that_is_named_twice_is_one_topic(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As in `share-spark groups`: of all that is named; without partitions that is all of them."""
    place = make_letters(tmp_path / "more", [row(at, partition=at) for at in range(3)])

    def partitions(*topics: str) -> list[int]:
        named = [part for topic in topics for part in ("--topic", topic)]
        found = json.loads(shown(capsys, "list", "--table", place, "--letters", "--json", *named))
        return sorted(one["partition"] for one in found)

    assert partitions("orders:0", "orders:2") == [0, 2]
    assert partitions("orders:0", "orders") == partitions("orders", "orders:0") == [0, 1, 2]


def test_all_of_one_letter(capsys: pytest.CaptureFixture[str], place: str) -> None:
    set_columns(place, 3, corrected_value=b"\xff\x01")
    record = ["--topic", "orders", "--partition", "0", "--offset", "3"]
    assert shown(capsys, "show", "--table", place, *record).splitlines() == [
        "group billing: orders, partition 0, offset 3",
        "  archived      2026-01-02T12:03:00.000Z",
        "  reason        rejected",
        "  deliveries    5",
        "  error         -",
        "  record time   2026-01-02T12:00:00.000Z",
        "  headers",
        "    tenant = a",
        "    kafka_dlt-original-partition = 00 00 00 03 (hex)",
        "  key (text, 3 bytes)",
        "    key",
        "  value (JSON, 13 bytes)",
        "    {",
        '      "city": "ü"',
        "    }",
        "  corrected value (hex, 2 bytes)",
        "    ff 01",
    ]
    cut = shown(capsys, "show", "--table", place, *record, "--most", "1").splitlines()
    assert cut[-3:] == ["  corrected value (hex, 2 bytes)", "    f", "    … cut here (--most shows more)"]
    (found,) = json.loads(shown(capsys, "show", "--table", place, *record, "--json"))
    assert (found["key"], found["corrected_value"], found["history"]) == ("a2V5", "/wE=", [])


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["show", "--topic", "t", "--partition", "0", "--offset", "0"],
        ["purge", "--all"],
        ["purge", "--all", "--execute"],
        ["redrive", "--all", *KAFKA],
        ["redrive", "--all", *KAFKA, "--execute"],
    ],
)
def test_a_name_is_looked_up_by_spark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Which has to be started for that."""

    def started(_name: str) -> NoReturn:
        raise EnvironmentFault("this is Spark")

    monkeypatch.setattr(dead_letter_commands, "command_session", started)
    assert "this is Spark" in shown(capsys, *arguments, "--table", "main.letters", code=cli.FAILED)


def test_a_purge_says_what_it_would_do_and_does_it_when_told(capsys: pytest.CaptureFixture[str], place: str) -> None:
    where = ["purge", "--table", place, "--error", "city"]
    assert shown(capsys, *where) == (
        "3 letters would be deleted (bills: 1, orders: 2; redriven: 0).\n\nNothing was changed: --execute does it.\n"
    )
    assert len(DeadLetters(place).letters()) == 4
    assert shown(capsys, *where, "--execute") == "3 letters deleted.\n"
    assert shown(capsys, "purge", "--table", place, "--all", "--execute") == "1 letter deleted.\n"


def test_a_redrive_says_what_it_would_do_and_does_it_when_told(
    capsys: pytest.CaptureFixture[str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = MemoryTopics(topics={"orders": {0}, "bills": {0}})
    asked: list[KafkaOptions] = []

    def connected(options: KafkaOptions, _timeout_ms: int) -> MemoryTopics:
        asked.append(options)
        return topics

    monkeypatch.setattr(redrive_targets, "KafkaTopics", connected)
    where = ["redrive", "--table", place, *KAFKA, "--error", "city"]
    assert shown(capsys, *where) == (
        "3 letters would be sent again to bills, orders.\n\nNothing was changed: --execute does it.\n"
    )
    assert topics.records == []
    assert shown(capsys, *where, "--limit", "1", "--execute") == "1 letter sent again, 1 marked as redriven.\n"
    assert "2 letters would be sent again to bills, orders. 1 letter redriven already" in shown(capsys, *where)
    assert shown(capsys, *where, "--execute", "--rate", "1000") == "2 letters sent again, 2 marked as redriven.\n"
    assert topics.values == [b"0", b"1", b"2"]
    assert {one.bootstrap_servers for one in asked} == {"127.0.0.1:1"}


def test_a_runs_file_says_where_the_topics_and_the_letters_are(
    capsys: pytest.CaptureFixture[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = tmp_path / "job.toml", list[KafkaOptions]()

    def connected(options: KafkaOptions, _timeout_ms: int) -> MemoryTopics:
        asked.append(options)
        return MemoryTopics()

    monkeypatch.setattr(redrive_targets, "KafkaTopics", connected)
    kafka = '[kafka]\n"client.id" = "billing"\n'
    file.write_text(f'[job]\nbootstrap-server = "127.0.0.1:1"\ndead-letter = "{place}"\n{kafka}')
    assert "1 letter would be sent again to orders." in shown(
        capsys, "redrive", "--config", str(file), "--reason", "rejected"
    )
    assert asked[0].values == {"bootstrap.servers": "127.0.0.1:1", "client.id": "billing"}
    file.write_text(f'[job]\nbootstrap-server = "127.0.0.1:1"\ndead-letter = "orders-dead"\n{kafka}')
    refused = shown(capsys, "redrive", "--config", str(file), "--reason", "rejected", code=cli.FAILED)
    assert refused == "share-spark: --table is missing: 'orders-dead' is a topic\n"


TABLE = ["--table", "DEAD"]
REFUSED: dict[str, tuple[Sequence[str], str]] = {
    "no verb": ([], "required: list, show, redrive or purge"),
    "no table": (["list"], "required: --table"),
    "nothing there": (["list", "--table", "./none"], "there is no dead-letter table at "),
    "another option": (["list", *TABLE, "--colour", "red"], "unknown argument --colour"),
    "a topic's form": (["list", *TABLE, "--topic", "orders:x"], "'orders:x' is no topic"),
    "no such topic": (["list", *TABLE, "--topic", "flights"], "has no letter of topic 'flights': it has bills, orders"),
    "no such partition": (["list", *TABLE, "--topic", "orders:9"], "has no letter of topic 'orders', partition 9"),
    "no such group": (["list", *TABLE, "--group", "audit"], "has no letter of group 'audit': it has billing"),
    "offsets": (["list", *TABLE, "--offsets", "5-2"], "'5-2' is no range of offsets"),
    "a header": (["list", *TABLE, "--header", "=x"], "--header '=x' has no name"),
    "a time": (["list", *TABLE, "--since", "noon"], "'noon' is no time"),
    "the future": (["list", *TABLE, "--until", "2999-01-01"], "2999-01-01 is in the future"),
    "no time at all": (["list", *TABLE, "--since", "2026-01-02", "--until", "2026-01-02"], "is not before --until"),
    "both kinds": (["list", *TABLE, "--redriven", "--not-redriven"], "not allowed with argument --redriven"),
    "a limit": (["list", *TABLE, "--limit", "0"], "'0' is not a number from 1 up"),
    "no such letter": (
        ["show", *TABLE, "--topic", "orders", "--partition", "0", "--offset", "9"],
        "has no letter of orders:0:9",
    ),
    "a purge of nothing said": (["purge", *TABLE], "Option [purge] takes options that say which letters, or [all]"),
    "a purge of both": (["purge", *TABLE, "--all", "--error", "x"], "that say which letters, or [all]"),
    "both at once": (["purge", *TABLE, "--all", "--execute", "--dry-run"], "not allowed with argument"),
    "a redrive of what was redriven": (["redrive", *TABLE, *KAFKA, "--redriven"], "unknown argument --redriven"),
    "a redrive of nothing said": (["redrive", *TABLE, *KAFKA], "Option [redrive] takes options that say which"),
    "no target": (["redrive", *TABLE, "--all"], "choose where the topics are: --bootstrap-server or --topic-table"),
    "two targets": (["redrive", *TABLE, "--all", *KAFKA, "--topic-table", "./t"], "choose where the topics are"),
    "no topic table": (["redrive", *TABLE, "--all", "--topic-table", "./t"], "there is no topic table at ./t"),
    "no table to redrive": (["redrive", "--all", *KAFKA], "--table is missing"),
    "a rate": (["redrive", *TABLE, "--all", *KAFKA, "--rate", "0", "--execute"], "is not above 0"),
    "a rate of words": (["redrive", *TABLE, "--all", *KAFKA, "--rate", "fast"], "'fast' is not a number"),
    "a Kafka option": (
        ["redrive", *TABLE, "--all", *KAFKA, "--kafka-option", "sasl.pasword=x"],
        "unknown Kafka option",
    ),
    "out of reach": (["redrive", *TABLE, "--all", *KAFKA, "--timeout", "300"], "127.0.0.1:1 gave no answer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_changes_nothing(
    capsys: pytest.CaptureFixture[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[case]
    before = sorted(tmp_path.rglob("*"))
    line = shown(capsys, *[place if text == "DEAD" else text for text in arguments], code=cli.FAILED)
    assert message in line
    assert (line.count("\n"), line.startswith("share-spark: ")) == (1, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_redrive_that_cannot_be_is_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], place: str
) -> None:
    order = ["redrive", "--table", place, "--all", *KAFKA, "--timeout", "300", "--execute"]
    assert "127.0.0.1:1 gave no answer" in shown(capsys, *order, code=cli.FAILED)
    assert DeadLetters(place).letters(LetterFilter(redriven=True)) == []


def test_to_look_needs_no_jvm(place: str) -> None:
    """In a process of its own, in which a JVM cannot be started."""
    command = [sys.executable, "-m", "share_spark.cli", "dead-letters"]
    environment = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env=environment, check=True, cwd=Path.cwd()
        )
        return done.stdout

    assert [one["count"] for one in json.loads(said("list", "--table", place, "--json"))] == [3, 1]
    assert said("purge", "--table", place, "--error", "city", "--execute") == "3 letters deleted.\n"
