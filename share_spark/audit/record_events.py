"""What happened to one record, from the rows of the state log that contain it. Pure: values in, values out.

A row says what became of a record (``acquired``, ``state_batches``, the start offset) and, where history is kept, why
(``ended``). A snapshot repeats what earlier rows have said, so only a change is an event. Where history is not kept,
only the state is reported, with a note that its reason is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from share_spark.model.ids import BatchStamp
from share_spark.model.records import DeliveryState

ACQUIRED, AVAILABLE, FINISHED = "acquired", "available", "finished"
"""Events besides the outcomes of attempts. ``finished``: acknowledged or archived, the log does not say which."""

REASON_NOT_KEPT = "reason not kept"
EARLIER = "earlier than the log"
NOT_COUNTED = "attempt not counted"
"""Notes. ``EARLIER``: the state when the log begins. ``NOT_COUNTED``: a clean stop gave the record back unhandled."""


class Ended(NamedTuple):
    """An attempt that ended with a row. ``delivery_count`` is what it left behind."""

    delivery_count: int
    outcome: str


class RecordState(NamedTuple):
    """What a row says of the record. ``name``: ``acquired``, ``available``, ``acknowledged``, ``archived``;
    ``finished``: it lies below the start offset. The last two only while acquired."""

    name: str
    delivery_count: int | None = None
    member_id: str | None = None
    lock_deadline_ms: int | None = None


class Written(NamedTuple):
    """Who wrote a row and when (microseconds since the epoch)."""

    writer_epoch: int
    batch_id: int
    run_id: str
    written_at_us: int

    @property
    def stamp(self) -> BatchStamp:
        """Its micro-batch."""
        return BatchStamp(self.writer_epoch, self.batch_id)


class RecordRow(NamedTuple):
    """A log row as far as it concerns one record. ``state`` None: it says nothing of it but what has ``ended``."""

    written: Written
    ended: Sequence[Ended]
    state: RecordState | None


class RecordEvent(NamedTuple):
    """One thing that happened. ``member_id``: who held the record, if known; times in the units that they are named
    by."""

    event: str
    delivery_count: int | None
    member_id: str | None
    lock_deadline_ms: int | None
    note: str | None
    written: Written


def settled_state(delivery_state: int, delivery_count: int) -> RecordState:
    """Of an entry of ``state_batches``."""
    return RecordState(DeliveryState(delivery_state).name.lower(), delivery_count)


def events_of(rows: Iterable[RecordRow]) -> Iterator[RecordEvent]:
    """Every change, in order. ``rows``: ascending, only those that count."""
    known: RecordState | None = None
    for row in rows:
        for attempt in row.ended:
            yield _end(known, attempt, row.written)
            known = _ENDED
        if row.state is None:
            continue
        if row.state.name == ACQUIRED or not row.ended:  # else the state is the result of the attempt just reported
            yield from _changes(known, row.state, row.written)
        known = row.state


_ENDED = RecordState("ended")


def _end(known: RecordState | None, attempt: Ended, written: Written) -> RecordEvent:
    held = known if known is not None and known.name == ACQUIRED else _ENDED
    # An attempt that ends leaves its count behind, unless it is taken back.
    note = NOT_COUNTED if held.delivery_count == attempt.delivery_count + 1 else None
    return RecordEvent(attempt.outcome, attempt.delivery_count, held.member_id, None, note, written)


def _changes(known: RecordState | None, now: RecordState, written: Written) -> Iterator[RecordEvent]:
    if now.name == ACQUIRED:
        if known is not None and known.name == ACQUIRED:
            # The lock deadline is left out: a renewed lock is the same acquisition.
            if (known.delivery_count, known.member_id) == (now.delivery_count, now.member_id):
                return
            yield _unexplained(AVAILABLE, known, known.delivery_count, written)
        yield RecordEvent(ACQUIRED, now.delivery_count, now.member_id, now.lock_deadline_ms, None, written)
    elif known is None:
        if now.name != FINISHED:
            yield RecordEvent(now.name, now.delivery_count, None, None, EARLIER, written)
    elif known.name in (ACQUIRED, AVAILABLE) and (known.name, known.delivery_count) != (now.name, now.delivery_count):
        count = known.delivery_count if now.delivery_count is None else now.delivery_count
        yield _unexplained(now.name, known, count, written)


def _unexplained(event: str, known: RecordState, delivery_count: int | None, written: Written) -> RecordEvent:
    return RecordEvent(event, delivery_count, known.member_id, None, REASON_NOT_KEPT, written)
