"""Topic logs whose records Python workers can read from the log themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from share_spark.engine.ports import OffsetSpan

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession


class ReadRecords(NamedTuple):
    """``records``: offset, and those of the columns timestamp, key, value, headers that were asked for. ``span``: of
    each of them the number of its span, from 0."""

    records: pa.RecordBatch
    span: NDArray[np.int32]


class RecordReader(Protocol):
    """Reads records in a Python worker. Pickled with the task."""

    def read(
        self, spans: Sequence[OffsetSpan], columns: Collection[str], is_stopping: Callable[[], bool]
    ) -> Iterator[ReadRecords]:
        """The records inside ``spans``, which do not overlap; those of a partition ascending. Offsets without a record
        are missing. ``is_stopping``: records that do not come are not waited for any more. Raises TopicError,
        TopicUnreachableError."""
        ...


@runtime_checkable
class TopicLogForWorkers(Protocol):
    """A ``TopicLog`` that Python workers may read."""

    def reader(self, spark: SparkSession, spans: Sequence[OffsetSpan], *, shuffled: bool) -> RecordReader | None:
        """For these spans; None where Spark is to read them. ``shuffled``: Spark would shuffle what it has read. Errors
        as ``TopicLog.read``."""
        ...
