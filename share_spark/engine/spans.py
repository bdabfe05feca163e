"""Arithmetic on spans of offsets, shared by the topic logs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from share_spark.engine.ports import OffsetSpan


def merged(spans: Iterable[OffsetSpan]) -> list[OffsetSpan]:
    """The same offsets as ascending spans that neither overlap nor touch; empty ones dropped.

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
    """Offsets in spans that do not overlap; how many of them hold a record only the log knows."""
    return sum(span.last_offset - span.first_offset + 1 for span in spans)
