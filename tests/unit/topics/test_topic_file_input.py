"""What tasks take from the files of a topic log: which records, in which order, in which batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.delivery.kept_rows import RECORD_SCHEMA
from share_spark.delivery.reader_input import ReaderInput, in_equal_parts
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.table_log import ActiveFile, TableLog
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges, offsets_in
from share_spark.model.ids import LogEnds, TopicPartition
from share_spark.spark.public_files import LocalFiles
from share_spark.spark.threads import TASK_COLUMN
from share_spark.topics import decoded_files, topic_file_rows, topic_files
from share_spark.topics.topic_file_rows import RecordFile, TopicFileReader
from share_spark.topics.topic_files import TopicFiles
from tests.twins.memory import InMemoryTopicLog

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
SCHEMA = pa.schema([*RECORD_SCHEMA, pa.field("delivery_count", pa.int32()), pa.field(TASK_COLUMN, pa.string())])
TIME = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)


class Stored(InMemoryTopicLog):
    """A topic log in files of one directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory, self.stored = directory, list[RecordFile]()

    def put(
        self,
        offsets: Sequence[int],
        value: bytes = b"v",
        with_place: bool = False,
        at: TopicPartition = AT,
        **more: Any,
    ) -> RecordFile:
        """One file, its rows in this order. ``with_place``: and its partition columns, as Delta 4.4 writes them."""
        size = len(offsets)
        columns: dict[str, Any] = {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([TIME] * size, pa.timestamp("us", "UTC")),
            "key": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
            "value": pa.array([value] * size, pa.binary()),
            "headers": pa.array([None] * size, RECORD_SCHEMA.field("headers").type),
        }
        if with_place:
            columns |= {"topic": pa.array([at.topic] * size), "partition": pa.array([at.partition] * size, pa.int32())}
        path = self.directory / f"{len(self.stored)}.parquet"
        pq.write_table(pa.table(columns), path, **more)
        self.stored.append(RecordFile(str(path), at, min(offsets), max(offsets)))
        return self.stored[-1]

    def reader(self) -> TopicFileReader:
        stored = sorted(self.stored, key=attrgetter("first_offset"))
        places = {file.partition for file in stored}
        return TopicFileReader({at: [file for file in stored if file.partition == at] for at in places})


