"""The history of one record, from the rows of the state log that contain it, as values and as lines of text. Pure.

A row has the state of a record (``acquired``, ``state_batches``, the start offset) and, where history is kept, the
reason (``ended``). A snapshot repeats earlier rows, so only a change is an event. Where history is not kept, only the
state is reported, with a note that its reason is missing.

A snapshot whose window has reached the record's offset, and that has nothing about it, shows that the log was
truncated: the record is gone, and what is acquired at its offset later is another one, whose count begins again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from share_spark.model.errors import no_such_group, no_such_partition, no_such_topic
from share_spark.model.ids import BatchStamp
from share_spark.model.records import DeliveryState
from share_spark.model.texts import printable

ACQUIRED, AVAILABLE, FINISHED = "acquired", "available", "finished"
"""The events besides the outcomes of attempts. ``finished``: acknowledged or archived, the log does not say which."""

TRUNCATED = "truncated"
GONE = "gone"
"""``TRUNCATED``: the event and outcome of a record that the log has lost. ``GONE``: the state of such a record."""

REASON_NOT_KEPT = "reason not kept"
EARLIER = "earlier than the log"
NOT_COUNTED = "attempt not counted"
LOST_BY_LOG = "the log has lost this record; what follows is another one at the same offset"
"""The notes. ``EARLIER``: the state when the log begins. ``NOT_COUNTED``: a clean stop gave it back unhandled."""

_HEADER = ("written at", "event", "count", "member", "locked until", "batch", "epoch", "note", "error")
"""The columns of the table of events."""


class Life(NamedTuple):
    """The distinction between states of one key, if it was deleted or initialized again. Within one, snapshot epochs
    only grow."""

    topic_id: str
    state_epoch: int
    snapshot_epoch: int

    def goes_on_in(self, other: Life) -> bool:
        return self[:2] == other[:2] and self.snapshot_epoch < other.snapshot_epoch


class AttemptEnd(NamedTuple):
    """An attempt that ended with a row. ``delivery_count``: the count after it. ``error``: the reason, if it is
    kept."""

    delivery_count: int
    outcome: str
    error: str | None = None


class RecordState(NamedTuple):
    """The state of the record in a row. ``name``: ``acquired``, ``available``, ``acknowledged``, ``archived``;
    ``finished``: it lies below the start offset; ``gone``: a snapshot omits it, though it lies at or above the start
    offset. ``member_id`` only while acquired; ``lock_deadline_ms`` of one that is available: it is delayed."""

    name: str
    delivery_count: int | None = None
    member_id: str | None = None
    lock_deadline_ms: int | None = None


class Written(NamedTuple):
    """The writer of a row and its time (microseconds since the epoch)."""

    writer_epoch: int
    batch_id: int
    run_id: str
    written_at_us: int

    @property
    def stamp(self) -> BatchStamp:
        """The stamp of its micro-batch."""
        return BatchStamp(self.writer_epoch, self.batch_id)


class RecordRow(NamedTuple):
    """The part of a log row about one record. ``state`` None: the row has only what has ``ended``. ``life``: that of
    the share-partition's state."""

    written: Written
    ended: Sequence[AttemptEnd]
    state: RecordState | None
    life: Life


class RecordEvent(NamedTuple):
    """One event. ``member_id``: the member that held the record, if known; ``lock_deadline_ms``: until when it holds
    the record, or until when nobody may, as it is delayed; units as in the names. ``error``: why an attempt has ended
    so, by its handler, or by what is known of a crash."""

    event: str
    delivery_count: int | None
    member_id: str | None
    lock_deadline_ms: int | None
    note: str | None
    written: Written
    error: str | None = None


