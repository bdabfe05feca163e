"""The table, all that is done to it, and who judges it."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from share_spark.delta.commit_files import CommitFiles, commit_text
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.log_clean_up import remove_old_versions
from share_spark.delta.native_changes import write_natively
from share_spark.delta.noted_rows import note_with_rows
from share_spark.delta.own_checkpoints import write_own_checkpoint
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_maintenance import KeptTable
from share_spark.delta.table_rows import Change, TableRows
from share_spark.spark.delta_log import clean_log_privately, newest
from share_spark.spark.errors import JVM_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_S = 86_400
PROPERTIES = (
    {"delta.enableDeletionVectors": "true"},
    {"delta.checkpointPolicy": "v2"},
    {"delta.checkpointInterval": "3"},
    {"delta.enableChangeDataFeed": "true"},
    {"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpoint.writeStatsAsJson": "false"},
)


class WrongTableError(AssertionError):
    """The table is not what it has to be."""


@dataclass
class Writer:
    """One of ours, with a transaction of its own; it may be quiet for long."""

    name: str
    number: int = 0
    appends: DirectAppends | None = None
    last: list[int] = field(default_factory=list)


class Table:
    """``rows``: what has to be in its files. ``restorable``: the same at versions of before. ``in_notes``: what has to
    be in notes of commits alone."""

    def __init__(self, spark: SparkSession, directory: Path, rng: random.Random) -> None:
        self.spark, self.path, self.rng = spark, directory, rng
        self.directory, self.log = str(directory), directory / "_delta_log"
        self.rows: Counter[int] = Counter()
        self.in_notes: Counter[int] = Counter()
        self.restorable: dict[int, Counter[int]] = {}
        self.numbers = itertools.count(1)
        self.writers = [Writer(f"app {number}") for number in range(3)]
        chosen: dict[str, str] = {}
        for properties in rng.sample(PROPERTIES, rng.randint(0, 2)):
            chosen |= properties
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in chosen.items())
        clause = f" TBLPROPERTIES ({listed})" if listed else ""
        spark.sql(f"CREATE TABLE {self.sql} (n BIGINT, t STRING) USING DELTA{clause}")

    @property
    def sql(self) -> str:
        return f"delta.`{self.directory}`"

    @property
    def files(self) -> CommitFiles:
        return CommitFiles.at(self.spark, self.directory)

    # ------------------------------------------------------------------------------------------------- ours

    def ours_append(self) -> None:
        self._append(self.rng.choice(self.writers))

    def _append(self, writer: Writer) -> None:
        """As a sink or the dead letters do it: directly, or by Spark where only that can."""
        numbers = self._fresh()
        writer.number += 1
        try:
            writer.appends = writer.appends or DirectAppends.of_files(self.spark, self.directory)
            file = writer.appends.write(_ours(numbers), {})
            writer.appends.commit([file], transactions={writer.name: writer.number})
            writer.last = numbers
        except UnknownTableError:
            writer.appends, writer.last = None, []
            frame = self.spark.createDataFrame([(number, "ours") for number in numbers], "n bigint, t string")
            options = {"txnAppId": writer.name, "txnVersion": str(writer.number)}
            frame.write.format("delta").mode("append").options(**options).save(self.directory)
        self.rows.update(numbers)

    def ours_overwritten(self) -> None:
        """Delta's writer has looked before our commit was there, and renames over it; we notice before the next one.
        That is a matter of moments: nobody has made a checkpoint of our commit meanwhile."""
        newest_version = self.files.latest_version()
        if self.files.checkpoint()[0] == newest_version:
            return
        for writer in self.writers:
            own = writer.appends.log.own if writer.appends is not None else None
            if writer.last and own is not None and own.version == newest_version:
                self._overwrite(own.version)
                self._notice(writer)
                return

    def _overwrite(self, version: int) -> None:
        other, number = DirectAppends.of_files(self.spark, self.directory), next(self.numbers)
        file = other.write(_ours([number]), {})
        aside = self.log / "aside"
        aside.write_text(commit_text("WRITE", {"mode": "Append"}, [file.to_action(1)], blind=True))
        aside.rename(self.log / f"{version:020d}.json")
        self._forget_snapshots()
        self.restorable.pop(version, None)  # that version has the other's rows now, and not ours
        self.rows[number] += 1

    def _notice(self, writer: Writer) -> None:
        if self.rng.random() < 0.5:
            self._append(writer)
        elif writer.appends is not None:
            writer.appends.make_good()

    def ours_note(self) -> None:
        """As clients of a gateway make commits: with rows in their note, where we can append."""
        writer, numbers = self.rng.choice(self.writers), self._fresh()
        with suppress(UnknownTableError):
            writer.appends = writer.appends or DirectAppends.of_files(self.spark, self.directory)
            text = note_with_rows({"t": "noted"}, [{"n": number} for number in numbers])
            writer.appends.commit([], note=text)
            writer.last = numbers
            self.in_notes.update(numbers)

    def ours_file(self) -> None:
        """As an engine does each second; by Spark where only that can."""
        KeptTable(self.spark, Location(path=self.directory)).file_noted_rows()
        self.rows += self.in_notes
        self.in_notes = Counter()

    def ours_change(self) -> None:
        """Rows deleted or written anew, as letters are purged and marked."""
        wanted = self._some()
        try:
            rows = TableRows(self.directory, TableLog.open(self.files, keeps_files=True))
            is_deleted = self.rng.random() < 0.5
            rows.change("DELETE" if is_deleted else "UPDATE", _judge(wanted, is_deleted=is_deleted))
        except UnknownTableError:
            return
        if is_deleted:
            self._forget(wanted)

    def ours_checkpoint(self) -> None:
        write_natively(TableLog.open(self.files, keeps_files=True), cleans=True)

    def ours_own_checkpoint(self) -> None:
        write_own_checkpoint(self.files)

    def ours_cleans_up(self) -> None:
        """Months later: all versions go but the newest checkpoint and those after it, with the files that left them."""
        self._move_clock()
        with suppress(UnknownTableError):
            remove_old_versions(TableLog.open(self.files, keeps_files=True), int(time.time() * 1_000) - DAY_S)

    # ------------------------------------------------------------------------------------------------- others

    def spark_append(self) -> None:
        numbers = self._fresh()
        frame = self.spark.createDataFrame([(number, "spark") for number in numbers], "n bigint, t string")
        frame.write.format("delta").mode("append").save(self.directory)
        self.rows.update(numbers)

    def spark_delete(self) -> None:
        wanted = self._some()
        self.spark.sql(f"DELETE FROM {self.sql} WHERE n IN ({', '.join(map(str, wanted))})")
        self._forget(wanted)

    def spark_optimize(self) -> None:
        self.spark.sql(f"OPTIMIZE {self.sql}")

    def spark_vacuum(self) -> None:
        self.spark.sql(f"VACUUM {self.sql} RETAIN 1000 HOURS")

    def spark_restore(self) -> None:
        readable = self.files.readable_versions()
        choice = [version for version in self.restorable if version in readable]
        if choice:
            version = self.rng.choice(choice)
            self.spark.sql(f"RESTORE TABLE {self.sql} TO VERSION AS OF {version}")
            self.rows, self.in_notes = Counter(self.restorable[version]), Counter()

    def spark_alter(self) -> None:
        change = self.rng.choice(
            [
                f"ADD COLUMN (extra_{next(self.numbers)} STRING)",
                "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
                "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
                "SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')",
                "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
                "SET TBLPROPERTIES ('team' = 'theirs')",
                "ADD CONSTRAINT positive CHECK (n > 0)",
                "DROP CONSTRAINT IF EXISTS positive",
            ]
        )
        try:
            self.spark.sql(f"ALTER TABLE {self.sql} {change}")
        except JVM_ERRORS as fault:
            if "already exists" not in str(fault):
                raise

    def rust_append(self) -> None:
        numbers = self._fresh()
        if self._by_rust(lambda: write_deltalake(self.directory, _ours(numbers), mode="append", schema_mode="merge")):
            self.rows.update(numbers)

    def rust_delete(self) -> None:
        wanted = self._some()
        if self._by_rust(lambda: DeltaTable(self.directory).delete(f"n IN ({', '.join(map(str, wanted))})")):
            self._forget(wanted)

    def rust_optimize(self) -> None:
        self._by_rust(lambda: DeltaTable(self.directory).optimize.compact())

    def spark_cleans_up(self) -> None:
        """Months later: a checkpoint, and all commits go that nobody needs, whoever has not seen them yet."""
        self.ours_file()  # Delta does not know that rows are there
        self._move_clock()
        clean_log_privately(self.spark, self.directory, has_checkpoint=False, retention_ms=1)

    def rust_cleans_up(self) -> None:
        """By a checkpoint that is as old as the commits."""
        self.ours_file()
        if self._by_rust(lambda: DeltaTable(self.directory).create_checkpoint()):
            self._move_clock()
            self._by_rust(lambda: DeltaTable(self.directory).cleanup_metadata())

    def _move_clock(self) -> None:
        for path in self.log.rglob("*"):
            at = path.stat().st_mtime - 200 * DAY_S
            os.utime(path, (at, at))

    def _by_rust(self, change: Callable[[], object]) -> bool:
        """delta-rs refuses tables that it does not know how to write."""
        try:
            change()
        except (DeltaError, NotImplementedError):
            return False
        return True

    # ------------------------------------------------------------------------------------------------- model

    def _fresh(self) -> list[int]:
        return [next(self.numbers) for _ in range(self.rng.randint(1, 3))]

    def _some(self) -> list[int]:
        known = sorted(self.rows)
        return self.rng.sample(known, min(len(known), 2)) or [0]

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.rows.pop(number, None)

    def noted(self) -> None:
        """A step is over."""
        self.restorable[self.files.latest_version()] = Counter(self.rows)

    def judge(self) -> None:
        """Raises WrongTableError: a reader finds other rows, or our view of the table is not Spark's."""
        self._forget_snapshots()
        by_spark = Counter(row.n for row in self.spark.read.format("delta").load(self.directory).select("n").collect())
        log = TableLog.open(self.files, keeps_files=True)
        found = {"Spark": by_spark, "delta-rs": self._by_delta_rs(), "ours": self._by_us(log)}
        for reader, rows in found.items():
            if rows is not None and rows != self.rows:
                raise WrongTableError(f"{reader}: too many {rows - self.rows}, missing {self.rows - rows}")
        noted = Counter(row["n"] for one in log.counting_notes() for row in one.rows)
        if noted != self.in_notes:
            raise WrongTableError(f"notes: too many {noted - self.in_notes}, missing {self.in_notes - noted}")
        snapshot = newest(self.spark, self.directory)
        numbers = {writer.name: writer.number for writer in self.writers if writer.number}
        if (log.version, len(log.active)) != (int(snapshot.version()), int(snapshot.numOfFiles())):
            raise WrongTableError(
                f"version {log.version} with {len(log.active)} files is not Spark's {snapshot.version()}"
            )
        if {name: log.transactions.get(name) for name in numbers} != numbers:
            raise WrongTableError(f"transactions are {log.transactions}, not {numbers}")

    def _forget_snapshots(self) -> None:
        """Delta would not look at a version again that it has read."""
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    def _by_delta_rs(self) -> Counter[int] | None:
        try:
            table = DeltaTable(self.directory)
            found: Any = QueryBuilder().register("rows", table).execute("SELECT n FROM rows").read_all()
        except DeltaError:
            return None
        return Counter(pa.table(found)["n"].to_pylist())

    def _by_us(self, log: TableLog) -> Counter[int]:
        rows = TableRows(self.directory, log)
        return Counter(number for file in rows.read(["n"]) for number in file.rows["n"].to_pylist())


