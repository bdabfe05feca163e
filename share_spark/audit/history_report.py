"""The history of a record, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from share_spark.audit.record_events import RecordEvent, RecordHistory
from share_spark.model.texts import printable

_HEADER = ("written at", "event", "count", "member", "locked until", "batch", "epoch", "note", "error")


def history_lines(found: RecordHistory) -> list[str]:
    """Return a table of its events, or that there are none, then how far back the log goes. Times in UTC."""
    title = f"group {found.group_id}: {found.topic}, partition {found.partition}, offset {found.offset}"
    rows = [_HEADER, *map(_cells, found.events)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [_line(row, widths) for row in rows] if found.events else [f"  {nothing_known(found)}"]
    return [title, "", *table, "", how_far_back(found)]


def _cells(event: RecordEvent) -> tuple[str, ...]:
    deadline_ms, written = event.lock_deadline_ms, event.written
    return (
        iso_time(written.written_at_us),
        event.event,
        "" if event.delivery_count is None else str(event.delivery_count),
        event.member_id or "",
        "" if deadline_ms is None else iso_time(deadline_ms * 1_000),
        str(written.batch_id),
        str(written.writer_epoch),
        event.note or "",
        printable(event.error or ""),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return ("  " + "  ".join(map(str.ljust, cells, widths))).rstrip()


def nothing_known(found: RecordHistory) -> str:
    """Return the line for a record without events."""
    if not found.finished:
        return "nothing known: it was not acquired yet"
    if found.whole:
        return "nothing known: it was never acquired, and lies below the start offset now"
    return "nothing known: it lies below the start offset since before the log begins, or was never acquired"


def how_far_back(found: RecordHistory) -> str:
    """Return how far back the log goes that was read."""
    since = f"the log of this share-partition goes back to {iso_time(found.since_us)}"
    if found.is_cut:
        return f"{since}, as far as it was read: `share-spark history` reads older segments"
    return f"{since}, its beginning" if found.whole else f"{since}; older segments are gone (history.retention)"


def iso_time(at_us: int) -> str:
    """Return the time in ISO 8601, UTC, with milliseconds.

    >>> iso_time(1_767_225_600_500_000)
    '2026-01-01T00:00:00.500Z'
    """
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1_000:03}Z"
