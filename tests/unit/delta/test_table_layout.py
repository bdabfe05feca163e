"""Rows of partitioned tables: which files they go to, and what the log says of them; read back by delta-rs."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from share_spark.delivery import output_files
from share_spark.delivery.frame_files import MakeFiles
from share_spark.delivery.output_files import OutputFiles
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.table_layout import (
    TableColumns,
    TableLayout,
    directory_name,
    unknown_partition_column,
    value_text,
)
from share_spark.delta.table_log import TableLog
from share_spark.model.errors import SinkError
from share_spark.spark.public_files import LocalFiles
from tests.support.partition_texts import TEXTS

COLUMNS = StructType([StructField("n", LongType()), StructField("Day", DateType()), StructField("text", StringType())])


def table(place: Path, *partitioned_by: str) -> DirectAppends:
    files = CommitFiles(LocalFiles(), str(place))
    assert create_table(files, COLUMNS.json(), partitioned_by=partitioned_by)
    return DirectAppends(directory=str(place), log=TableLog.open(files))


def written(appends: DirectAppends, *rows: pa.Table) -> list[DataFile]:
    assert appends.place_for_workers is not None
    files = OutputFiles(appends.place_for_workers)
    for some in rows:
        files.write(some)
    return files.close()


def some(*rows: tuple[int, date | None, str | None]) -> pa.Table:
    numbers, days, texts = zip(*rows, strict=True)
    columns: dict[str, Any] = {"N": pa.array(numbers, pa.int64()), "day": days, "TEXT": pa.array(texts, pa.string())}
    return pa.table(columns | {"day": pa.array(days, pa.date32())})


def read(place: Path) -> list[tuple[int, date | None, str | None]]:
    found = DeltaTable(str(place)).to_pyarrow_table().to_pylist()
    return [(row["n"], row["Day"], row["text"]) for row in found]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("", pa.string(), None),
        (None, pa.string(), None),
        (" 0/%", pa.string(), " 0/%"),
        (True, pa.bool_(), "true"),
        (False, pa.bool_(), "false"),
        (-(2**63), pa.int64(), "-9223372036854775808"),
        (date(1, 2, 3), pa.date32(), "0001-02-03"),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), pa.timestamp("us", "UTC"), "2026-01-01T12:00:00.000000Z"),
        (datetime(1, 1, 1, 0, 0, 0, 1, UTC), pa.timestamp("us", "UTC"), "0001-01-01T00:00:00.000001Z"),
        (datetime.fromisoformat("2026-01-01 12:00"), pa.timestamp("us"), "2026-01-01 12:00:00"),
        (datetime.fromisoformat("2026-01-01 12:00:00.000005"), pa.timestamp("us"), "2026-01-01 12:00:00.000005"),
        (Decimal("-0.50"), pa.decimal128(10, 2), "-0.50"),
        (Decimal("1E-9"), pa.decimal128(20, 9), "0.000000001"),
    ],
)
def test_a_value_in_the_log(value: Any, kind: pa.DataType, text: str | None) -> None:
    assert value_text(pa.scalar(value, kind)) == text


def test_a_day_that_has_no_text_is_a_fault_of_the_sink() -> None:
    with pytest.raises(SinkError, match="partition value that has no text"):
        value_text(pa.scalar(2**31 - 1, pa.int32()).cast(pa.date32()))


def test_names_of_directories() -> None:
    assert directory_name({"a b": "1/2", "c": None}) == "a%20b=1%2F2/c=__HIVE_DEFAULT_PARTITION__"
    assert directory_name({"a": "ü"}).isascii()
    assert directory_name({"a": "x" * 300}) == ""


def test_types_that_are_left_to_spark() -> None:
    types = {"a": "string", "b": "binary", "c": "double", "d": "decimal(3,1)", "e": "string collate UTF8_LCASE"}
    schema = json.dumps({"fields": [{"name": name, "type": kind} for name, kind in types.items()]})
    assert unknown_partition_column(schema, ["a", "d"]) is None
    assert [unknown_partition_column(schema, ["a", name]) for name in "bc"] == ["b binary", "c double"]
    assert unknown_partition_column(schema, ["e"]) == "e string collate UTF8_LCASE"


def test_files_of_a_table_whose_columns_change() -> None:
    """A column that was added is null in them; nothing else is as it was."""

    def columns(*names: str, kind: str = "long", nullable: bool = True, by: str = "a") -> TableColumns:
        fields = [{"name": name, "type": "string", "nullable": True} for name in names]
        return TableColumns(json.dumps({"fields": [*fields, {"name": "z", "type": kind, "nullable": nullable}]}), (by,))

    before = columns("a", "b")
    assert columns("a", "b", "c").take_files_of(before)
    assert columns("c", "b", "a").take_files_of(before)
    for after in (columns("a"), columns("a", "b", kind="int"), columns("a", "b", by="b")):
        assert not after.take_files_of(before)
    assert not columns("a", nullable=False).take_files_of(TableColumns(json.dumps({"fields": []}), ("a",)))


def test_each_combination_of_values_is_a_file(tmp_path: Path) -> None:
    """Null and the empty text are one; the names of columns are the table's."""
    appends = table(tmp_path, "text", "Day")
    one, two = date(2026, 1, 1), date(2026, 1, 2)
    first = some((1, one, "a"), (2, two, "a"), (3, one, ""), (4, None, None))
    files = written(appends, first, some((5, one, None), (6, one, "a")))
    assert sorted(
        (file.values["text"], str(file.values["Day"]), file.rows) for file in files if file.values["text"]
    ) == [
        ("a", "2026-01-01", 2),
        ("a", "2026-01-02", 1),
    ]
    assert Counter(file.rows for file in files if file.values["text"] is None) == {2: 1, 1: 1}
    assert {file.path.rpartition("/")[0] for file in files} == {directory_name(file.values) for file in files}
    by_value = {tuple(file.values.values()): file.stats for file in files}
    assert (by_value["a", "2026-01-01"]["minValues"], by_value["a", "2026-01-01"]["maxValues"]) == ({"n": 1}, {"n": 6})
    appends.commit(files)
    expected = [(1, one, "a"), (2, two, "a"), (3, one, None), (4, None, None), (5, one, None), (6, one, "a")]
    assert sorted(read(tmp_path)) == expected


