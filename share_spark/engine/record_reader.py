"""Records of a topic log that Python workers read themselves, without Spark: see ``TopicLog.for_workers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from share_spark.engine.delivery_port import AcquiredSpan


class RecordPart(Protocol):
    """The acquired records that one task reads; pickled with the task."""

    def batches(self, schema: pa.Schema, most_rows: int, is_stopping: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Yield exactly the acquired records, the same at each call, in ``schema`` and in batches of up to
        ``most_rows``; those of a topic-partition ascend. Offsets without a record are missing.

        ``schema``: columns of RECORD_COLUMNS, ``delivery_count``, and others, which are null. ``is_stopping``: whether
        to stop waiting for records that do not come. Raises TopicError, TopicUnreachableError, OSError,
        pa.ArrowException.
        """
        ...


def never_stops() -> bool:
    """Return False: nobody will ask to stop."""
    return False


class RecordReader(Protocol):
    """Reads acquired records in Python workers."""

    def part(self, acquired: Sequence[AcquiredSpan]) -> RecordPart:
        """Return what one task reads: some of the acquired records that the reader was made for, ascending."""
        ...


def in_schema(found: pa.RecordBatch, topic: str | None, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema``. ``topic``: of all records, if ``found`` has no such column. Other missing
    columns are null."""
    columns: list[Any] = []
    for wanted in schema:
        if wanted.name in found.schema.names:
            columns.append(found.column(wanted.name).cast(wanted.type))
        elif wanted.name == "topic":
            columns.append(pa.repeat(pa.scalar(topic, pa.string()), found.num_rows))
        else:
            columns.append(pa.nulls(found.num_rows, wanted.type))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)
