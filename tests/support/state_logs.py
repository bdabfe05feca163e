"""State logs made without Spark, commit by commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.table_log import TableLog
from share_spark.engine.attempts import EndedAttempt
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import InFlightBatch, ShareRecord, ShareSnapshot, ShareUpdate
from share_spark.spark.public_files import LocalFiles
from share_spark.state.commits import CommitNote
from share_spark.state.log_rows import LOG_SCHEMA, claim_table, record_table
from share_spark.state.record_rows import CLAIM, record_array
from share_spark.state.row_values import share_values
from share_spark.state.tables import LOG_TABLE
from tests.support.group_details import run

_COLUMNS = [StructField("group_id", StringType()), StructField("segment", IntegerType())]
_PROPERTIES = {"share_spark.format.version": "2", "share_spark.table": LOG_TABLE}

BEGAN_MS = 1_763_820_000_000
TOPIC = "orders"


def snapshot(
    start: int, *runs: InFlightBatch, partition: int = 0, topic: str = TOPIC, group_id: str = "billing"
) -> ShareSnapshot:
    """Of a share-partition of the topic."""
    key = SharePartitionKey(group_id, f"id of {topic}", partition)
    return ShareSnapshot(key=key, snapshot_epoch=0, state_epoch=0, leader_epoch=0, start_offset=start, batches=runs)


def update(start: int, *runs: InFlightBatch, partition: int = 0, topic: str = TOPIC) -> ShareUpdate:
    """``start`` -1: it has not moved."""
    key = SharePartitionKey("billing", f"id of {topic}", partition)
    return ShareUpdate(key=key, snapshot_epoch=0, leader_epoch=0, start_offset=start, batches=runs)


class StateLog:
    """Of ``location``. Each commit is ``seconds`` after the one before, by its time and by its writer's clock.
    ``notes_rows``: as where clients may come, updates are in the notes of their commits."""

    notes_rows: ClassVar[bool] = False

    def __init__(self, location: Path, group_id: str = "billing") -> None:
        self.location, self.group_id = str(location), group_id
        self.directory = f"{location}/{LOG_TABLE}"
        self.at_ms, self.batch_id, self.epoch, self.segment = BEGAN_MS, -1, 0, -1
        files = CommitFiles(LocalFiles(), self.directory)
        if not files.is_table():
            columns = StructType([*_COLUMNS, *from_arrow_schema(LOG_SCHEMA)])
            with self._clock():
                assert create_table(
                    files, columns.json(), partitioned_by=("group_id", "segment"), properties=_PROPERTIES
                )

    def claim(self) -> None:
        """Another engine."""
        self.epoch, self.segment = self.epoch + 1, self.segment + 1
        note = self._note(CLAIM, -1)
        self._append(claim_table(note), note)

    def records(self, *records: ShareRecord, ended: Sequence[Sequence[EndedAttempt]] = (), seconds: float = 1) -> int:
        """A micro-batch. A snapshot of all begins a segment. Returns the version of its commit."""
        self.batch_id, self.at_ms = self.batch_id + 1, self.at_ms + round(seconds * 1_000)
        note = self._note("records", self.batch_id)
        named = [(record.key.topic_id.removeprefix("id of "), record) for record in records]
        if self.notes_rows and not any(isinstance(record, ShareSnapshot) for record in records):
            return self._note_rows(named, ended, note)
        return self._append(record_table(record_array(named, ended or None), note, None), note)

    def _note_rows(
        self, named: Sequence[tuple[str, ShareRecord]], ended: Sequence[Sequence[EndedAttempt]], note: CommitNote
    ) -> int:
        rows = [share_values(*one, some) for one, some in zip(named, ended or [()] * len(named), strict=True)]
        stamps = {"query_id": None, "written_at": round(self._written_at_s * 1_000_000)}
        with self._clock():
            return self._appends.commit([], note=note.with_rows(rows, stamps))

    def delete(self) -> None:
        """As the share coordinator deletes a group."""
        self.claim()
        note = self._note("records", -1)
        self._append(claim_table(note), note)

    def _note(self, kind: str, batch_id: int) -> CommitNote:
        return CommitNote(self.group_id, kind, self.epoch, f"run{self.epoch}", self.segment, batch_id, self.at_ms)

    @property
    def _written_at_s(self) -> float:
        return (self.at_ms + 20) / 1_000

    def _clock(self) -> Any:
        """Of the writer of a commit."""
        return mock.patch("share_spark.delta.commit_files.time", **{"time.return_value": self._written_at_s})

    @property
    def _appends(self) -> DirectAppends:
        log = TableLog.open(CommitFiles(LocalFiles(), self.directory))
        return DirectAppends(directory=self.directory, log=log)

    def _append(self, rows: pa.Table, note: CommitNote) -> int:
        appends = self._appends
        written_at = datetime.fromtimestamp(self._written_at_s, UTC)
        times = pa.array([written_at] * rows.num_rows, pa.timestamp("us", "UTC"))
        rows = rows.set_column(rows.schema.get_field_index("written_at"), "written_at", times)
        values = {"group_id": self.group_id, "segment": str(self.segment)}
        with self._clock():
            return appends.commit([appends.write(rows, values)], note=note.to_json())


def log_of_ten_acquired(directory: Path) -> StateLog:
    """In ``directory``: the group has acquired records 0 to 9 of a topic, and no more."""
    log = StateLog(directory / "state")
    log.claim()
    log.records(snapshot(0, run("Q", 0, 9)))
    return log
