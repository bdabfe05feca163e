"""Properties that are changed without Spark: nothing else of the table changes, whatever others write meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from share_spark.delta.commit_files import CommitFiles, commit_text
from share_spark.delta.direct_metadata import change_properties, create_table
from share_spark.delta.native_changes import write_natively
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.spark.public_files import LocalFiles

COLUMNS = StructType([StructField("n", LongType())])
NAME, OTHER = "share_spark.topic.orders", "share_spark.topic.bills"


@pytest.fixture
def files(tmp_path: Path) -> CommitFiles:
    found = CommitFiles(LocalFiles(), str(tmp_path))
    assert create_table(
        found, COLUMNS.json(), properties={"delta.appendOnly": "false", "share_spark.format.version": "1"}
    )
    return found


def metadata(files: CommitFiles) -> dict[str, Any]:
    return dict(TableLog.open(files).metadata)


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_one_property_changes_and_nothing_else(files: CommitFiles, from_checkpoint: bool) -> None:
    before = metadata(files)
    if from_checkpoint:
        assert write_natively(TableLog.open(files))
        Path(f"{files.directory}/_delta_log/{0:020d}.json").unlink()
    assert change_properties(files, {NAME: '{"a": "\'"}'}) == 1
    written = [json.loads(line) for line in (files.text(1) or "").splitlines()]
    (action,) = [line["metaData"] for line in written if "metaData" in line]
    assert action == before | {"configuration": before["configuration"] | {NAME: '{"a": "\'"}'}}
    assert change_properties(files, {NAME: None}) == 2
    assert metadata(files) == before


def test_what_another_writer_changes_meanwhile_stays(files: CommitFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = CommitFiles.commit

    def overtaken(self: CommitFiles, version: int, *given: Any) -> bool:
        monkeypatch.setattr(CommitFiles, "commit", commit)
        assert change_properties(files, {OTHER: "theirs"}) == version
        return commit(self, version, *given)

    monkeypatch.setattr(CommitFiles, "commit", overtaken)
    assert change_properties(files, {NAME: "ours"}) == 2
    assert {NAME: "ours", OTHER: "theirs"}.items() <= TableLog.open(files).properties.items()


def test_what_delta_has_to_judge_is_left_to_spark(files: CommitFiles) -> None:
    with pytest.raises(UnknownTableError, match=r"delta\.enableChangeDataFeed is a property that Delta knows"):
        change_properties(files, {"delta.enableChangeDataFeed": "true"})
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    assert files.commit(1, commit_text("UPGRADE", {}, [{"protocol": protocol}], blind=False))
    with pytest.raises(UnknownTableError, match="rowTracking"):
        change_properties(files, {NAME: "x"})
    assert files.latest_version() == 1
