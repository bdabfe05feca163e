"""Tables made, appended to and partly replaced without Spark, as delta-rs reads them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    VariantType,
)

from share_spark.admin.table_files import MANY, small_files_text
from share_spark.delivery.output_files import OutputFiles
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.data_file import parquet_of, statistics
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.table_layout import FilePlace, TableLayout
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_rows import Change, OvertakenError, TableRows
from share_spark.model.errors import SinkError
from share_spark.spark.public_files import LocalFiles
from share_spark.spark.schemas import arrow_schema

COLUMNS = StructType([StructField("n", LongType()), StructField("t", StringType())])


def made(place: Path) -> CommitFiles:
    files = CommitFiles(LocalFiles(), str(place))
    assert create_table(files, COLUMNS.json(), partitioned_by=["t"], properties={"team": "ours"})
    return files


def commits(files: CommitFiles, place: Path) -> DirectAppends:
    log = TableLog.open(files, keeps_files=True)
    return DirectAppends(directory=str(place), log=log)


def rows(place: Path) -> list[tuple[int, str]]:
    table = DeltaTable(str(place)).to_pyarrow_table()
    return sorted(zip(table["n"].to_pylist(), table["t"].to_pylist(), strict=True))


def some(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def test_a_table_is_there_at_once(tmp_path: Path) -> None:
    files = made(tmp_path)
    table = DeltaTable(str(tmp_path))
    assert [field.name for field in table.schema().fields] == ["n", "t"]
    assert (table.metadata().partition_columns, table.metadata().configuration) == (["t"], {"team": "ours"})
    log = TableLog.open(files)
    assert (log.schema, log.partition_columns, log.properties) == (arrow_schema(COLUMNS), ("t",), {"team": "ours"})
    assert files.is_table()


def test_of_two_that_make_it_one_does(tmp_path: Path) -> None:
    files, made_by = CommitFiles(LocalFiles(), str(tmp_path)), []
    threads = [threading.Thread(target=lambda: made_by.append(create_table(files, COLUMNS.json()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made_by) == [False] * 7 + [True]


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (struct(at=TimestampNTZType()), "at"),
        (struct(d=DayTimeIntervalType()), "d"),
        (struct(v=NullType()), "v"),
        (struct(v=VariantType()), "v"),
        (struct(t=StringType("UNICODE_CI")), "t"),
        (struct(**{"a b": LongType()}), "a b"),
        (struct(n=LongType(), N=StringType()), "N"),
        (struct(s=struct(a=LongType(), A=LongType())), "s.A"),
        (struct(s=StructType([StructField("a", LongType(), nullable=False)])), "s.a"),
        (struct(x=ArrayType(LongType(), containsNull=False)), "x"),
        (struct(x=ArrayType(MapType(StringType(), TimestampNTZType()))), "x.element.value"),
        (StructType([StructField("n", LongType(), metadata={"CURRENT_DEFAULT": "1"})]), "n"),
    ],
)
def test_columns_whose_needs_only_spark_knows(tmp_path: Path, columns: StructType, named: str) -> None:
    """Others could not open a table with them in the oldest protocol, or Spark could not change it."""
    with pytest.raises(UnknownTableError, match=f"the column {named} needs"):
        create_table(CommitFiles(LocalFiles(), str(tmp_path)), columns.json())
    assert list(tmp_path.iterdir()) == []


def test_partitions_are_replaced(tmp_path: Path) -> None:
    table = commits(made(tmp_path), tmp_path)
    files = [table.write(some(1, 2), {"t": "a"}), table.write(some(3), {"t": "b"})]
    table.commit(files, meanwhile=lambda _: None)
    other = commits(CommitFiles(LocalFiles(), str(tmp_path)), tmp_path)
    other.commit([other.write(some(4), {"t": "a"})], meanwhile=lambda _: None)
    new = table.write(some(5), {"t": "a"})
    table.commit([new], meanwhile=lambda _: None, replaced=lambda _, values: values["t"] == "a")
    assert rows(tmp_path) == [(3, "b"), (5, "a")], "what another writer has added meanwhile is replaced as well"
    assert TableLog.open(table.log.files, keeps_files=True).active == table.log.active
    DeltaTable(str(tmp_path)).create_checkpoint()
    assert TableLog.open(table.log.files, keeps_files=True).active == table.log.active


def files_in(place: Path, *partitioned_by: str) -> OutputFiles:
    return OutputFiles(FilePlace(str(place), TableLayout(columns=("n", "t"), partitioned_by=partitioned_by)))


def test_statistics_bound_what_is_in_the_file(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    moment = datetime(2026, 1, 1, 12, 0, 0, 1_500, UTC)
    columns: dict[str, Any] = {
        "n": pa.array([3, None, 1], pa.int64()),
        "t": ["b", "a", None],
        "long": ["x" * 40, "y", "z"],
        "day": pa.array([date(2026, 1, 2), date(2026, 1, 1), None]),
        "at": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
        "price": [1.5, float("nan"), 2.0],
        "ok": [True, False, None],
        "empty": pa.array([None, None, None], pa.int64()),
    }
    files.write(pa.table(columns))
    files.write(pa.table(columns | {"n": pa.array([7, None, 2], pa.int64())}))
    (written,) = files.close()
    stats = written.stats
    assert stats["numRecords"] == 6
    assert stats["minValues"] == {"n": 1, "t": "a", "day": "2026-01-01", "at": "2026-01-01T12:00:00.001Z"}
    assert stats["maxValues"] == {"n": 7, "t": "b", "day": "2026-01-02", "at": "2026-01-01T12:00:00.002Z"}
    assert stats["nullCount"]["empty"] == 6
    assert stats["nullCount"]["n"] == 2


LAST = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        (pa.array([0, 1_700_000_000_000_000_000], pa.timestamp("us", "UTC")), None),
        (pa.array([0, -(2**62)], pa.timestamp("us", "UTC")), None),
        (pa.array([0, 3_000_000], pa.date32()), None),
        (pa.array([LAST], pa.timestamp("us", "UTC")), None),
        (pa.array([LAST.replace(microsecond=999_000)], pa.timestamp("us", "UTC")), "9999-12-31T23:59:59.999Z"),
        (pa.array([datetime.min.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")), "0001-01-01T00:00:00.000Z"),
        (pa.array([date.max]), "9999-12-31"),
    ],
)
def test_a_bound_that_no_date_can_be_is_left_out(values: Any, bounds: str | None) -> None:
    """A bound that is missing is right. Delta's have milliseconds: the last one has no greater one."""
    stats = statistics(parquet_of(pa.table({"n": [1] * len(values), "at": values}))[1], ["n", "at"])
    assert (stats["minValues"].get("at"), stats["maxValues"].get("at")) == (bounds, bounds)
    assert (stats["numRecords"], stats["nullCount"]["at"], stats["minValues"]["n"]) == (len(values), 0, 1)


