"""A sink table and engines that write to it, beside a state of a group that is no more than a journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructField, StructType

from share_spark.delivery.frame_files import written_files
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.journal import Journal
from share_spark.delta.location import Location
from share_spark.delta.table_layout import FilePlace
from share_spark.delta.table_log import TableLog
from share_spark.model.ids import BatchStamp
from share_spark.output.sink import DeltaSink
from share_spark.output.sink_journal import SinkWriter
from tests.support.claims import claim_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": False, "metadata": {}},
            {"name": "what", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)

PLAIN = StructType([StructField(column.name, column.dataType) for column in SCHEMA])


@dataclass(kw_only=True)
class SinkPlace:
    """A sink table and the state of a group beside it; ``engine`` is a new run of the group. ``schema``: of the output.
    ``in_files``: rows come in files that workers have written, for which the schema has to be PLAIN."""

    spark: SparkSession
    state: Path
    table: Location
    group_id: str = "billing/eu"
    epochs: int = 0
    schema: StructType = SCHEMA
    in_files: bool = False

    def engine(self, table: Location | None = None) -> DeltaSink:
        return DeltaSink(spark=self.spark, table=table or self.table)

    def writer(self, epoch: int, group_id: str | None = None) -> SinkWriter:
        """A new run of the group, which it has claimed with ``epoch``."""
        return SinkWriter.of(self.spark, claim_of(group_id or self.group_id, str(self.state), epoch=epoch))

    def claimed(
        self, table: Location | None = None, counted: BatchStamp | None = None
    ) -> tuple[DeltaSink, int, bytes | None]:
        """(sink, its epoch, what its claim returned). ``counted``: the last micro-batch that counts; what the journal
        does not know has been absorbed if it is left out."""
        self.epochs += 1
        sink = self.engine(table)
        sink.prepare(self.schema)
        return sink, self.epochs, sink.claim(self.writer(self.epochs), counted or BatchStamp(self.epochs, -1))

    def claims_disturbed(
        self,
        at: str,
        disturb: Callable[[], None],
        epoch: int,
        counted: BatchStamp,
        table: Location | None = None,
    ) -> bytes | None:
        """A new run claims, to which ``disturb`` happens once, right after its journal has done ``at``."""
        sink = self.engine(table)
        journal = Disturbed(self.spark, str(self.state), "output", self.group_id)
        journal.at, journal.disturb = at, disturb
        sink.prepare(self.schema)
        return sink.claim(replace(self.writer(epoch), journal=journal), counted)

    def rows(self, *ids: int) -> DataFrame | Sequence[DataFile]:
        """As a delivery gives them."""
        frame = self.frame(*ids)
        if not self.in_files:
            return frame
        directory = self.table.directory(self.spark)
        layout = TableLog.open(CommitFiles.at(self.spark, directory)).layout
        return written_files(frame, FilePlace(directory, layout))

    def frame(self, *ids: int) -> DataFrame:
        """Every column may be null."""
        return self.spark.createDataFrame([(number, "paid") for number in ids], "id bigint, what string")

    def written(self, table: Location | None = None) -> list[Any]:
        return sorted(row.id for row in (table or self.table).load(self.spark).select("id").collect())

    def journal(self) -> list[tuple[int, int]]:
        return [tuple(stamp) for stamp in self.writer(0).journal.stamps()]

    def commit_lines(self, version: int) -> list[str]:
        return (self.log() / f"{version:020d}.json").read_text().splitlines()

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in self.log().glob("*.json"))

    def clean_log(self) -> None:
        """A checkpoint of now, and no commit file before it."""
        delta_log: Any = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
        delta_log.clearCache()
        delta_log.forTable(self.spark._jsparkSession, str(self.log().parent)).checkpoint()
        for version in self.versions()[:-1]:
            (self.log() / f"{version:020d}.json").unlink()
        delta_log.clearCache()

    def log(self) -> Path:
        return Path(self.table.directory(self.spark).removeprefix("file:")) / "_delta_log"


def made_place(kind: str, spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> SinkPlace:
    """``kind``: ``Spark`` (its writer), ``files`` (workers write files) or ``driver`` (it puts them)."""
    table = Location(path=str(directory / "sink"))
    if kind == "driver":
        monkeypatch.setattr(DirectAppends, "place_for_workers", None)
        table.create(spark, "id bigint, what string", partitioned_by=["what"])
    schema = SCHEMA if kind == "Spark" else PLAIN
    return SinkPlace(spark=spark, state=directory / "state", table=table, schema=schema, in_files=kind == "files")


class Disturbed(Journal):
    """Something happens once, in the middle of what an engine does with its journal."""

    at: str
    disturb: Callable[[], None]

    def put(self, stamp: BatchStamp, content: bytes) -> None:
        super().put(stamp, content)
        self._happen("put")

    def stamps(self) -> list[BatchStamp]:
        found = super().stamps()
        self._happen("stamps")
        return found

    def read(self, stamp: BatchStamp) -> bytes | None:
        found = super().read(stamp)
        self._happen("read")
        return found

    def remove(self, stamp: BatchStamp) -> None:
        super().remove(stamp)
        self._happen("remove")

    def _happen(self, what: str) -> None:
        if what == self.at:
            self.at = ""
            self.disturb()