@pytest.fixture
def log(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def acquired(*ranges: tuple[int, int, int], at: TopicPartition = AT) -> AcquiredSpan:
    return AcquiredSpan(at, AcquiredRanges(np.array(ranges, np.int64)))


def taken(log: Any, *spans: AcquiredSpan, tasks: int = 1, most_rows: int = 10_000) -> list[list[pa.RecordBatch]]:
    """The batches of each task."""
    found = ReaderInput.of(log.reader(), spans, tasks=tasks, most_rows=most_rows)
    batches = [list(found.batches(task, SCHEMA)) for task in range(tasks)]
    assert all(batch.schema.equals(SCHEMA) for some in batches for batch in some)
    return batches


def offsets(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_exactly_the_acquired_records_in_equal_parts_with_their_counts(log: Stored) -> None:
    log.put([*range(10), 12])
    log.put([*range(20, 30)], row_group_size=3)
    first, second = taken(log, acquired((22, 28, 2), (5, 12, 1)), tasks=2)
    assert offsets(first) == [5, 6, 7, 8, 9]  # 10 and 11 hold no record
    assert offsets(second) == [12, 22, 23, 24, 25, 26, 27, 28]
    counts = [count for batch in second for count in batch.column("delivery_count").to_pylist()]
    assert counts == [1, 2, 2, 2, 2, 2, 2, 2]


def test_rows_in_any_order_come_in_that_of_their_offsets(log: Stored) -> None:
    log.put([5, 3, 9, 1])
    log.put([4, 2, 30])
    log.put([41, 40])
    (batches,) = taken(log, acquired((1, 100, 1)))
    assert offsets(batches) == [1, 2, 3, 4, 5, 9, 30, 40, 41]
    keys = [key for batch in batches for key in batch.column("key").to_pylist()]
    assert keys == [b"%d" % offset for offset in offsets(batches)], "whole rows are moved"


def test_batches_have_no_more_rows_than_they_may(log: Stored) -> None:
    for begin in range(0, 25, 5):
        log.put(range(begin, begin + 5))
    (batches,) = taken(log, acquired((0, 24, 1)), most_rows=7)
    assert offsets(batches) == list(range(25))
    assert max(batch.num_rows for batch in batches) <= 7
    (batches,) = taken(log, acquired((0, 24, 1)), most_rows=1_000)
    assert [batch.num_rows for batch in batches] == [25]


def test_batches_have_no_more_bytes_than_they_may(log: Stored) -> None:
    """Parquet stores equal values once: the file has a few kilobytes."""
    file = log.put(range(300), value=b"x" * 1_000_000)
    assert Path(file.path).stat().st_size < 100_000
    (batches,) = taken(log, acquired((0, 299, 1)))
    assert offsets(batches) == list(range(300))
    assert max(batch.nbytes for batch in batches) <= 64 << 20


def test_what_a_record_holds(log: Stored) -> None:
    """In the older kind of time too, in which Spark writes; no headers are an empty list."""
    log.put([7], use_deprecated_int96_timestamps=True)
    ((batch,),) = taken(log, acquired((7, 7, 3)))
    (row,) = batch.to_pylist()
    expected = {"topic": "orders", "partition": 0, "offset": 7, "timestamp": TIME, "key": b"7", "value": b"v"}
    assert row == {**expected, "headers": [], "delivery_count": 3, TASK_COLUMN: None}


def test_a_file_may_have_its_partition_columns(log: Stored) -> None:
    log.put([0, 1], with_place=True)
    log.put([2])
    ((batch,), (other,)) = taken(log, acquired((0, 3, 1)), tasks=2)
    found = [batch.to_pylist(), other.to_pylist()]
    assert [(row["topic"], row["partition"], row["offset"]) for rows in found for row in rows] == [
        ("orders", 0, offset) for offset in range(3)
    ]


def test_nothing_below_what_a_file_is_said_to_hold(log: Stored) -> None:
    log.stored[:] = [log.put(range(10))._replace(first_offset=4)]
    assert offsets(taken(log, acquired((0, 9, 1)))[0]) == [4, 5, 6, 7, 8, 9]


places = st.builds(TopicPartition, st.sampled_from(["orders", "returns"]), st.integers(0, 3))
files_and_ranges = st.tuples(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), max_size=5),
    st.dictionaries(st.integers(0, 40), st.integers(1, 3), min_size=1),
)


