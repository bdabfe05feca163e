"""`share-spark report` and `share-spark ui` on real state, in processes that cannot start a JVM."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.cli import main
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import ACCEPT, GROUP, RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND = [sys.executable, "-m", "share_spark.cli"]
NO_JVM = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}


@pytest.fixture(scope="module")
def state(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one group with two share-partitions, in one of which a record waits again."""
    directory = str(tmp_path_factory.mktemp("place") / "state")
    world = DeltaWorld(
        spark, directory, partitions=2, handler=lambda _t, _p, offset, _c: RELEASE if offset == 3 else ACCEPT
    )
    world.produce(5)
    engine = world.engine()
    engine.run()
    engine.run(stopping=True)
    return directory


def contents(place: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path(place).rglob("*") if path.is_file()}


def test_a_report_is_one_file_and_changes_nothing(state: str, tmp_path: Path) -> None:
    before = contents(state)
    command = [*COMMAND, "report", "--location", state, "--html", str(tmp_path / "queues.html")]
    done = subprocess.run(command, capture_output=True, text=True, env=NO_JVM, check=True)
    assert done.stdout == f"{tmp_path / 'queues.html'}: 1 share group\n"
    assert [path.name for path in tmp_path.iterdir()] == ["queues.html"]
    page = (tmp_path / "queues.html").read_text()
    assert f"<h2>{GROUP}</h2>" in page
    assert "1 Available, delivered once" in page
    assert "nothing in flight; next is offset 0" in page
    assert contents(state) == before


def test_the_page_is_served_until_it_is_asked_to_end(state: str) -> None:
    command = [*COMMAND, "ui", "--location", state, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=NO_JVM) as process:
        try:
            assert process.stdout is not None
            found = re.fullmatch(r"share-spark: (http://127\.0\.0\.1:\d+/), until Ctrl-C\n", process.stdout.readline())
            assert found is not None
            with urllib.request.urlopen(f"{found[1]}groups/{GROUP}", timeout=30) as answer:
                assert f"<h2>{GROUP}</h2>" in answer.read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "--html", "{here}/a.html", "--group", "nobody"], "Group 'nobody' does not exist"),
        (["report", "--html", "{here}/none/a.html"], "--html {here}/none/a.html: No such file or directory"),
        (["report", "--html", "{here}"], "--html {here}: Is a directory"),
        (["report", "--html", ""], "--html .: not a file"),
        (["ui", "--port", "{taken}"], "--port: cannot listen on 127.0.0.1:{taken}: Address already in use"),
        (["ui", "--host", "0.0.0.0"], "--host 0.0.0.0 can be reached by others: give a --token"),
        (["report", "--html", "{here}/a.html", "--dead-letter", "/none"], "there is no dead-letter table at /none"),
        (["ui", "--token", ""], "--token is empty"),
        (["ui", "--topic-table", "/a", "--bootstrap-server", "b:1"], "choose where the topics are"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    state: str, tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"here": tmp_path, "taken": taken.getsockname()[1]}
        verb, *rest = (argument.format(**known) for argument in arguments)
        assert main([verb, "--location", state, *rest]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said.format(**known) in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["report", "--html", "a.html"], ["ui", "--port", "0"]])
def test_where_there_is_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--location", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"share-spark: no share-group state at {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []
