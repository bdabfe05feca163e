"""`share-spark gateway --login cluster`: combinations that cannot be are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark import cli

KAFKA = ["--bootstrap-server", "localhost:1"]
REFUSED = {
    "a table": (["--topic-table", "topics"], "a table of topics has no cluster"),
    "a file too": ([*KAFKA, "--users", "users.toml"], "or by a file (--users FILE): choose one"),
    "no SASL": (KAFKA, "security.protocol of the cluster is PLAINTEXT"),
    "another place": ([*KAFKA, "--login", "here"], "--login here: clients log in at the cluster"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_login_that_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[case]
    assert cli.main(["gateway", "--state", "state", "--login", "cluster", *arguments]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert (said.count("\n"), message in said) == (1, True), said
    assert list(tmp_path.iterdir()) == []
