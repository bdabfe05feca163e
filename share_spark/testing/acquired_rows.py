"""The acquired records of a micro-batch, read in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from share_spark.delivery.acquired_records import with_earlier
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import RECORD_COLUMNS, TopicLog
from share_spark.engine.ranges import AcquiredRanges, ascending
from share_spark.engine.record_reader import never_stops
from share_spark.spark.schemas import columns_in
from share_spark.spark.threads import TASK_COLUMN

BATCH_ROWS = 10_000

_COLUMNS = columns_in(f"{RECORD_COLUMNS}, delivery_count int, {TASK_COLUMN} string")


def acquired_batches(
    log: TopicLog, acquired: Sequence[AcquiredSpan], columns: Collection[str], *, ordered: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the acquired records, with these columns and those that tasks need; in order of keys also marks of records
    that hold back their keys (``marked_rows``)."""
    spans = with_earlier(acquired) if ordered else acquired
    wanted = [one._replace(ranges=AcquiredRanges(ascending(one.ranges))) for one in spans]
    reader = log.for_workers(None, wanted, ordered=ordered)
    assert reader is not None, "the log is a table on this machine"
    names = {*columns, "topic", "partition", "offset", "delivery_count", TASK_COLUMN} | ({"key"} if ordered else set())
    schema = pa.schema([column for column in _COLUMNS if column.name in names])
    yield from reader.part(wanted).batches(schema, BATCH_ROWS, never_stops)
