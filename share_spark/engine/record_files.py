"""Topic logs whose records lie in Parquet files that Python workers can open themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from share_spark.engine.ports import OffsetSpan
from share_spark.model.ids import TopicPartition


class RecordFile(NamedTuple):
    """A Parquet file that has the columns of RECORD_COLUMNS but topic and partition, and records of one partition: what
    it has from ``first_offset`` to ``last_offset`` are records. ``path``: on a file system."""

    path: str
    partition: TopicPartition
    first_offset: int
    last_offset: int


@runtime_checkable
class TopicLogInFiles(Protocol):
    """A ``TopicLog`` that may know the files of its records."""

    def files(self, spans: Sequence[OffsetSpan]) -> Sequence[RecordFile] | None:
        """Those with the records inside the spans; None where Spark has to read them. Errors as ``TopicLog.read``."""
        ...
