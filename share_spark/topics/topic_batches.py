"""Records of an embedded topic as record batches, read from its files without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from share_spark.engine.batch_reader import BATCH_RECORDS, RecordBatch
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import RECORD_COLUMNS
from share_spark.engine.ranges import AcquiredRanges
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from share_spark.spark.schemas import columns_in
from share_spark.topics.batch_encoder import encode_batches
from share_spark.topics.topic_table import EmbeddedTopicLog

_ROWS = 10_000
"""The rows that are taken from the files at a time."""

_SCHEMA = pa.schema([*columns_in(RECORD_COLUMNS), pa.field("delivery_count", pa.int32())])


@dataclass(frozen=True, slots=True)
class TopicBatchReader:
    """A BatchReader of an embedded topic log."""

    log: EmbeddedTopicLog

    def read(
        self, at: TopicPartition, offset: int, most_bytes: int, batch_records: int = BATCH_RECORDS
    ) -> Sequence[RecordBatch]:
        """See ``BatchReader``."""
        ends = self.log.log_ends(at.topic).get(at.partition)
        first = max(offset, ends.log_start_offset) if ends is not None else 0
        if ends is None or first >= ends.end_offset:
            return ()
        spans = [AcquiredSpan(at, AcquiredRanges(np.array([[first, ends.end_offset - 1, 1]], np.int64)))]
        reader = self.log.for_workers(None, spans, ordered=False)
        if reader is None:
            raise TopicError(f"{self.log} has files of {at} that only Spark can read")
        found, left = list[RecordBatch](), most_bytes
        try:
            for rows in reader.part(spans).batches(_SCHEMA, _ROWS, lambda: False):
                wanted = -(-left * rows.num_rows // rows.nbytes)
                found += encode_batches(rows.slice(0, wanted), most_records=batch_records)
                left -= rows.nbytes
                if left <= 0:
                    break
        except (OSError, pa.ArrowException) as fault:  # a file may go while it is read: it was compacted
            raise TopicUnreachableError(f"{at} cannot be read: {fault}", what="topic table") from fault
        return found
