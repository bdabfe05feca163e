"""A state that is named by the catalog: what looks without Spark says in one line what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark import cli

SAID = (
    "share-spark: main.queues is a name of the catalog, which only Spark can look up: give the directory in which "
    "share_state_log is (in Spark: DESCRIBE DETAIL main.queues.share_state_log)"
)
GROUP = ["--group", "billing"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["groups", "--list"],
        ["groups", "--describe", *GROUP],
        ["groups", "--reset-offsets", *GROUP, "--all-topics", "--to-earliest", "--execute"],
        ["groups", "--delete", *GROUP, "--execute"],
        ["groups", "--pause", *GROUP, "--execute"],
        ["configs", "--describe"],
        ["configs", "--alter", *GROUP, "--add-config", "delivery.rate.limit=5", "--execute"],
        ["top", "--count", "1"],
        ["report", "--html", "a.html"],
        ["report", "--html", "a.html", "--version", "3"],
        ["ui", "--port", "0"],
    ],
)
def test_a_directory_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*arguments, "--location", "main.queues"]) == cli.FAILED
    assert capsys.readouterr().err.splitlines() == [SAID]
    assert list(tmp_path.iterdir()) == []