def _ours(numbers: Sequence[int]) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "t": ["ours"] * len(numbers)})


def _judge(wanted: Sequence[int], *, is_deleted: bool) -> Callable[[pa.Table], Change]:
    def judge(rows: pa.Table) -> Change:
        chosen = pc.is_in(rows.column("n"), pa.array(wanted, pa.int64()))
        changed = pc.sum(chosen).as_py() or 0
        return Change(rows.filter(pc.invert(chosen)) if is_deleted else rows, changed)

    return judge


STEPS: dict[Callable[[Table], None], int] = {
    Table.ours_append: 8,
    Table.ours_note: 6,
    Table.ours_file: 3,
    Table.ours_overwritten: 2,
    Table.ours_change: 2,
    Table.ours_checkpoint: 1,
    Table.ours_own_checkpoint: 1,
    Table.ours_cleans_up: 2,
    Table.spark_append: 2,
    Table.spark_delete: 2,
    Table.spark_optimize: 1,
    Table.spark_vacuum: 1,
    Table.spark_restore: 1,
    Table.spark_alter: 2,
    Table.rust_append: 2,
    Table.rust_delete: 1,
    Table.rust_optimize: 1,
    Table.spark_cleans_up: 2,
    Table.rust_cleans_up: 2,
}
"""What may happen, and how often."""


def play(spark: SparkSession, directory: Path, seed: int, steps: int) -> str | None:
    """Play one seed. Returns what went wrong, with the steps that led there; None if all is right."""
    rng = random.Random(seed)
    table, done = Table(spark, directory, rng), list[str]()
    table.noted()
    began = time.monotonic()
    try:
        for step in rng.choices(list(STEPS), list(STEPS.values()), k=steps):
            done.append(step.__name__)
            step(table)
            table.noted()
            if rng.random() < 0.3:
                table.judge()
        table.judge()
    except Exception as fault:  # noqa: BLE001 - whatever is raised is what went wrong
        spent = f"{time.monotonic() - began:.0f} s"
        return f"seed {seed}, after {len(done)} steps, {spent}: {type(fault).__name__}: {fault}\n  {' '.join(done)}"
    return None
