"""Spans of offsets: their arithmetic, and the choice of spans to read for acquired ranges. Pure.

A read of Spark's Kafka source takes one span per partition and costs some 0.07 s before its first record, as much as
reading tens of thousands of records that are not needed. So neighbouring ranges are read as one covering span. A span
is cut only where the gap costs more than a further read, and the number of reads is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import NumberedSpan, OffsetSpan
from share_spark.engine.ranges import FIRST, LAST, ascending

READ_COST_OFFSETS = 50_000
"""The size of a gap from which a further read costs less than reading through."""

MAX_READS = 8
"""The most spans per partition and micro-batch: only the widest gaps are cut, and the rest is read through."""


def covering_spans(acquired: Sequence[AcquiredSpan | NumberedSpan]) -> list[OffsetSpan]:
    """Return spans that cover everything acquired, at most MAX_READS per partition, ascending within a partition."""
    return [span for one in acquired for span in _cover(one)]


def _cover(acquired: AcquiredSpan | NumberedSpan) -> list[OffsetSpan]:
    topic, partition = acquired.partition
    if len(acquired.ranges) <= 1:  # the frequent case where there are thousands of share-partitions
        return [OffsetSpan(topic, partition, first, last) for first, last, _ in acquired.ranges.tolist()]
    ranges = ascending(acquired.ranges)
    # acquired   [---]   [--]                         [----]  [-]
    # gaps            ^^^    ^^^^^^^^^^^^^^^^^^^^^^^^^      ^^          between neighbours
    # read       [----------]                         [---------]       cut where the gap is worth a further read
    gaps = ranges[1:, FIRST] - ranges[:-1, LAST] - 1
    widest = np.argsort(gaps, kind="stable")[::-1][: MAX_READS - 1]
    cuts = np.sort(widest[gaps[widest] >= READ_COST_OFFSETS])
    firsts = np.concatenate([ranges[:1, FIRST], ranges[cuts + 1, FIRST]])
    lasts = np.concatenate([ranges[cuts, LAST], ranges[-1:, LAST]])
    return [OffsetSpan(topic, partition, int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def merged(spans: Iterable[OffsetSpan]) -> list[OffsetSpan]:
    """Return the same offsets as ascending spans that neither overlap nor touch; empty ones dropped.

    >>> merged([OffsetSpan("t", 0, 5, 9), OffsetSpan("t", 0, 0, 4), OffsetSpan("t", 0, 12, 11)])
    [OffsetSpan(topic='t', partition=0, first_offset=0, last_offset=9)]
    """
    result: list[OffsetSpan] = []
    for span in sorted(span for span in spans if span.last_offset >= span.first_offset):
        before = result[-1] if result else None
        if before is None or before[:2] != span[:2] or before.last_offset + 1 < span.first_offset:
            result.append(span)
        else:
            result[-1] = before._replace(last_offset=max(before.last_offset, span.last_offset))
    return result


def records_in(spans: Iterable[OffsetSpan]) -> int:
    """Return the number of offsets in spans that do not overlap; only the log knows how many of them hold a record."""
    return sum(span.last_offset - span.first_offset + 1 for span in spans)
