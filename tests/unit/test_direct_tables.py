"""Tables made, appended to and partly replaced without Spark, as delta-rs reads them."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from share_spark.delivery.output_file import OutputFile
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.direct_create import create_table
from share_spark.delta.table_log import TableLog
from share_spark.model.errors import SinkError
from share_spark.spark.public_files import LocalFiles

COLUMNS = StructType([StructField("n", LongType()), StructField("t", StringType())])


def made(place: Path) -> CommitFiles:
    files = CommitFiles(LocalFiles(), str(place))
    assert create_table(files, COLUMNS, partitioned_by=["t"], properties={"team": "ours"})
    return files


def commits(files: CommitFiles, place: Path) -> DirectAppends:
    log = TableLog.open(files, keeps_files=True)
    return DirectAppends(directory=str(place), log=log, columns=log.metadata["schemaString"])


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
    assert (log.schema, log.partition_columns, log.properties) == (COLUMNS, ("t",), {"team": "ours"})
    assert files.is_table()


def test_of_two_that_make_it_one_does(tmp_path: Path) -> None:
    files, made_by = CommitFiles(LocalFiles(), str(tmp_path)), []
    threads = [threading.Thread(target=lambda: made_by.append(create_table(files, COLUMNS))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made_by) == [False] * 7 + [True]


def test_partitions_are_replaced(tmp_path: Path) -> None:
    table = commits(made(tmp_path), tmp_path)
    files = [table.write(some(1, 2), {"t": "a"}), table.write(some(3), {"t": "b"})]
    table.commit(files, meanwhile=lambda _: None)
    other = commits(CommitFiles(LocalFiles(), str(tmp_path)), tmp_path)
    other.commit([other.write(some(4), {"t": "a"})], meanwhile=lambda _: None)
    new = table.write(some(5), {"t": "a"})
    table.commit([new], meanwhile=lambda _: None, replaced=lambda values: values["t"] == "a")
    assert rows(tmp_path) == [(3, "b"), (5, "a")], "what another writer has added meanwhile is replaced as well"
    assert TableLog.open(table.log.files, keeps_files=True).active == table.log.active
    DeltaTable(str(tmp_path)).create_checkpoint()
    assert TableLog.open(table.log.files, keeps_files=True).active == table.log.active


def test_statistics_bound_what_is_in_the_file(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path))
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
    file.write(pa.table(columns))
    file.write(pa.table(columns | {"n": pa.array([7, None, 2], pa.int64())}))
    written = file.close()
    assert written is not None
    stats = written.stats
    assert stats["numRecords"] == 6
    assert stats["minValues"] == {"n": 1, "t": "a", "day": "2026-01-01", "at": "2026-01-01T12:00:00.001Z"}
    assert stats["maxValues"] == {"n": 7, "t": "b", "day": "2026-01-02", "at": "2026-01-01T12:00:00.002Z"}
    assert stats["nullCount"]["empty"] == 6
    assert stats["nullCount"]["n"] == 2


def test_a_task_without_rows_leaves_no_file(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path))
    file.write(some())
    assert file.close() is None
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path))
    file.write(some(1))
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_rows_that_cannot_be_written_are_a_fault_of_the_sink(tmp_path: Path) -> None:

    with pytest.raises(SinkError, match="output rows cannot be written to"):
        OutputFile(str(tmp_path / "missing")).write(some(1))