def test_a_task_without_rows_leaves_no_file(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.write(some())
    assert files.close() == []
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.write(some(1))
    files.discard()
    assert list(tmp_path.iterdir()) == []


def test_rows_that_cannot_be_written_are_a_fault_of_the_sink(tmp_path: Path) -> None:
    files = files_in(tmp_path / "missing")
    files.write(some(1))
    with pytest.raises(SinkError, match="output rows cannot be written to"):
        files.close()


def plain(place: Path) -> TableRows:
    """A table with two files: n = 1, 2 and n = 3."""
    files = CommitFiles(LocalFiles(), str(place))
    assert create_table(files, COLUMNS.json())
    appends = commits(files, place)
    for numbers in ([1, 2], [3]):
        rows = pa.table({"n": pa.array(numbers, pa.int64()), "t": ["a"] * len(numbers)})
        appends.commit([appends.write(rows, {})])
    return table_rows(place)


def table_rows(place: Path) -> TableRows:
    files = CommitFiles(LocalFiles(), str(place))
    return TableRows(str(place), TableLog.open(files, keeps_files=True))


def without(*numbers: int) -> Callable[[pa.Table], Change]:
    """Rows with these numbers are deleted."""

    def judge(rows: pa.Table) -> Change:
        kept = rows.filter(pc.invert(pc.is_in(rows.column("n"), pa.array(numbers))))
        return Change(kept, rows.num_rows - kept.num_rows)

    return judge


def test_rows_are_deleted_in_one_commit(tmp_path: Path) -> None:
    """A file of which nothing is left goes, one without such rows stays as it is."""
    table = plain(tmp_path)
    assert table.change("DELETE", without(3)) == 1
    assert table.change("DELETE", without(1)) == 1
    assert table.change("DELETE", without(7)) == 0
    assert (rows(tmp_path), DeltaTable(str(tmp_path)).version()) == ([(2, "a")], 4)
    assert DeltaTable(str(tmp_path)).history(1)[0]["operation"] == "DELETE"
    assert [found.rows.to_pydict() for found in table.read(["n"])] == [{"n": [2]}]


def test_an_append_in_between_is_no_conflict(tmp_path: Path) -> None:
    table = plain(tmp_path)

    def judge(found: pa.Table) -> Change:
        appends = commits(CommitFiles(LocalFiles(), str(tmp_path)), tmp_path)
        appends.commit([appends.write(pa.table({"n": pa.array([9], pa.int64()), "t": ["b"]}), {})])
        return without(1, 3)(found)

    assert table.change("DELETE", judge) == 2
    assert rows(tmp_path) == [(2, "a"), (9, "b"), (9, "b")]


def test_files_that_others_exchange_in_between_are_judged_again(tmp_path: Path) -> None:
    table, others = plain(tmp_path), []

    def judge(found: pa.Table) -> Change:
        if not others:
            others.append(table_rows(tmp_path).change("DELETE", without(2)))
        return without(1)(found)

    assert table.change("DELETE", judge) == 1
    assert rows(tmp_path) == [(3, "a")]


def test_one_that_is_never_first_gives_up(tmp_path: Path) -> None:
    table = plain(tmp_path)

    def judge(found: pa.Table) -> Change:
        table_rows(tmp_path).change("UPDATE", lambda rows: Change(rows, rows.num_rows))
        return without(1)(found)

    with pytest.raises(OvertakenError, match="other writers were first 20 times"):
        table.change("DELETE", judge)
    assert rows(tmp_path) == [(1, "a"), (2, "a"), (3, "a")]


@pytest.mark.parametrize(
    ("property_name", "reason"),
    [("delta.appendOnly", "must not be changed"), ("delta.enableChangeDataFeed", "change data feed")],
)
def test_tables_that_ask_more_of_a_writer_are_left_alone(tmp_path: Path, property_name: str, reason: str) -> None:
    files = CommitFiles(LocalFiles(), str(tmp_path))
    assert create_table(files, COLUMNS.json(), properties={property_name: "true"})
    with pytest.raises(UnknownTableError, match=reason):
        table_rows(tmp_path).change("DELETE", without(1))


def test_columns_that_a_file_does_not_have_are_null(tmp_path: Path) -> None:
    table = plain(tmp_path)
    appends = commits(CommitFiles(LocalFiles(), str(tmp_path)), tmp_path)
    appends.commit([appends.write(some(4), {})])
    table.log.refresh()
    assert [found.rows.to_pylist() for found in table.read(["t", "n"])][-1] == [{"t": None, "n": 4}]


def test_a_file_that_gets_a_deletion_vector_stays(tmp_path: Path) -> None:
    """Delta's writer names it as added and as removed, in any order."""
    files = CommitFiles(LocalFiles(), str(tmp_path))
    appends = plain(tmp_path)
    path, file = next(iter(appends.log.active.items()))
    added = {"path": path, "partitionValues": {}, "size": file.size, "deletionVector": {"cardinality": 1}}
    removed = {"path": path, "dataChange": True}
    for version, actions in ((3, [{"add": added}, {"remove": removed}]), (4, [{"remove": removed}, {"add": added}])):
        assert files.commit(version, "".join(json.dumps(action) + "\n" for action in actions))
        log = TableLog.open(files, keeps_files=True)
        assert [log.active[path].is_whole, len(log.active)] == [False, 2]
    with pytest.raises(UnknownTableError, match="it has deletion vectors"):
        table_rows(tmp_path).change("DELETE", without(1))


def test_many_small_files_are_told_and_left_as_they_are(tmp_path: Path) -> None:
    assert small_files_text(str(tmp_path)) == "", "there is no table"
    appends = commits(made(tmp_path), tmp_path)
    written = [appends.write(some(number), {"t": "a"}) for number in range(MANY)]
    appends.commit(written[:-1], transactions={})
    assert small_files_text(str(tmp_path)) == ""
    appends.commit(written[-1:], transactions={})
    told = f"100 of 100 files are smaller than 16 MB; this joins them: OPTIMIZE delta.`{tmp_path}`"
    assert small_files_text(str(tmp_path)) == told
    assert len(DeltaTable(str(tmp_path)).file_uris()) == MANY
    assert small_files_text("main.bills") == "", "only Spark can look it up"
