"""Entries of a journal: whole or not there, at every moment, on the kinds of storage that there are."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark.delta.journal import Journal
from share_spark.model.ids import BatchStamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAMP = BatchStamp(3, 7)
PURPOSE, GROUP = "output", "billing/eu"
OLD, NEW = b"old" * 1_000, b"\x00new\n" * 2_000


def entries(base: Path) -> Path:
    return base / "_share_spark" / PURPOSE / "billing%2Feu"


Mount = Callable[[str], str]


@pytest.fixture
def mounted(spark: SparkSession, tmp_path: Path) -> Iterator[Mount]:
    """A URL of a scheme, below which Hadoop finds ``tmp_path``."""
    name, local = f"t{uuid.uuid4().hex}", "org.apache.hadoop.fs.LocalFileSystem"
    given = {f"fs.viewfs.mounttable.{name}.link./base": f"file://{tmp_path}"}

    def mount(scheme: str) -> str:
        if scheme != "viewfs":
            given[f"fs.{scheme}.impl"] = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
            given[f"fs.viewfs.overload.scheme.target.{scheme}.impl"] = local
            given["fs.viewfs.overload.scheme.target.file.impl"] = local
        for key, value in given.items():
            spark.conf.set(key, value)
        return f"{scheme}://{name}/base"

    yield mount
    for key in given:
        spark.conf.unset(key)


@pytest.mark.parametrize("kind", ["disk", "viewfs", "s3a"])
def test_an_entry_is_written_replaced_listed_and_removed(
    spark: SparkSession, tmp_path: Path, mounted: Mount, kind: str
) -> None:
    """``viewfs`` stands for file systems that are not the local one, ``s3a`` for object stores."""
    place = str(tmp_path) if kind == "disk" else mounted(kind)
    journal = Journal(spark, place, PURPOSE, GROUP)
    assert (journal.stamps(), journal.read(STAMP)) == ([], None)
    for content in (OLD, NEW):
        journal.put(STAMP, content)
        assert (journal.stamps(), journal.read(STAMP)) == ([STAMP], content)
    journal.put(BatchStamp(1, -1), b"")
    assert journal.stamps() == [BatchStamp(1, -1), STAMP]
    journal.remove(STAMP)
    journal.remove(STAMP)
    assert (journal.stamps(), journal.read(STAMP)) == ([BatchStamp(1, -1)], None)


def test_an_entry_that_is_replaced_is_there_at_every_moment(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(spark, str(tmp_path), PURPOSE, GROUP)
    journal.put(STAMP, OLD)
    with watched(entries(tmp_path) / "3-7") as seen:
        for number in range(100):
            journal.put(STAMP, (OLD, NEW)[number % 2])
    assert seen <= {OLD, NEW}, "it was away, or not whole"


@contextmanager
def watched(file: Path) -> Iterator[set[bytes | None]]:
    """All contents that a reader can see, None where there is no such file."""
    seen: set[bytes | None] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            try:
                seen.add(file.read_bytes())
            except FileNotFoundError:
                seen.add(None)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def test_an_engine_that_dies_between_file_and_checksum_leaves_an_entry_that_can_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hadoop would write a checksum beside each file, and refuse a file that its checksum does not fit."""
    journal = Journal(spark, str(tmp_path), PURPOSE, GROUP)
    journal.put(STAMP, OLD)
    assert [path.name for path in entries(tmp_path).iterdir()] == ["3-7"]


def test_on_an_object_store_nothing_is_written_aside(spark: SparkSession, tmp_path: Path, mounted: Mount) -> None:
    (entries(tmp_path) / ".3-7.tmp").mkdir(parents=True)
    journal = Journal(spark, mounted("s3a"), PURPOSE, GROUP)
    journal.put(STAMP, NEW)
    assert journal.read(STAMP) == NEW


def test_what_was_written_aside_and_never_put_in_place_is_no_entry(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(spark, str(tmp_path), PURPOSE, GROUP)
    entries(tmp_path).mkdir(parents=True)
    (entries(tmp_path) / ".3-7.tmp").write_bytes(b"half")
    assert (journal.stamps(), journal.read(STAMP)) == ([], None)


def test_an_entry_that_is_there_and_cannot_be_read_is_a_fault(spark: SparkSession, tmp_path: Path) -> None:
    (entries(tmp_path) / "3-7").mkdir(parents=True)
    fault: Any = Exception
    with pytest.raises(fault, match="3-7"):
        Journal(spark, str(tmp_path), PURPOSE, GROUP).read(STAMP)
