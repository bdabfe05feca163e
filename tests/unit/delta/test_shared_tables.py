"""Commits of ours to tables that other programs write, clean up and overwrite, as delta-rs reads them."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from share_spark.delta.commit_files import CommitFile, CommitFiles, commit_text
from share_spark.delta.direct_append import DirectAppends, MovedError
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_rows import Change, TableRows
from share_spark.model.errors import ConfigError, StateError
from share_spark.spark.files import Ready, written
from share_spark.spark.public_files import LocalFiles

COLUMNS = StructType([StructField("n", LongType()), StructField("t", StringType())])
AT = pa.timestamp("us", "UTC")


class Disturbed(LocalFiles):
    """Something happens once, right before or right after a commit file is put."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def commit(self, path: str, content: bytes, ready: Ready = written) -> bool:
        before, self.before = self.before, None
        if before is not None:
            before()
        is_done = super().commit(path, content, ready)
        after, self.after = self.after, None
        if after is not None:
            after()
        return is_done


class Place:
    """A table, and writers of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = Disturbed()
        assert create_table(CommitFiles(self.storage, str(path)), COLUMNS.json())

    def writer(self) -> DirectAppends:
        files = CommitFiles(self.storage, str(self.path))
        return DirectAppends(directory=str(self.path), log=TableLog.open(files, keeps_files=True))

    def others(self, *numbers: int, **options: Any) -> None:
        """Another program appends a row each, one commit each."""
        for number in numbers:
            append(self.writer(), number, **options)

    def clean_up(self) -> None:
        """A checkpoint of the newest version; all commits below it are removed."""
        DeltaTable(str(self.path)).create_checkpoint()
        for version in self.versions()[:-1]:
            self.commit(version).unlink()

    def versions(self) -> list[int]:
        return sorted(int(file.stem) for file in (self.path / "_delta_log").glob("*.json"))

    def commit(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020d}.json"

    def overwrite(self, version: int, number: int) -> None:
        """As Delta's writer does on a local disk: it has seen no such version, and renames its own file to it."""
        table = self.writer()
        file = table.write(pa.table({"n": pa.array([number], pa.int64()), "t": ["other"]}), {})
        aside = self.path / "_delta_log" / "aside"
        aside.write_text(commit_text("WRITE", {"mode": "Append"}, [file.to_action(0)], blind=True))
        aside.rename(self.commit(version))

    def rows(self) -> list[int]:
        return sorted(DeltaTable(str(self.path)).to_pyarrow_table()["n"].to_pylist())


def append(table: DirectAppends, number: int, **options: Any) -> int:
    file = table.write(pa.table({"n": pa.array([number], pa.int64()), "t": ["ours"]}), {})
    return table.commit([file], **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "table")


# ------------------------------------------------------------------------------------------------- clean-up


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_version_at_a_checkpoint_is_read_also_when_commits_follow(place: Place, version: int) -> None:
    """They come while others read the log."""
    table = place.writer()
    for number in range(3):
        table.commit([], transactions={"app": number})
        if number == 1:
            assert table.log.version == 2
            DeltaTable(str(place.path)).create_checkpoint()
    log = TableLog.open(table.log.files, keeps_files=True, version=version)
    assert (log.version, log.transactions) == (version, {"app": version - 1})


@pytest.mark.parametrize("is_written_before", [True, False])
def test_a_writer_that_was_quiet_for_long(place: Place, is_written_before: bool) -> None:
    """Its next version is absent again, below the checkpoint. Workers may have written its files before."""
    table, seen = place.writer(), list[CommitFile | None]()
    file = table.write(pa.table({"n": pa.array([9], pa.int64()), "t": ["ours"]}), {}) if is_written_before else None
    place.others(1, 2, 3)
    place.clean_up()
    file = file or table.write(pa.table({"n": pa.array([9], pa.int64()), "t": ["ours"]}), {})
    assert table.commit([file], meanwhile=seen.append) == 4
    assert (place.rows(), seen) == ([1, 2, 3, 9], [None])
    assert append(table, 10) == 5


def test_a_look_at_a_log_that_was_cleaned_up(place: Place) -> None:
    table = place.writer()
    place.others(1, 2, 3, transactions={"app": 7})
    place.clean_up()
    table.log.refresh()
    assert (table.log.version, table.log.transactions, len(table.log.active)) == (3, {"app": 7}, 3)


def test_a_number_that_was_set_in_commits_that_are_gone(place: Place) -> None:
    table = place.writer()
    place.others(1, transactions={"app": 4})
    place.others(2)
    place.clean_up()
    with pytest.raises(MovedError, match="another writer has set a number of app"):
        append(table, 9, transactions={"app": 5})
    assert place.rows() == [1, 2]


def test_columns_that_have_changed_in_commits_that_are_gone(place: Place) -> None:
    table = place.writer()
    changed = dict(table.log.metadata) | {"schemaString": StructType([StructField("n", StringType())]).json()}
    assert table.log.files.commit(1, commit_text("REPLACE", {}, [{"metaData": changed}], blind=False))
    place.clean_up()
    with pytest.raises(UnknownTableError, match="its columns have changed"):
        append(table, 9)


