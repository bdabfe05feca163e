"""Appends without Spark, held to the Delta protocol: what Spark and delta-rs read after each of them, beside whatever
else is done to a table."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from delta.tables import DeltaTable, IdentityGenerator
from deltalake import DeltaTable as RustTable

from share_spark.delta.commit_files import CommitFile, CommitFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.errors import StateError
from share_spark.spark.delta_log import clean_log_privately, newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make(spark: SparkSession, place: Path, properties: str = "", columns: str = "n BIGINT, t STRING") -> str:
    """An empty table, partitioned by ``t``."""
    clause = f" TBLPROPERTIES ({properties})" if properties else ""
    spark.sql(f"CREATE TABLE delta.`{place}` ({columns}) USING DELTA PARTITIONED BY (t){clause}")
    return str(place)


def append(appends: DirectAppends, *numbers: int, text: str = "a") -> int:
    file = appends.write(pa.table({"n": pa.array(numbers, pa.int64())}), {"t": text})
    return appends.commit([file], meanwhile=lambda _: None)


def rows(spark: SparkSession, directory: str) -> list[tuple[int, str]]:
    """As both read them."""
    by_spark = sorted((row.n, row.t) for row in spark.read.format("delta").load(directory).collect())
    table = RustTable(directory).to_pyarrow_table()
    assert sorted(zip(table["n"].to_pylist(), table["t"].to_pylist(), strict=True)) == by_spark
    return by_spark


def test_it_is_an_append_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    directory = make(spark, tmp_path / "table")
    appends = DirectAppends.to(spark, directory)
    file = appends.write(pa.table({"n": pa.array([1, 2], pa.int64())}), {"t": "a b/c=ä%"})
    version = appends.commit([file], note="why", transactions={"app": 7}, meanwhile=lambda _: None)
    assert rows(spark, directory) == [(1, "a b/c=ä%"), (2, "a b/c=ä%")]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{directory}`").where(f"version = {version}").collect()[0]
    assert (history.userMetadata, history.operation, history.isBlindAppend) == ("why", "WRITE", True)
    assert history.operationMetrics["numOutputRows"] == "2"
    found = newest(spark, directory)
    assert int(found.transactions().get("app").get()) == 7
    assert int(found.numOfFiles()) == 1
    assert DirectAppends.to(spark, directory).log.transactions == {"app": 7}


class MixedTable:
    """A table to which everything is done; ``expected``: its rows."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self.spark, self.directory = spark, directory
        self.appends = DirectAppends.to(spark, directory)
        self.expected: list[tuple[int, str]] = []
        self.numbers = itertools.count()

    def by_spark(self) -> None:
        number = next(self.numbers)
        row = self.spark.range(1).selectExpr(f"{number}L AS n", "'s' AS t")
        row.write.format("delta").mode("append").save(self.directory)
        self.expected.append((number, "s"))

    def directly(self) -> None:
        number = next(self.numbers)
        append(self.appends, number, text="d")
        self.expected.append((number, "d"))

    def reopened(self) -> None:
        self.appends = DirectAppends.to(self.spark, self.directory)
        assert self.appends.log.version == int(newest(self.spark, self.directory).version())

    def checkpointed(self) -> None:
        self.appends.checkpoint()

    def optimized(self) -> None:
        self.spark.sql(f"OPTIMIZE delta.`{self.directory}`")

    def vacuumed(self) -> None:
        self.spark.sql(f"VACUUM delta.`{self.directory}` RETAIN 1000 HOURS")

    def cleaned(self) -> None:
        clean_log_privately(self.spark, self.directory, has_checkpoint=False, retention_ms=1)

    def deleted(self) -> None:
        if self.expected:
            self.spark.sql(f"DELETE FROM delta.`{self.directory}` WHERE n = {self.expected.pop(0)[0]}")

    def check(self) -> None:
        assert rows(self.spark, self.directory) == self.expected


@pytest.mark.parametrize(("seed", "steps"), [(4, 8), pytest.param(5, 40, marks=pytest.mark.long)])
def test_beside_all_that_is_done_to_a_table(spark: SparkSession, tmp_path: Path, seed: int, steps: int) -> None:
    """A random mix; after some of the steps both readers see exactly what was appended."""
    table = MixedTable(spark, make(spark, tmp_path / "table", "'delta.checkpointInterval' = '5'"))
    often = [table.directly, table.directly, table.directly, table.by_spark, table.checkpointed]
    kinds = [*often, table.reopened, table.optimized, table.vacuumed, table.cleaned, table.deleted]
    rng = random.Random(seed)
    for number in range(steps):
        rng.choice(kinds)()
        if number % 5 == 0:
            table.check()
    table.check()


