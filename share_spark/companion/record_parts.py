"""Records on their way to companions: cut into a part for each, which it reads itself or gets from the driver."""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from share_spark.delivery.acquired_records import acquired_records, with_earlier
from share_spark.delivery.arrow_stream import stream_of
from share_spark.delivery.deliver import unread_error
from share_spark.delivery.reader_input import in_equal_parts, in_parts
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import TopicLog
from share_spark.engine.ranges import FIRST
from share_spark.model.errors import ShareError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLACE = "topic", "partition", "offset"


class RecordsPart(NamedTuple):
    """The part of one companion. ``spans``: what was acquired; ``part`` and ``records`` as in ``HandOver``."""

    spans: Sequence[AcquiredSpan]
    part: bytes | None
    records: bytes | None = None


class RecordParts(NamedTuple):
    """The way of records from a topic log. ``name``: of the handler. ``ordered``: by key; then there is one part."""

    spark: SparkSession
    log: TopicLog
    name: str
    ordered: bool

    def of(self, acquired: Sequence[AcquiredSpan], weights: Sequence[int]) -> list[RecordsPart]:
        """Cut what was acquired by ``weights``; a part may have no spans. Raises TopicError."""
        parts = in_parts(acquired, weights)
        (wanted,) = in_equal_parts(with_earlier(acquired) if self.ordered else acquired, 1)
        reader = self.log.for_workers(self.spark, wanted, ordered=False)
        if reader is None:
            return [
                RecordsPart(spans, None, some) for spans, some in zip(parts, self._read(wanted, parts), strict=True)
            ]
        read = [wanted] if self.ordered else parts
        return [
            RecordsPart(spans, pickle.dumps(reader.part(some), protocol=5))
            for spans, some in zip(parts, read, strict=True)
        ]

    def _read(self, wanted: Sequence[AcquiredSpan], parts: Sequence[Sequence[AcquiredSpan]]) -> list[bytes]:
        """Return the records of each part, which Spark reads."""
        tasks = self.spark.sparkContext.defaultParallelism
        try:
            found = acquired_records(self.spark, self.log, wanted, tasks=tasks, third="delivery_count").toArrow()
        except ShareError:
            raise
        except Exception as fault:
            raise unread_error(self.name, fault) from fault
        return [stream_of(some) for some in cut_at(found, parts)]


def cut_at(records: pa.Table, parts: Sequence[Sequence[AcquiredSpan]]) -> list[pa.Table]:
    """Cut records where ``parts``, which ascend, begin. The first part has those before it as well."""
    records = records.sort_by([(name, "ascending") for name in _PLACE])
    if len(parts) == 1:
        return [records]
    places = list(zip(*(records.column(name).to_pylist() for name in _PLACE), strict=True))
    found, end = [], len(places)
    for spans in reversed(parts[1:]):
        begin = bisect_left(places, (*spans[0].partition, int(spans[0].ranges[0, FIRST])), hi=end) if spans else end
        found.append(records.slice(begin, end - begin))
        end = begin
    return [records.slice(0, end), *reversed(found)]