def test_rows_of_nothing_but_partition_columns(tmp_path: Path) -> None:
    appends = table(tmp_path, "text")
    appends.commit(written(appends, some((1, None, "a"), (2, None, ""), (3, None, "a")).select(["TEXT"])))
    assert sorted(read(tmp_path), key=str) == [(None, None, "a"), (None, None, "a"), (None, None, None)]


def test_any_text_reads_back(tmp_path: Path) -> None:
    appends = table(tmp_path, "text")
    appends.commit(written(appends, some(*((n, None, text) for n, text in enumerate(TEXTS)))))
    assert sorted(read(tmp_path)) == [(n, None, text or None) for n, text in enumerate(TEXTS)]
    assert DeltaTable(str(tmp_path)).vacuum(0, dry_run=True, enforce_retention_duration=False) == []


def test_any_rows_read_back(tmp_path: Path) -> None:
    """In whatever pieces they come."""
    chance, rows = random.Random(5), []
    appends = table(tmp_path, "Day", "text")
    for number in range(400):
        day = chance.choice([None, date(2026, 1, chance.randint(1, 5))])
        rows.append((number, day, chance.choice([None, "", "a", "b c", "%2F"])))
    while rows_left := rows[len(read(tmp_path)) :]:
        size = chance.randint(1, 90)
        pieces = [rows_left[:size][at : at + 7] for at in range(0, min(size, len(rows_left)), 7)]
        appends.commit(written(appends, *(some(*piece) for piece in pieces)))
    assert sorted(read(tmp_path)) == [(n, day, text or None) for n, day, text in rows]


def test_what_a_worker_holds_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of files they are finished, and their partitions get new ones."""
    monkeypatch.setattr(output_files, "_MOST_OPEN", 3)
    monkeypatch.setattr(output_files, "_ROW_GROUP_BYTES", 1)
    appends = table(tmp_path, "text")
    files = written(appends, *(some(*((n, None, f"{n % 5}") for n in range(start, start + 10))) for start in (0, 10)))
    assert len(files) > 5
    appends.commit(files)
    assert sorted(n for n, _, _ in read(tmp_path)) == list(range(20))


def test_a_task_that_fails_leaves_no_file_in_any_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "_MOST_OPEN", 2)
    monkeypatch.setattr(output_files, "_ROW_GROUP_BYTES", 1)
    place = table(tmp_path, "text").place_for_workers
    assert place is not None
    files = OutputFiles(place)
    files.write(some(*((n, None, f"{n}") for n in range(5))))
    assert len(list(tmp_path.rglob("*.parquet"))) == 5
    files.discard()
    assert list(tmp_path.rglob("*.parquet")) == []


def made(task: MakeFiles, rows: pa.Table) -> list[dict[str, Any]]:
    return [row for batch in task(rows.to_batches(max_chunksize=2)) for row in batch.to_pylist()]


def test_files_that_a_worker_makes_for_the_driver(tmp_path: Path) -> None:
    appends = table(tmp_path, "text")
    rows = some((1, None, "a"), (2, None, "b"), (3, None, "a"))
    found = [
        (DataFile.from_json(row["file"]), row["content"]) for row in made(MakeFiles(appends.layout, 9_999, 2), rows)
    ]
    for file, content in found:
        appends.put(file, content)
    appends.commit([file for file, _ in found])
    assert sorted(read(tmp_path)) == [(1, None, "a"), (2, None, "b"), (3, None, "a")]
    action = found[0][0].to_action(0)["add"]
    assert (tmp_path / unquote(action["path"])).stat().st_size == action["size"]


@pytest.mark.parametrize(("most_bytes", "most_files"), [(1, 2), (9_999, 1)])
def test_rows_that_are_too_many_for_the_driver(most_bytes: int, most_files: int) -> None:
    layout = TableLayout(columns=("n", "Day", "text"), partitioned_by=("text",))
    rows = some((1, None, "a"), (2, None, "b"), (3, None, "a"))
    assert made(MakeFiles(layout, most_bytes, most_files), rows) == [{"file": None, "content": None}]