@settings(deadline=None, max_examples=80)
@given(
    st.dictionaries(places, files_and_ranges, min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 20),
)
def test_whatever_the_files_are(
    tmp_path_factory: pytest.TempPathFactory,
    stored: dict[TopicPartition, tuple[list[list[int]], dict[int, int]]],
    tasks: int,
    most_rows: int,
    most_decoded: int,
) -> None:
    """Rows in any order, files that overlap, small ones and others, looked up few or many at a time."""
    log, wanted, records = Stored(tmp_path_factory.mktemp("files")), list[AcquiredSpan](), set[tuple[Any, ...]]()
    for at, (files, counts) in stored.items():
        there = set[int]()
        for offsets in files:
            if fresh := [offset for offset in dict.fromkeys(offsets) if offset not in there]:
                log.put(fresh, at=at)
            there.update(fresh)
        wanted.append(acquired(*((offset, offset, count) for offset, count in counts.items()), at=at))
        records |= {(*at, offset, b"%d" % offset, count) for offset, count in counts.items() if offset in there}
    with pytest.MonkeyPatch.context() as patch:
        for module in (topic_file_rows, decoded_files):
            patch.setattr(module, "MOST_DECODED_ROWS", most_decoded)
        batches = [batch for some in taken(log, *wanted, tasks=tasks, most_rows=most_rows) for batch in some]
    names = ("topic", "partition", "offset", "key", "delivery_count")
    found = [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]
    assert max(map(len, batches), default=0) <= most_rows
    assert set(found) == records
    for before, after in pairwise(found):
        assert before[:2] != after[:2] or before[2] < after[2]
    assert len(found) == len(records)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=10), st.booleans()), min_size=1, max_size=4),
    st.lists(st.dictionaries(st.integers(0, 45), st.integers(1, 3), min_size=1), min_size=2, max_size=6),
    st.integers(1, 6),
    st.integers(1, 2_000),
)
def test_one_read_after_another(
    tmp_path_factory: pytest.TempPathFactory,
    stored: list[tuple[list[int], bool]],
    reads: list[dict[int, int]],
    most_decoded: int,
    most_kept: int,
) -> None:
    """Of files that are kept, in part or not at all, and whatever was read of them before."""
    log, there = Stored(tmp_path_factory.mktemp("files")), set[int]()
    for number, (numbers, is_mixed) in enumerate(stored):
        fresh = [10 * number + one + 5 * is_mixed for one in dict.fromkeys(numbers)]
        if fresh := [offset for offset in fresh if offset not in there]:
            log.put(fresh, row_group_size=4)
        there.update(fresh)
    with pytest.MonkeyPatch.context() as patch:
        for module in (topic_file_rows, decoded_files):
            patch.setattr(module, "MOST_DECODED_ROWS", most_decoded)
        patch.setattr(decoded_files, "_MOST_KEPT_BYTES", most_kept)
        for counts in reads:
            (batches,) = taken(log, acquired(*((offset, offset, count) for offset, count in sorted(counts.items()))))
            rows = [row for batch in batches for row in batch.to_pylist()]
            found = [(row["offset"], row["key"], row["delivery_count"]) for row in rows]
            expected = sorted((offset, b"%d" % offset, counts[offset]) for offset in counts.keys() & there)
            assert found == expected


@pytest.mark.parametrize("rows", [5_000, 15_000])
def test_a_file_is_opened_once_while_more_of_it_is_to_come(log: Stored, opened: list[str], rows: int) -> None:
    log.put(range(rows))
    for first in range(0, rows, 500):
        (batches,) = taken(log, acquired((first, first + 499, 1)))
        assert offsets(batches) == list(range(first, first + 500))
    assert len(opened) == 1
    taken(log, acquired((0, 9, 2)))
    assert len(opened) == 2, "it was read to its end, and is not kept"


def test_little_is_kept(log: Stored) -> None:
    """Of many files that are read in part, and of large ones."""
    files = decoded_files.DecodedFiles()
    for number in range(3 * decoded_files._MOST_KEPT_FILES):
        files.give_back(files.take(log.put([number]).path, ["offset"]))
    assert len(files._files) == decoded_files._MOST_KEPT_FILES
    large = files.take(log.put(range(10_000, 20_500), value=b"x" * 2_000).path, ["offset", "value"])
    assert sum(batch.num_rows for _, batches in large.groups() for batch in batches) == 10_500
    kept = list(files._files)
    files.give_back(large)
    assert list(files._files) == kept


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=8)


@given(st.lists(spans, min_size=1, max_size=3), st.integers(1, 5))
def test_parts_are_equal_disjoint_and_whole(partitions: list[list[tuple[int, int]]], parts: int) -> None:
    whole = []
    for number, gaps_and_sizes in enumerate(partitions):
        at, ranges = 0, []
        for gap, size in gaps_and_sizes:
            ranges.append((at + gap, at + gap + size - 1, size))
            at += gap + size
        whole.append(acquired(*ranges[::-1], at=TopicPartition("orders", number)))

    def each(some: Sequence[AcquiredSpan]) -> list[tuple[int, int, int]]:
        rows = [(one.partition.partition, row) for one in some for row in one.ranges.tolist()]
        return [(at, offset, count) for at, (first, last, count) in rows for offset in range(first, last + 1)]

    found = in_equal_parts(whole, parts)
    sizes = [sum(offsets_in(one.ranges) for one in part) for part in found]
    assert (len(found), max(sizes) - min(sizes) <= 1) == (parts, True)
    laid = [record for part in found for record in each(part)]
    assert laid == sorted(each(whole))
    assert all(before < after for before, after in pairwise(laid))