@pytest.mark.parametrize(
    ("columns", "properties", "feature"),
    [
        ("n BIGINT, t STRING", "'delta.columnMapping.mode' = 'name'", "columnMapping"),
        ("n BIGINT, t STRING", "'delta.enableRowTracking' = 'true'", "rowTracking"),
        ("n BIGINT, t STRING", "'delta.enableInCommitTimestamps' = 'true'", "inCommitTimestamp"),
        ("n BIGINT NOT NULL, t STRING", "", None),
        ("n BIGINT, t STRING", "'delta.enableChangeDataFeed' = 'true'", None),
        ("n BIGINT, t STRING", "'delta.enableDeletionVectors' = 'true'", None),
        ("n BIGINT, t STRING", "'delta.appendOnly' = 'true'", None),
        ("n BIGINT, t STRING", "'delta.checkpointPolicy' = 'v2'", None),
    ],
)
def test_what_asks_more_of_a_writer_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, columns: str, properties: str, feature: str | None
) -> None:
    directory = make(spark, tmp_path / "table", properties, columns)
    if feature is None:
        append(DirectAppends.to(spark, directory), 1)
        assert spark.read.format("delta").load(directory).count() == 1
    else:
        with pytest.raises(UnknownTableError, match=feature):
            DirectAppends.to(spark, directory)


@pytest.mark.parametrize(
    ("generated", "feature"), [("n * 2", "generatedColumns"), (IdentityGenerator(), "identityColumns")]
)
def test_columns_that_delta_fills_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, generated: str | IdentityGenerator, feature: str
) -> None:
    builder = DeltaTable.create(spark).location(str(tmp_path / "table")).addColumn("n", "BIGINT")
    builder.addColumn("more", "BIGINT", generatedAlwaysAs=generated).execute()
    with pytest.raises(UnknownTableError, match=feature):
        DirectAppends.to(spark, str(tmp_path / "table"))


def test_a_table_that_changes_meanwhile_is_looked_at_again(spark: SparkSession, tmp_path: Path) -> None:
    directory = make(spark, tmp_path / "table")
    appends = DirectAppends.to(spark, directory)
    append(appends, 1)
    spark.sql(f"ALTER TABLE delta.`{directory}` ADD CONSTRAINT small CHECK (n < 100)")
    with pytest.raises(UnknownTableError, match="checkConstraints"):
        append(appends, 1_000)
    assert rows(spark, directory) == [(1, "a")]


@pytest.mark.parametrize("policy", ["classic", "v2"])
@pytest.mark.parametrize("part_size", [None, 2])
def test_it_begins_with_any_checkpoint(spark: SparkSession, tmp_path: Path, policy: str, part_size: int | None) -> None:
    directory = make(spark, tmp_path / "table", f"'delta.checkpointPolicy' = '{policy}', 'team' = 'ours'")
    appends = DirectAppends.to(spark, directory)
    for number in range(4):
        file = appends.write(pa.table({"n": pa.array([number], pa.int64())}), {"t": "a"})
        appends.commit([file], transactions={f"app {number % 2}": number}, meanwhile=lambda _: None)
    try:
        if part_size is not None:
            spark.conf.set("spark.databricks.delta.checkpoint.partSize", part_size)
        clean_log_privately(spark, directory, has_checkpoint=False, retention_ms=None)
    finally:
        spark.conf.unset("spark.databricks.delta.checkpoint.partSize")
    for commit in (Path(directory) / "_delta_log").glob("*.json"):
        if commit.name[20:] == ".json" and int(commit.name[:20]) < appends.log.version:
            commit.unlink()
    kept = TableLog.open(CommitFiles.at(spark, directory), keeps_files=True)
    assert sorted(file.size for file in kept.active.values()) == sorted(
        path.stat().st_size for path in Path(directory).glob("*.parquet")
    )
    again = DirectAppends.to(spark, directory).log
    assert (again.version, again.transactions) == (4, {"app 0": 2, "app 1": 3})
    assert (again.table_id, again.partition_columns) == (appends.log.table_id, ("t",))
    assert again.properties["team"] == "ours"


