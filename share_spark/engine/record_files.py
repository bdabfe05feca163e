"""Topic logs whose records lie in Parquet files that Python workers can open themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from share_spark.engine.ports import AcquiredSpan
from share_spark.engine.ranges import FIRST, LAST, AcquiredRanges, ascending
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

    def files(self, acquired: Sequence[AcquiredSpan]) -> Mapping[TopicPartition, Sequence[RecordFile]] | None:
        """Those that hold the acquired records, ascending; None where Spark has to read them. Errors as
        ``TopicLog.read``."""
        ...


def that_hold(files: Sequence[RecordFile], ranges: AcquiredRanges) -> tuple[RecordFile, ...]:
    """Those of ``files`` that may hold records of these ranges, which are disjoint."""
    if len(ranges) == 1:  # the frequent case where there are thousands of share-partitions
        first, last, _ = ranges[0].tolist()
        return tuple(file for file in files if file.first_offset <= last and first <= file.last_offset)
    in_order = ascending(ranges)
    # The first range that does not end before the file begins.
    at = np.searchsorted(in_order[:, LAST], [file.first_offset for file in files])
    begins = np.append(in_order[:, FIRST], np.iinfo(np.int64).max)[at].tolist()
    return tuple(file for file, begin in zip(files, begins, strict=True) if begin <= file.last_offset)
