"""What VACUUM and log clean-up are asked for: only where they would find something, and always where they would."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.native_changes import write_natively
from share_spark.delta.old_files import has_old_commits, has_old_files
from share_spark.delta.table_log import TableLog
from share_spark.spark.public_files import ArrowFiles, LocalFiles

COLUMNS = StructType([StructField("n", LongType()), StructField("t", StringType())])
OLD_S, BEFORE_MS = 1_000, 2_000_000
DAY_MS = 86_400_000


def table(directory: Path, **properties: str) -> TableLog:
    """With one file, as old as all else in it."""
    files = CommitFiles(LocalFiles(), str(directory))
    named = {f"delta.{name}": value for name, value in properties.items()}
    assert create_table(files, COLUMNS.json(), partitioned_by=["t"], properties=named)
    log = TableLog.open(files, keeps_files=True)
    appends = DirectAppends(directory=str(directory), log=log)
    appends.commit([written(appends, "t=a b/")])
    age(directory)
    return log


def written(appends: DirectAppends, folder: str) -> DataFile:
    """Where Spark would have put it."""
    file = appends.write(pa.table({"n": pa.array([1, 2], pa.int64())}), {"t": "a b"})
    moved = DataFile(path=f"{folder}{file.path}", size=file.size, stats=file.stats, values=file.values)
    (Path(appends.directory) / folder).mkdir(exist_ok=True)
    (Path(appends.directory) / file.path).rename(Path(appends.directory) / moved.path)
    return moved


def age(directory: Path) -> None:
    for path in directory.rglob("*"):
        os.utime(path, (OLD_S, OLD_S))


def test_a_table_of_files_that_all_belong_to_it_has_nothing_to_remove(tmp_path: Path) -> None:
    log = table(tmp_path)
    assert log.rows == 2
    assert not has_old_files(log, BEFORE_MS)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("part-left-by-a-dead-writer.parquet", True),
        ("t=a b/part-left-by-a-dead-writer.parquet", True),
        ("deletion_vector_1.bin", True),
        ("_change_data/cdc-1.parquet", True),
        ("_t=1/part-1.parquet", True),
        ("t=empty/", True),
        ("_share_spark/journal", False),
        ("_delta_log/aside", False),
        (".part.parquet.crc", False),
    ],
)
def test_what_does_not_belong_to_it_is_found_once_it_is_old(tmp_path: Path, path: str, found: bool) -> None:
    log = table(tmp_path)
    at = tmp_path / path
    at.parent.mkdir(exist_ok=True)
    at.mkdir() if path.endswith("/") else at.touch()
    assert not has_old_files(log, BEFORE_MS), "that of an append in flight"
    age(tmp_path)
    assert has_old_files(log, BEFORE_MS) is found


def test_a_file_that_has_left_the_table_is_found(tmp_path: Path) -> None:
    log = table(tmp_path)
    appends = DirectAppends(directory=str(tmp_path), log=log)
    appends.commit([], replaced=lambda *_: True, operation="DELETE", blind=False)
    assert (log.active, log.rows) == ({}, 0)
    assert has_old_files(log, BEFORE_MS)


def test_where_files_cannot_be_listed_quickly_there_may_be_some(tmp_path: Path) -> None:
    log = table(tmp_path)
    place = f"file://{tmp_path}"
    log.files = CommitFiles(ArrowFiles(place), place)  # as one of a storage that is no disk of this machine
    assert has_old_files(log, BEFORE_MS)
    assert has_old_commits(log, None)
    assert not write_natively(log)


@pytest.mark.parametrize(
    ("age_ms", "retention_ms", "properties", "found"),
    [
        (DAY_MS, None, {}, False),
        (31 * DAY_MS, None, {}, True),
        (DAY_MS, 2 * DAY_MS, {}, False),
        (3 * DAY_MS, 2 * DAY_MS, {}, True),
        (31 * DAY_MS, 60 * DAY_MS, {}, True),
        (0, None, {"logRetentionDuration": "interval 30 days"}, True),
    ],
)
def test_old_commits_are_those_that_nobody_wants(
    tmp_path: Path, age_ms: int, retention_ms: int | None, properties: dict[str, str], found: bool
) -> None:
    log = table(tmp_path, **properties)
    written_at_s = time.time() - age_ms / 1_000
    for path in (tmp_path / "_delta_log").iterdir():
        os.utime(path, (written_at_s, written_at_s))
    assert has_old_commits(log, retention_ms) is found


@pytest.mark.parametrize(
    ("spoil", "written_natively"),
    [
        (lambda _: None, True),
        (lambda log: log.metadata["configuration"].update({"delta.checkpointPolicy": "v2"}), False),
        (
            lambda log: log.active.update({path: file._replace(is_whole=False) for path, file in log.active.items()}),
            False,
        ),
    ],
    ids=["plain", "another form", "deletion vectors"],
)
def test_only_the_checkpoint_of_a_plain_table_is_written_without_spark(
    tmp_path: Path, spoil: Callable[[TableLog], None], written_natively: bool
) -> None:
    log = table(tmp_path)
    spoil(log)
    assert write_natively(log) is written_natively
    assert (log.files.checkpoint()[0] == log.version) is written_natively
    if written_natively:
        again = TableLog.open(log.files, keeps_files=True)
        assert (again.version, again.active.keys(), again.rows) == (log.version, log.active.keys(), 2)