DAY_S = 86_400


@pytest.mark.parametrize(
    ("properties", "kept_days"),
    [
        ("", 29),
        ("'delta.enableExpiredLogCleanup' = 'false'", 200),
        ("'delta.logRetentionDuration' = 'interval 90 days'", 89),
        ("'delta.logRetentionDuration' = '90 days'", 89),
        ("'delta.logRetentionDuration' = 'INTERVAL 13 WEEKS'", 89),
    ],
)
def test_the_history_of_a_table_is_kept_as_its_owner_wants_it(
    spark: SparkSession, tmp_path: Path, properties: str, kept_days: int
) -> None:
    directory = make(spark, tmp_path / "table", properties)
    appends, log = DirectAppends.to(spark, directory), Path(directory) / "_delta_log"
    ages = [200, 100, 60, 40, 0]
    for version, age in enumerate(ages):
        if version:
            append(appends, 1)
            RustTable(directory).create_checkpoint()
        for file in log.glob(f"{version:020d}.*"):
            os.utime(file, (time.time() - age * DAY_S,) * 2)
    appends.checkpoint()
    there = {ages[int(path.stem)] for path in log.glob("*.json") if path.stem.isdecimal()}
    assert there >= {age for age in ages if age <= kept_days}
    assert (200 in there) is (kept_days >= 200), "what nobody wants to keep goes"


def test_a_table_that_is_gone_is_not_begun_again(spark: SparkSession, tmp_path: Path) -> None:
    directory = make(spark, tmp_path / "table")
    appends = DirectAppends.to(spark, directory)
    append(appends, 1)
    (tmp_path / "table").rename(tmp_path / "aside")
    with pytest.raises(StateError, match="gone"):
        append(appends, 2)
    make(spark, tmp_path / "other")
    (tmp_path / "other").rename(tmp_path / "table")
    with pytest.raises(StateError, match="another one is in its place"):
        append(appends, 3)
    assert RustTable(directory).version() == 0


def test_of_several_writers_each_sees_all_that_came_before(spark: SparkSession, tmp_path: Path) -> None:
    directory = make(spark, tmp_path / "table")
    seen: dict[int, list[str]] = {}

    def write(number: int) -> None:
        appends, own = DirectAppends.to(spark, directory), []

        def meanwhile(commit: CommitFile) -> None:
            own.append(str(commit.note))

        for turn in range(25):
            file = appends.write(pa.table({"n": pa.array([turn], pa.int64())}), {"t": str(number)})
            appends.commit([file], note=f"{number}/{turn}", meanwhile=meanwhile)
            own.append(f"{number}/{turn}")
        seen[number] = own

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rows(spark, directory)) == 100
    history = spark.sql(f"DESCRIBE HISTORY delta.`{directory}`").orderBy("version").select("userMetadata").collect()
    notes = [row.userMetadata for row in history[1:]]
    assert len(notes) == len(set(notes)) == 100
    for own in seen.values():
        assert own == [note for note in notes if note in set(own)]
        first = notes.index(own[0])
        assert own == notes[first : first + len(own)], "some commit was overtaken without being seen"


WRITER = """
import sys
import pyarrow as pa
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_log import TableLog
from share_spark.spark.public_files import LocalFiles

directory = sys.argv[1]
log = TableLog.open(CommitFiles(LocalFiles(), directory))
appends = DirectAppends(directory=directory, log=log)
for number in range(100_000):
    file = appends.write(pa.table({"n": pa.array([number], pa.int64())}), {"t": sys.argv[2]})
    appends.commit([file], meanwhile=lambda _: None)
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """At any moment: what it said it had written is there, and at most one row more."""
    directory, rng = make(spark, tmp_path / "table"), random.Random(1)
    for turn in range(4):
        command = [sys.executable, "-c", WRITER, directory, str(turn)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(rng.uniform(0.05, 0.3))
        writer.send_signal(signal.SIGKILL)
        said = 1 + len([line for line in writer.communicate()[0].splitlines(keepends=True) if line.endswith("\n")])
        found = [n for n, text in rows(spark, directory) if text == str(turn)]
        assert found == list(range(len(found)))
        assert len(found) - said in (0, 1)