# --------------------------------------------------------------------------------------------- which files there are


def topic_table(directory: Path, **active: ActiveFile) -> TableLog:
    files = CommitFiles(LocalFiles(), str(directory))
    names = {f"{name}.parquet": file for name, file in active.items()}
    return TableLog(files=files, version=0, metadata={"configuration": {}}, keeps_files=True, active=names)


def active(first: int, last: int, *, partition: int = 0, is_whole: bool = True) -> ActiveFile:
    stats = {"minValues": {"offset": first}, "maxValues": {"offset": last}}
    return ActiveFile({"topic": "orders", "partition": str(partition)}, 1, is_whole, json.dumps(stats))


def write(path: Path, rows: int, columns: Sequence[str] = tuple(topic_files._COLUMNS)) -> None:
    pq.write_table(pa.table({name: pa.array(range(rows), pa.int64()) for name in columns}), path)


def holding(files: TopicFiles, *spans: AcquiredSpan, start: int = 0) -> list[tuple[str, int, int]] | None:
    found = files.holding(spans, {"orders": dict.fromkeys(range(2), LogEnds(start, 100))})
    return found and [(Path(file.path).stem, *file[2:]) for some in found.files.values() for file in some]


def test_files_that_may_hold_acquired_records(tmp_path: Path) -> None:
    log = topic_table(tmp_path, a=active(0, 9), b=active(10, 19), c=active(5, 30, partition=1), d=active(20, 29))
    for name in "abcd":
        write(tmp_path / f"{name}.parquet", 3)
    files = TopicFiles(log)

    assert holding(files, acquired((12, 13, 1), (19, 19, 1))) == [("b", 10, 19)]
    assert holding(files, acquired((25, 30, 1), (3, 9, 1))) == [("a", 0, 9), ("d", 20, 29)], "not what lies between"
    assert holding(files, acquired((12, 21, 1)), start=14) == [("b", 14, 19), ("d", 20, 29)]
    assert holding(files, acquired((12, 21, 1)), start=20) == [("d", 20, 29)]
    assert holding(files, acquired((0, 9, 1), at=OTHER)) == [("c", 5, 30)]
    assert holding(files, acquired((0, 9, 1), at=TopicPartition("orders", 2))) == []
    del log.active["b.parquet"]
    log.active["e.parquet"] = active(10, 25)
    log.version += 1
    write(tmp_path / "e.parquet", 3)
    assert holding(files, acquired((12, 25, 1))) == [("e", 10, 25), ("d", 20, 29)]


@pytest.mark.parametrize("reason", ["rows are deleted", "no statistics", "a large row group", "another schema", "gone"])
def test_a_file_that_spark_has_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    file = active(0, 9, is_whole=reason != "rows are deleted")
    if reason == "no statistics":
        file = file._replace(stats=None)
    if reason == "a large row group":
        monkeypatch.setattr(topic_files, "MOST_ROW_GROUP_BYTES", 1_000)
    if reason != "gone":
        write(tmp_path / "a.parquet", 10_000, ["offset"] if reason == "another schema" else tuple(topic_files._COLUMNS))
    files = TopicFiles(topic_table(tmp_path, a=file, b=active(0, 9, partition=1)))
    write(tmp_path / "b.parquet", 3)
    assert holding(files, acquired((0, 9, 1))) is None
    if reason != "a large row group":
        assert len(holding(files, acquired((0, 9, 1), at=OTHER)) or ()) == 1
