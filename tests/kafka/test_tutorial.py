"""docs/tutorial.md is followed from its top to its end: each program and command is run, and prints what is shown."""

from __future__ import annotations

import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import cli
from tests.support.share_consumers import GatewayProcess, Place
from tests.support.walkthrough import walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()

NOT_RUN = ("python3.11 -m venv", ". .venv", "pip install")
"""What makes the environment that the tests have already."""

ALONE = ("consume.py", "test_billing.py", "typed_billing.py")
"""The programs without a session, each in a process of its own: one waits for records, others import a program."""

BROKER, GATEWAY = "127.0.0.1:9092", "127.0.0.1:9093"


@pytest.fixture
def port() -> int:
    """A port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(
    spark: SparkSession, broker: str, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The JVM of the session keeps its directory, so places are named in full."""
    places = {"lake/": f"{tmp_path}/lake/", " queues.html": f" {tmp_path}/queues.html"}
    document = TUTORIAL
    for written, meant in {**places, BROKER: broker, GATEWAY: f"127.0.0.1:{port}"}.items():
        document = document.replace(written, meant)
    followed = 0
    with ExitStack() as stack:
        for command in walk(document, tmp_path):
            if command.text.startswith("share-spark gateway"):
                place = Place(f"{tmp_path}/lake/topics", f"{tmp_path}/lake/queues")
                stack.enter_context(GatewayProcess(place, port))
            elif not command.text.startswith(NOT_RUN):
                run(shlex.split(command.text), tmp_path)
                printed = capsys.readouterr().out
                assert command.agrees(printed), printed
                followed += 1
    assert followed > 10


def run(command: Sequence[str], directory: Path) -> None:
    """Run it in this process, on the session that is there, if it needs one."""
    program, *words = command
    if program == "share-spark":
        assert cli.main(words) == 0
    elif words[0] in ALONE:
        start = [sys.executable, *words]
        print(subprocess.run(start, cwd=directory, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout)
    else:
        runpy.run_path(str(directory / words[0]), run_name="__main__")