class LogExtent(NamedTuple):
    """The kept part of a group's log. ``first_segment``: the group's lowest, None if it has no row. ``has_topic``: some
    row is of the topic. ``since_us``: when the oldest row of the share-partition was written (microseconds since the
    epoch), None if it has none. ``is_cut``: there are older segments, which were not read."""

    first_segment: int | None
    has_topic: bool
    since_us: int | None
    is_cut: bool = False

    def check(self, location: str, group_id: str, topic: str, partition: int) -> None:
        """Check that there is a log of this share-partition. Raises StateError (no such group), ConfigError."""
        if self.first_segment is None:
            raise no_such_group(group_id, location)
        if not self.has_topic:
            raise no_such_topic(group_id, topic)
        if self.since_us is None:
            raise no_such_partition(group_id, topic, partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHistory:
    """The ``events`` of one record, in order. ``since_us``: when the oldest row of its share-partition that was read
    was written, microseconds since the epoch; ``whole``: it is the group's first; ``is_cut``: there are older ones in
    the log. ``finished``: the record lies below the start offset, whether or not the log has more about it."""

    group_id: str
    topic: str
    partition: int
    offset: int
    events: tuple[RecordEvent, ...]
    since_us: int
    whole: bool
    finished: bool
    is_cut: bool = False


def history_of(
    rows: Sequence[RecordRow], extent: LogExtent, *, group_id: str, topic: str, partition: int, offset: int
) -> RecordHistory:
    """Return the history of ``rows``: those of the record that count, ascending. ``extent``: checked."""
    assert extent.since_us is not None, "checked"
    return RecordHistory(
        group_id=group_id,
        topic=topic,
        partition=partition,
        offset=offset,
        events=tuple(events_of(rows)),
        since_us=extent.since_us,
        whole=extent.first_segment == 0,
        finished=_is_finished(rows),
        is_cut=extent.is_cut,
    )


def _is_finished(rows: Sequence[RecordRow]) -> bool:
    """Return whether the record is finished, by the last row that has its place."""
    places = (row.state.name for row in reversed(rows) if row.state is not None)
    return next((place == FINISHED for place in places if place in (FINISHED, GONE)), False)


def settled_state(delivery_state: int, delivery_count: int, delayed_until_ms: int | None) -> RecordState:
    """Return the state of an entry of ``state_batches``, and of ``delays`` if there is one."""
    name = DeliveryState(delivery_state).name.lower()
    return RecordState(name, delivery_count, lock_deadline_ms=delayed_until_ms)


def events_of(rows: Iterable[RecordRow]) -> Iterator[RecordEvent]:
    """Yield every change, in order. ``rows``: ascending, only those that count."""
    known: RecordState | None = None
    life: Life | None = None
    for row in rows:
        for attempt in row.ended:
            yield _end(known, attempt, row)
            known = None if attempt.outcome == TRUNCATED else _ENDED
        if row.state is not None and row.state.name == GONE:
            if known is not None and life is not None and life.goes_on_in(row.life):
                yield _truncated(known, row.written)
            known, life = None, row.life
            continue
        life = row.life
        if row.state is None:
            continue
        if row.state.name == ACQUIRED or not row.ended:  # else the state is the result of the attempt just reported
            yield from _changes(known, row.state, row.written)
        known = row.state


_ENDED = RecordState("ended")


def _end(known: RecordState | None, attempt: AttemptEnd, row: RecordRow) -> RecordEvent:
    held = known if known is not None and known.name == ACQUIRED else _ENDED
    # The count stays after the end of an attempt, unless it is taken back.
    note = NOT_COUNTED if held.delivery_count == attempt.delivery_count + 1 else None
    note = LOST_BY_LOG if attempt.outcome == TRUNCATED else note
    until_ms = row.state.lock_deadline_ms if row.state is not None and row.state.name == AVAILABLE else None
    return RecordEvent(
        attempt.outcome, attempt.delivery_count, held.member_id, until_ms, note, row.written, attempt.error
    )


def _truncated(known: RecordState, written: Written) -> RecordEvent:
    return RecordEvent(TRUNCATED, known.delivery_count, known.member_id, None, LOST_BY_LOG, written)


def _changes(known: RecordState | None, now: RecordState, written: Written) -> Iterator[RecordEvent]:
    if now.name == ACQUIRED:
        if known is not None and known.name == ACQUIRED:
            # The lock deadline is left out: a renewed lock is the same acquisition.
            if (known.delivery_count, known.member_id) == (now.delivery_count, now.member_id):
                return
            yield _unexplained(RecordState(AVAILABLE, known.delivery_count), known, written)
        yield RecordEvent(ACQUIRED, now.delivery_count, now.member_id, now.lock_deadline_ms, None, written)
    elif known is None:
        if now.name != FINISHED:
            yield RecordEvent(now.name, now.delivery_count, None, None, EARLIER, written)
    elif known.name in (ACQUIRED, AVAILABLE) and (known.name, known.delivery_count) != (now.name, now.delivery_count):
        count = known.delivery_count if now.delivery_count is None else now.delivery_count
        yield _unexplained(now._replace(delivery_count=count), known, written)


def _unexplained(now: RecordState, known: RecordState, written: Written) -> RecordEvent:
    return RecordEvent(now.name, now.delivery_count, known.member_id, now.lock_deadline_ms, REASON_NOT_KEPT, written)


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
