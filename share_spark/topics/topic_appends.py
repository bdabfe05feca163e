"""Appends of a few records to a topic table without Spark: files by pyarrow, and one commit that is put only at the
version at which the offsets were chosen. If another commit has that version, the offsets are chosen again.

This is not a blind append, and neither are those of ``topic_producer``: an append by Spark that begins before it and
ends after it fails by Delta's own check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from share_spark.delta.commit_files import CommitFile
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends, MovedError
from share_spark.spark.on_demand import AnySpark
from share_spark.topics.topic_registry import AppendNote

_HEADER_FIELDS: list[pa.Field[pa.DataType]] = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.struct(_HEADER_FIELDS))),
]
_SCHEMA = pa.schema(_FIELDS)
"""The columns of a topic table without its partition columns."""


class NumberedMessage(NamedTuple):
    """A record and its place: ``number`` counts from 0 in its partition."""

    partition: int
    number: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


@dataclass(slots=True)
class DirectTopicAppends:
    """Direct appends to one topic table."""

    appends: DirectAppends

    @classmethod
    def to(cls, spark: AnySpark, directory: str) -> DirectTopicAppends:
        """Return the appends to the table in ``directory``. Raises UnknownTableError: only Spark can write to it."""
        return cls(DirectAppends.to(spark, directory))

    def refresh(self) -> int:
        """Return the newest version of the table, at which the offsets may be chosen."""
        self.appends.log.refresh()
        return self.appends.log.version

    def append(
        self, rows: Sequence[NumberedMessage], bases: Mapping[int, int], note: AppendNote, rows_per_file: int
    ) -> None:
        """Append in one commit after the version of the last ``refresh``. ``bases``: the first offset by partition.

        Raises MovedError: another commit is there, and nothing was written. Also NotImplementedError, and the errors of
        the storage; then it may have been written after all."""
        files = [
            self._file(note.topic, partition, some, bases[partition])
            for partition, some in _portions(rows, rows_per_file)
        ]
        self.appends.commit(files, note=note.to_json(), meanwhile=_give_way, blind=False)

    def _file(self, topic: str, partition: int, rows: Sequence[NumberedMessage], base: int) -> DataFile:
        columns: list[Any] = [
            [base + row.number for row in rows],
            [row.timestamp for row in rows],
            [row.key for row in rows],
            [row.value for row in rows],
            [row.headers and [dict(zip(("key", "value"), pair, strict=True)) for pair in row.headers] for row in rows],
        ]
        table = pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)], schema=_SCHEMA
        )
        values = {"topic": topic, "partition": str(partition)}
        return self.appends.write(table, values, indexed=("offset", "timestamp"))


def _give_way(_commit: CommitFile | None) -> None:
    raise MovedError("another commit came first")


def _portions(rows: Sequence[NumberedMessage], size: int) -> Iterator[tuple[int, list[NumberedMessage]]]:
    """Yield the records of each partition, in portions for files that one task reads well."""
    by_partition: dict[int, list[NumberedMessage]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    for partition, some in by_partition.items():
        for begin in range(0, len(some), size):
            yield partition, some[begin : begin + size]
