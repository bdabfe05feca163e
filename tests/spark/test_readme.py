"""README.md is followed as it stands. docs/operations.md is run: its Python, SQL, `share-spark` commands. What stands
for a place or a broker there is replaced by ``SUBSTITUTIONS``; what cannot run is in ``NOT_RUN``, with the reason."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import share_spark
from share_spark import Ack, EmbeddedTopicLog, Message, Record, ShareGroupAdmin, cli
from tests.support.python_blocks import python_blocks
from tests.support.walkthrough import walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
HERE = __name__

SUBSTITUTIONS = {
    # A topic table in the place of the broker: both are one line.
    '.kafka("broker:9092")': '.table("/lake/topics")',
    "--bootstrap-server broker:9092": "--topic-table /lake/topics",
    # A dead-letter table, as there is no cluster to have the topic.
    '"orders-dead"': '"/lake/letters"',
    "--dead-letter orders-dead": "--dead-letter /lake/letters",
    # What is in the topic now, then the end.
    ".start()": '.option("share.auto.offset.reset", "earliest").trigger(availableNow=True).start()',
    "--starting earliest": "--starting earliest --available-now",
    "my_project.billing:bill": f"{HERE}:bill",
    "--offset 4711": "--offset 1",
}
"""And ``/lake``, which becomes a temporary directory."""

NOT_RUN = {
    "share-spark gateway": "serves clients until it is stopped; tests/unit/gateway/test_share_consumer.py does it",
    "share-spark exporter": "serves metrics until it is stopped; tests/unit/admin/test_exporter.py does it",
    "share-spark ui": "serves a page until it is stopped; tests/spark/test_web_commands.py does it",
    "spark-submit": "starts a JVM of its own; tests/spark/test_job_signals.py does it",
}
RUN = ("share-spark", "SELECT")


class Order(NamedTuple):
    """What ``parse`` there makes of a record."""

    id: int
    cancelled: bool


def parse(value: bytes) -> Order:
    return Order(**json.loads(value))


def charge(order: Order) -> float:
    return 2.0 * order.id


def bill(record: Record) -> Ack:
    """For the command line, where a handler of a project is named."""
    return Ack.REJECT if parse(record.value or b"").cancelled else Ack.ACCEPT


class Lake(NamedTuple):
    """A directory with ten orders in the topic ``orders``, of which order 3 is cancelled. ``wrote``: the rows of the
    program's tables, right after it."""

    spark: SparkSession
    directory: Path
    wrote: list[list[Any]]

    def rows(self, name: str) -> list[Any]:
        return self.spark.read.format("delta").load(f"{self.directory}/{name}").collect()

    def put(self) -> None:
        orders = [Order(number, number == 3) for number in range(10)]
        messages = [Message(json.dumps(order._asdict()).encode(), partition=0) for order in orders]
        EmbeddedTopicLog(self.spark, f"{self.directory}/topics").append("orders", messages)

    def substituted(self, text: str) -> str:
        for written, meant in SUBSTITUTIONS.items():
            text = text.replace(written, meant)
        return text.replace("/lake", str(self.directory))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """After the program, the only block of Python, with what it wrote; and with a setting that a command unsets. The
    tests may run in any order and in two processes: each has to find what it needs."""
    place = Lake(spark, tmp_path_factory.mktemp("lake"), [])
    EmbeddedTopicLog(spark, f"{place.directory}/topics").create_topic("orders", 1)
    place.put()
    (program,) = python_blocks(OPERATIONS)
    run_python(place, program)
    place.wrote.extend(place.rows(name) for name in ("bills", "letters"))
    ShareGroupAdmin(f"{place.directory}/queues").alter_configs("billing", {"delivery.rate.limit": 50})
    return place


def commands() -> list[str]:
    """Lines of indented blocks, continued ones joined, and commands with options in the running text."""
    blocks = re.findall(r"(?:^    .*\n)+", OPERATIONS, re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in joined(block).splitlines()]
    told = re.findall(r"`((?:share-spark|spark-submit) [^`]*--[^`]*)`", OPERATIONS)
    found = [" ".join(text.split()) for text in [*lines, *told]]
    return [text for text in found if text.startswith((*RUN, *NOT_RUN))]


def joined(block: str) -> str:
    """A command with a backslash, or a SELECT, as one line."""
    return re.sub(r"\\\n\s*|\n\s+(?=FROM |LATERAL )", " ", block)


def run_python(lake: Lake, block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "operations", "parse": parse, "charge": charge, "spark": lake.spark}
    exec(compile(lake.substituted(block), "operations.md", "exec", dont_inherit=True), names)  # noqa: S102 - it is ours
    return names


@pytest.mark.slow
def test_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    """In an empty directory, in processes of their own, as a reader does it."""
    followed = []
    for command in walk(README, tmp_path):
        program, *words = shlex.split(command.text)
        start = [sys.executable, "-m", "share_spark.cli"] if program == "share-spark" else [sys.executable]
        done = subprocess.run([*start, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert command.agrees(done.stdout), done.stdout
        followed.append(program)
    assert followed == ["python", "share-spark"]


def test_the_program_does_what_it_says(lake: Lake) -> None:
    bills, (letter,) = lake.wrote
    assert sorted((row.order, row.price) for row in bills) == [(n, 2.0 * n) for n in range(10) if n != 3]
    assert (letter.offset, letter.error) == (3, "cancelled")


def run_here(text: str) -> bool:
    return text.startswith("share-spark") and not text.startswith(tuple(NOT_RUN))


@pytest.mark.parametrize("command", [text for text in commands() if run_here(text)])
def test_commands_run(lake: Lake, capsys: pytest.CaptureFixture[str], command: str) -> None:
    lake.put()
    words = shlex.split(lake.substituted(command).removesuffix("..."))
    code = cli.main(words[1:])
    told = capsys.readouterr()
    assert (code, told.out == "") == (0, False), told.err


@pytest.mark.parametrize("query", [text for text in commands() if text.startswith("SELECT")])
def test_queries_run(lake: Lake, query: str) -> None:
    rows = lake.spark.sql(lake.substituted(query).rstrip(";")).collect()
    assert [row.topic for row in rows] == ([] if "errors" in query else ["orders"]), "errors: history is not kept there"


def test_the_document_is_read() -> None:
    """Else nothing above would run."""
    assert {text.split()[0] for text in commands()} >= {"share-spark", "SELECT"}
    assert {text.split()[1] for text in commands() if text.startswith("share-spark")} >= {"run", "history", "verify"}


def test_functions_that_it_names_are_public() -> None:
    named = set(called())
    assert named
    assert named <= set(share_spark.__all__)


def called() -> Iterator[str]:
    text = README + OPERATIONS
    yield from re.findall(r"`share_spark\.(\w+)\(", text)
    for block in python_blocks(text):
        for names in re.findall(r"^from share_spark import (.*)$", block, re.MULTILINE):
            yield from (name.strip() for name in names.split(","))
