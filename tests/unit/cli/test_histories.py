"""Where the history of a record is read: from files, or by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from share_spark import cli
from share_spark.audit.record_events import RecordHistory
from share_spark.cli import histories
from share_spark.cli.histories import RecordOfGroup, histories_of
from share_spark.delta.location import Location
from share_spark.model.errors import StateError

RECORD = RecordOfGroup("billing", "orders", 0, 7)


@pytest.fixture
def asked_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where Spark was asked."""
    asked: list[str] = []

    def by_spark(place: Location, _records: object) -> list[RecordHistory]:
        asked.append(str(place))
        return []

    monkeypatch.setattr(histories, "_by_spark", by_spark)
    return asked


@pytest.mark.parametrize("state", ["abfss://lake@account.dfs.core.windows.net/queues", "main.queues"])
def test_spark_reads_what_is_only_known_to_it(state: str, asked_spark: list[str]) -> None:
    assert histories_of(state, [RECORD]) == []
    assert asked_spark == [state]


def test_what_may_not_be_read_is_not_tried_by_spark(
    tmp_path: Path, asked_spark: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_location: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", "/lake/queues/part-0.parquet")

    monkeypatch.setattr("share_spark.cli.histories.StateReader.open", refused)
    command = ["history", "--location", str(tmp_path), "--group", "billing", "--topic", "orders", "--partition", "0"]
    assert cli.main([*command, "--offset", "7"]) == cli.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "share-spark: PermissionError: /lake/queues/part-0.parquet: Permission denied (--debug shows more)"
    assert asked_spark == []


def test_what_is_not_there_is_not_looked_for_by_spark(tmp_path: Path, asked_spark: list[str]) -> None:
    with pytest.raises(StateError, match="no share-group state at"):
        histories_of(str(tmp_path), [RECORD])
    assert asked_spark == []
