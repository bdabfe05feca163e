"""Where PySpark is not installed, as on platforms that bring their own, what starts no JVM works: to processes of these
tests it looks as if it were not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType

from tests.support.letter_tables import make_letters, row
from tests.support.share_consumers import GROUP, TOPIC, GatewayProcess, Place, consumer, work_off

ROOT = Path(__file__).parents[3]
HIDE = "import sys\nsys.modules.update(dict.fromkeys(['pyspark', 'py4j', 'delta']))\n"

START_SPARK = {
    "api.wiring",
    *("companion.delivery", "companion.executors", "companion.record_parts", "companion.starts"),
    *("delivery.deliver", "delivery.frame", "delivery.record_sources"),
}
"""The modules that only an engine on Spark imports."""

IMPORT_ALL = """
import importlib, json, pkgutil, share_spark
from share_spark.model.errors import EnvironmentFault
missing = []
for module in pkgutil.walk_packages(share_spark.__path__, "share_spark."):
    try:
        module.name.endswith("__main__") or importlib.import_module(module.name)
    except (ModuleNotFoundError, EnvironmentFault):
        missing.append(module.name.removeprefix("share_spark."))
print(json.dumps(missing))
"""


@pytest.fixture(autouse=True)
def _is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hidden), str(ROOT)]))


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def share_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "share_spark.cli", *arguments)


def test_all_modules_but_those_that_start_spark_are_imported() -> None:
    done = python("-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == START_SPARK


def test_a_share_consumer_at_a_gateway_and_the_tools(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 100)
    with GatewayProcess(place) as gateway, consumer(gateway.address) as found:
        assert sum(work_off(found, 100, lambda _: AcknowledgeType.ACCEPT).values()) == 100
    letters = make_letters(tmp_path / "letters", [row(7)])
    state, html = ["--location", place.state], str(tmp_path / "report.html")
    assert TOPIC in said("groups", *state, "--describe", "--group", GROUP)
    assert GROUP in said("configs", *state, "--describe", "--entity-type", "groups", "--entity-name", GROUP)
    assert "orders:0:7" in said("dead-letters", "list", "--table", letters)
    redrive = ["redrive", "--table", letters, "--all", "--topic-table", place.topics, "--execute"]
    assert "1 marked as redriven" in said("dead-letters", *redrive)
    assert place.log.log_ends(TOPIC)[0].log_end == 26
    assert "compaction of" in said("compact", "--state", place.state)
    assert "self-consistent" in said("verify", *state)
    said("report", *state, "--html", html)
    assert GROUP in Path(html).read_text()


def said(*arguments: str) -> str:
    done = share_spark(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_test_kit_for_handlers() -> None:
    program = """
import asyncio
from share_spark import Ack
from share_spark.testing import run_handler

async def later(record):
    await asyncio.sleep(0.001)
    return Ack.ACCEPT, {"id": record.offset}

for handler in (later, lambda record: (Ack.ACCEPT, {"id": record.offset})):
    print(run_handler(handler, [b"a", b"b"], output="id bigint", crash_at=2).rows)
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[{'id': 0}, {'id': 1}]"] * 2


@pytest.mark.parametrize("command", ["run", "prepare"])
def test_a_command_that_starts_spark_says_what_to_install(command: str) -> None:
    options = ["--group", "billing", "--handler", "json:loads", "--topic", "orders", "--state", "lake/state"]
    options += ["--topic-table", "lake/topics"]
    done = share_spark(command, *(options if command == "run" else ()))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'share_spark[spark]'" in done.stderr


def test_a_share_group_says_what_to_install() -> None:
    done = python("-c", "from share_spark import ShareGroup; ShareGroup('billing', spark=None, state='state')")
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("ShareGroup needs Spark, and pyspark is not installed: pip install 'share_spark[spark]'")
