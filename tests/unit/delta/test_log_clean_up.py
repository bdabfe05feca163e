"""Old versions of a table go with the files that left it; checkpoints of ours do not name such files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.log_clean_up import remove_old_versions
from share_spark.delta.own_checkpoints import write_own_checkpoint
from share_spark.delta.table_log import TableLog
from share_spark.spark.public_files import LocalFiles

COLUMNS = StructType([StructField("n", LongType()), StructField("t", StringType())])
OLD_S, BEFORE_MS = 1_000, 2_000_000


def opened(place: Path, **properties: str) -> DirectAppends:
    files = CommitFiles(LocalFiles(), str(place))
    create_table(files, COLUMNS.json(), partitioned_by=["t"], properties=properties)
    return DirectAppends(directory=str(place), log=TableLog.open(files, keeps_files=True))


def append(appends: DirectAppends, number: int, group: str) -> None:
    appends.commit([appends.write(pa.table({"n": pa.array([number], pa.int64())}), {"t": group})])


def drop(appends: DirectAppends, group: str) -> None:
    appends.commit([], replaced=lambda _, values: values["t"] == group, operation="DELETE", blind=False)


def with_history(place: Path, **properties: str) -> DirectAppends:
    """A table whose rows 1 to 3 have left it, and whose first versions are old."""
    appends = opened(place, **properties)
    for number in (1, 2, 3):
        append(appends, number, "gone")
    append(appends, 4, "kept")
    drop(appends, "gone")
    assert write_own_checkpoint(appends.log.files)
    for path in place.rglob("*"):
        os.utime(path, (OLD_S, OLD_S))
    append(appends, 5, "kept")
    return appends


def values(place: Path) -> list[int]:
    return sorted(DeltaTable(str(place)).to_pyarrow_table()["n"].to_pylist())


def names(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "_delta_log").iterdir() if path.name[0].isdigit())


def data_files(place: Path) -> int:
    return sum(1 for path in place.rglob("*.parquet") if "_delta_log" not in path.parts)


def test_what_only_old_versions_need_is_removed(tmp_path: Path) -> None:
    appends = with_history(tmp_path)
    assert data_files(tmp_path) == 5
    assert remove_old_versions(appends.log, BEFORE_MS) == 5
    assert names(tmp_path) == [f"{5:020d}.checkpoint.parquet", f"{5:020d}.json", f"{6:020d}.json"]
    assert data_files(tmp_path) == 5  # the commit that names three of them is the checkpoint's own, and is kept
    append(appends, 6, "kept")
    assert values(tmp_path) == [4, 5, 6]
    found = TableLog.open(appends.log.files, keeps_files=True)
    assert (found.version, found.active.keys()) == (7, appends.log.active.keys())


def test_the_files_go_with_the_commit_that_names_them(tmp_path: Path) -> None:
    appends = with_history(tmp_path)
    append(appends, 6, "kept")
    assert write_own_checkpoint(appends.log.files)
    later_ms = int(time.time() * 1_000) + 60_000
    assert remove_old_versions(appends.log, later_ms) == 7
    assert data_files(tmp_path) == 3
    assert values(tmp_path) == [4, 5, 6]


def test_a_file_that_came_back_stays(tmp_path: Path) -> None:
    appends = with_history(tmp_path)
    text = appends.log.files.text(5)
    assert text is not None
    back = [json.loads(line)["remove"]["path"] for line in text.splitlines() if "remove" in line][:1]
    size = (tmp_path / back[0]).stat().st_size
    again = {"path": back[0], "partitionValues": {"t": "gone"}, "size": size, "modificationTime": 1, "dataChange": True}
    assert appends.log.put(json.dumps({"add": again}) + "\n")  # RESTORE
    assert write_own_checkpoint(appends.log.files)
    later_ms = int(time.time() * 1_000) + 60_000
    assert remove_old_versions(appends.log, later_ms) == 7
    assert data_files(tmp_path) == 3
    assert len(values(tmp_path)) == 3


def test_a_run_that_dies_in_between_is_made_good_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appends = with_history(tmp_path)
    append(appends, 6, "kept")
    assert write_own_checkpoint(appends.log.files)
    later_ms = int(time.time() * 1_000) + 60_000
    delete = LocalFiles.delete
    for allowed in range(10):
        left = iter(range(allowed))

        def dying(files: LocalFiles, path: str, *, recursive: bool = False, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError("killed")
            delete(files, path, recursive=recursive)

        with monkeypatch.context() as patched, suppress(OSError):
            patched.setattr(LocalFiles, "delete", dying)
            remove_old_versions(appends.log, later_ms)
        assert values(tmp_path) == [4, 5, 6]
        assert TableLog.open(appends.log.files, keeps_files=True).active.keys() == appends.log.active.keys()
    remove_old_versions(appends.log, later_ms)
    assert (data_files(tmp_path), values(tmp_path)) == (3, [4, 5, 6])


@pytest.mark.parametrize(
    "properties", [{"delta.logRetentionDuration": "interval 1 day"}, {"delta.enableExpiredLogCleanup": "false"}]
)
def test_what_the_owner_has_set_holds(tmp_path: Path, properties: dict[str, str]) -> None:
    assert remove_old_versions(with_history(tmp_path, **properties).log, BEFORE_MS) == 0


def test_files_of_another_table_are_left(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    other.write_bytes(b"theirs")
    appends = opened(tmp_path / "table")
    removed = [
        {"remove": {"path": path, "dataChange": True}} for path in (f"{other}", f"file:{other}", "../other.parquet")
    ]
    assert appends.log.put("".join(json.dumps(action) + "\n" for action in removed))
    append(appends, 1, "kept")
    assert write_own_checkpoint(appends.log.files)
    assert remove_old_versions(appends.log, int(time.time() * 1_000) + 60_000) == 2
    assert other.read_bytes() == b"theirs"


def test_a_checkpoint_of_ours_is_delta_s_without_the_files_that_left(tmp_path: Path) -> None:
    appends = opened(tmp_path)
    appends.commit([], transactions={"app": 7}, operation="WRITE")
    append(appends, 1, "a b/ä")
    append(appends, 2, "gone")
    drop(appends, "gone")
    before = TableLog.open(appends.log.files, keeps_files=True)
    assert write_own_checkpoint(appends.log.files)
    for version in range(before.version):
        appends.log.files.remove(version)
    after = TableLog.open(appends.log.files, keeps_files=True)
    for name in ("version", "protocol", "transactions", "active"):
        assert getattr(after, name) == getattr(before, name)
    assert {name: value for name, value in after.metadata.items() if value is not None} == before.metadata
    table = DeltaTable(str(tmp_path))
    assert (table.version(), values(tmp_path)) == (4, [1])
    assert table.metadata().partition_columns == ["t"]
    rows = pq.read_table(tmp_path / "_delta_log" / f"{4:020d}.checkpoint.parquet")
    assert rows["remove"].null_count == rows.num_rows == 4


def test_a_checkpoint_that_is_there_is_left(tmp_path: Path) -> None:
    appends = opened(tmp_path)
    append(appends, 1, "kept")
    DeltaTable(str(tmp_path)).create_checkpoint()
    path = tmp_path / "_delta_log" / f"{1:020d}.checkpoint.parquet"
    content = path.read_bytes()
    assert write_own_checkpoint(appends.log.files)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "properties",
    [{"delta.checkpointPolicy": "v2"}, {"delta.checkpoint.writeStatsAsStruct": "true"}, {"delta.appendOnly": "true"}],
)
def test_a_table_that_wants_more_gets_no_checkpoint_of_ours(tmp_path: Path, properties: dict[str, str]) -> None:
    appends = opened(tmp_path, **properties)
    assert not write_own_checkpoint(appends.log.files)
    assert not list((tmp_path / "_delta_log").glob("*.checkpoint.*"))