def test_a_table_that_was_removed_or_made_again(place: Place) -> None:
    table = place.writer()
    place.others(1)
    table.log.refresh()
    for file in sorted(place.path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    with pytest.raises(StateError, match="is gone"):
        append(table, 9)
    assert list(place.path.rglob("*.parquet")) == []
    Place(place.path)
    with pytest.raises(StateError, match="is gone, or another one is in its place"):
        append(table, 9)


def test_a_clean_up_while_a_commit_is_put(place: Place) -> None:
    """The writer was frozen between its look and its commit: nobody would ever read it, and it must not be found."""
    table = place.writer()

    def clean_up() -> None:
        place.others(1, 2, 3)
        place.clean_up()

    place.storage.before = clean_up
    with pytest.raises(StateError, match="was cleaned up beyond version 1 while that was committed"):
        append(table, 9)
    assert (place.rows(), place.versions()) == ([1, 2, 3], [3])


def test_a_clean_up_right_behind_a_commit(place: Place) -> None:
    table = place.writer()
    place.storage.after = place.clean_up
    assert append(table, 9, transactions={"app": 1}) == 1
    assert place.rows() == [9]


# ------------------------------------------------------------------------------------------------- overwriting


def test_a_commit_that_another_writer_overwrites_is_made_again(place: Place) -> None:
    table = place.writer()
    append(table, 1, transactions={"app": 1})
    place.overwrite(1, 100)
    assert place.rows() == [100], "this is what is lost otherwise"
    append(table, 2, transactions={"app": 2})
    assert place.rows() == [1, 2, 100]
    assert TableLog.open(table.log.files).transactions == {"app": 2}


def test_it_is_made_good_without_another_commit(place: Place) -> None:
    table = place.writer()
    append(table, 1)
    place.overwrite(1, 100)
    place.others(2)
    table.make_good()
    table.make_good()
    assert place.rows() == [1, 2, 100]


def test_one_that_must_not_follow_what_came_before_ends_its_writer(place: Place) -> None:
    table = place.writer()
    append(table, 1, transactions={"app": 1})
    place.overwrite(1, 100)
    place.others(2, transactions={"app": 5})
    with pytest.raises(MovedError, match="the number of app is 5 already"):
        append(table, 3, transactions={"app": 2})
    assert place.rows() == [2, 100]


def test_rows_that_depend_on_what_was_read_are_not_committed_again(place: Place) -> None:
    table = place.writer()
    append(table, 1, blind=False)
    place.overwrite(1, 100)
    with pytest.raises(StateError, match="another writer has overwritten a commit"):
        append(table, 2)
    assert place.rows() == [100]


# ------------------------------------------------------------------------------------- answers of a file system


def test_a_link_whose_answer_was_lost_is_no_conflict(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NFS repeats the request, and the repeat finds the file of the first one. Another's file is one, of course."""
    link, faults = os.link, [FileExistsError(errno.EEXIST, "exists"), OSError(errno.EIO, "no answer")]

    def lossy(source: Any, target: Any) -> None:
        link(source, target)
        raise faults.pop()

    monkeypatch.setattr(os, "link", lossy)
    table = place.writer()
    assert [append(table, 1), append(table, 2)] == [1, 2]
    monkeypatch.undo()
    assert place.rows() == [1, 2]
    assert not LocalFiles().commit(str(place.commit(2)), b"other")


@pytest.mark.parametrize("kind", ["commit", "put"])
def test_what_was_written_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Content, then name, then the directory that has the name, and those that were made for it."""
    done: list[tuple[str, str]] = []
    sync, link, rename = os.fsync, os.link, Path.replace

    def named(descriptor: int) -> str:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path))

    def noted_rename(source: Path, target: Path) -> Path:
        done.append(("name", str(target.relative_to(tmp_path))))
        return rename(source, target)

    def noted_link(source: Path, target: Path) -> None:
        done.append(("name", str(target.relative_to(tmp_path))))
        link(source, target)

    def noted_sync(descriptor: int) -> None:
        done.append(("sync", named(descriptor)))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(Path, "replace", noted_rename)
    files, path = LocalFiles(), str(tmp_path / "log" / "deep" / "7.json")
    if kind == "commit":
        files.make_directory(str(tmp_path / "log" / "deep"))
        assert files.commit(path, b"text")
    else:
        files.put(path, f"{path}.tmp", b"text")
    before, after = done[: done.index(("name", "log/deep/7.json"))], done[done.index(("name", "log/deep/7.json")) :]
    assert before[:2] == [("sync", "."), ("sync", "log")]
    assert any(what == "sync" and "7.json" in name for what, name in before)
    assert after[1:] == [("sync", "log/deep")]


def begun(table: DirectAppends, number: int) -> int:
    """As ``append``; the file is written beside its commit."""
    return table.commit([table.begin(pa.table({"n": pa.array([number], pa.int64()), "t": ["ours"]}), {})])


def test_a_commit_appears_after_its_file_is_safe(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, may_end, commits = os.fsync, threading.Event(), list[list[int]]()

    def slow_sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".parquet":
            assert may_end.wait(10)
            commits.append(place.versions())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow_sync)
    with ThreadPoolExecutor() as threads:
        found = threads.submit(begun, place.writer(), 1)
        time.sleep(0.3)
        assert not found.done()
        may_end.set()
        assert found.result(10) == 1
    assert commits == [[0]]
    assert place.rows() == [1]


def test_a_file_that_could_not_be_written_is_in_no_commit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, table = os.fsync, place.writer()

    def full(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".parquet":
            raise OSError(errno.ENOSPC, "no space left on device")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            begun(table, 1)
    assert [one.name for one in (place.path / "_delta_log").iterdir() if one.suffix != ".json"] == []
    assert (place.versions(), begun(table, 2)) == ([0], 1)
    assert place.rows() == [2]


# ------------------------------------------------------------------------------------------ what others commit


@pytest.mark.parametrize("separator", ["\u0085", "\u2028", "\u2029", "\x0b", "\x1c"])
def test_characters_that_end_a_line_in_unicode_are_text(place: Place, separator: str) -> None:
    table = place.writer()
    stats = json.dumps({"numRecords": 1, "minValues": {"t": f"a{separator}b"}}, ensure_ascii=False)
    action = {"add": {"path": "x", "partitionValues": {}, "size": 1, "dataChange": True, "stats": stats}}
    assert table.log.files.commit(1, json.dumps(action, ensure_ascii=False) + "\n")
    table.log.refresh()
    assert json.loads(table.log.active["x"].stats or "")["minValues"] == {"t": f"a{separator}b"}


def test_a_deletion_vector_that_comes_in_between(place: Place) -> None:
    """To exchange the file would bring back the rows that are deleted."""
    place.others(1)
    files = CommitFiles(place.storage, str(place.path))
    rows = TableRows(str(place.path), TableLog.open(files, keeps_files=True))
    path = next(iter(rows.log.active))

    def judge(found: pa.Table) -> Change:
        vector = {"storageType": "u", "pathOrInlineDv": "x" * 20, "offset": 1, "sizeInBytes": 1, "cardinality": 1}
        added = {"path": path, "partitionValues": {}, "size": 1, "dataChange": True, "deletionVector": vector}
        assert files.commit(2, commit_text("DELETE", {}, [{"remove": {"path": path}}, {"add": added}], blind=False))
        return Change(found, 1)

    with pytest.raises(UnknownTableError, match="it has deletion vectors"):
        rows.change("UPDATE", judge)
    assert place.versions() == [0, 1, 2]


def test_a_table_that_must_only_be_appended_to_from_now_on(place: Place) -> None:
    place.others(1)
    files = CommitFiles(place.storage, str(place.path))
    rows = TableRows(str(place.path), TableLog.open(files, keeps_files=True))

    def judge(found: pa.Table) -> Change:
        metadata = dict(rows.log.metadata) | {"configuration": {"delta.appendOnly": "true"}}
        assert files.commit(2, commit_text("SET TBLPROPERTIES", {}, [{"metaData": metadata}], blind=False))
        return Change(found, 1)

    with pytest.raises(UnknownTableError, match="must not be changed"):
        rows.change("UPDATE", judge)
    assert place.versions() == [0, 1, 2]


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_a_table_whose_commits_a_catalog_has_is_refused(place: Place, feature: str) -> None:
    """From the beginning, and where it becomes one while it is written."""
    table = place.writer()
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [feature],
        "writerFeatures": [feature, "inCommitTimestamp"],
    }
    place.others(1)
    assert table.log.files.commit(2, commit_text("ALTER", {}, [{"protocol": protocol}], blind=False))
    for change in (lambda: append(table, 9), place.writer):
        with pytest.raises(ConfigError, match=f"is managed by its catalog \\(feature {feature}\\)"):
            change()


def test_times_of_older_writers_stay_what_they_are(place: Place) -> None:
    """INT96 has nanoseconds, of which an integer has less than six centuries: 9999 became 1816."""
    table = place.writer()
    columns = StructType([*COLUMNS, StructField("at", TimestampType())])
    metadata = dict(table.log.metadata) | {"schemaString": columns.json()}
    assert table.log.files.commit(1, commit_text("ADD COLUMNS", {}, [{"metaData": metadata}], blind=False))
    moments = [datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), datetime(1, 1, 1, tzinfo=UTC), None]
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "t": ["a"] * 3, "at": pa.array(moments, AT)})
    pq.write_table(rows, place.path / "old.parquet", use_deprecated_int96_timestamps=True)
    added = {"path": "old.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    assert table.log.files.commit(2, commit_text("WRITE", {}, [{"add": added}], blind=True))
    files = CommitFiles(place.storage, str(place.path))
    changed = TableRows(str(place.path), TableLog.open(files, keeps_files=True))
    assert changed.change("UPDATE", lambda found: Change(found, found.num_rows)) == 3
    written = next(path for path in place.path.glob("part-*.parquet"))
    assert pq.read_table(written)["at"].to_pylist() == moments
