"""The legal transitions of a record, as a table (R2-R6). A missing entry is the error.

Everything that decides a record's next state is here; the other modules decide only *which* records meet *which*
event.
"""

from __future__ import annotations

from enum import IntEnum

from share_spark.model.records import DeliveryState
from share_spark.model.requests import AcknowledgeType, ArchiveReason


class Event(IntEnum):
    """Events of a record in the window. The first four have the wire ids of the acknowledge types."""

    GAP = AcknowledgeType.GAP
    ACCEPT = AcknowledgeType.ACCEPT
    RELEASE = AcknowledgeType.RELEASE
    REJECT = AcknowledgeType.REJECT
    ACQUIRE = 10
    LOCK_EXPIRED = 11
    SESSION_CLOSED = 12
    FELL_BELOW_LOG_START = 13


_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED
_ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED
_ARCHIVED = DeliveryState.ARCHIVED

TRANSITIONS: dict[tuple[DeliveryState, Event], DeliveryState] = {
    (_AVAILABLE, Event.ACQUIRE): _ACQUIRED,
    (_AVAILABLE, Event.FELL_BELOW_LOG_START): _ARCHIVED,
    (_ACQUIRED, Event.ACCEPT): _ACKNOWLEDGED,
    (_ACQUIRED, Event.RELEASE): _AVAILABLE,
    (_ACQUIRED, Event.REJECT): _ARCHIVED,
    (_ACQUIRED, Event.GAP): _ARCHIVED,
    (_ACQUIRED, Event.LOCK_EXPIRED): _AVAILABLE,
    (_ACQUIRED, Event.SESSION_CLOSED): _AVAILABLE,
    (_ACQUIRED, Event.FELL_BELOW_LOG_START): _ARCHIVED,
}
"""The next state by (state, event). Nothing leads out of Acknowledged or Archived (R3)."""

EVENTS: tuple[Event, ...] = (
    Event.GAP,
    Event.ACCEPT,
    Event.RELEASE,
    Event.REJECT,
)
"""The events by acknowledge type; an enum looked up by value costs as much as the rest of a small acknowledgement."""

ACKNOWLEDGED_TO: tuple[DeliveryState, ...] = tuple(TRANSITIONS[_ACQUIRED, event] for event in EVENTS)
"""The next state of an Acquired record with attempts left, by acknowledge type."""

ARCHIVE_REASONS: dict[Event, ArchiveReason] = {
    Event.REJECT: ArchiveReason.REJECTED,
    Event.GAP: ArchiveReason.GAP,
    Event.FELL_BELOW_LOG_START: ArchiveReason.LOG_START,
}
"""The reason why an event archives. Any other event archives only at the delivery limit."""


def next_state(state: DeliveryState, event: Event, counted: int, max_delivery_count: int) -> DeliveryState | None:
    """Return the state after ``event``, None if the event is illegal in ``state``.

    What would return to Available although its attempts are used up is Archived instead (R6). ``counted``: how many
    deliveries count towards that.
    """
    target = TRANSITIONS.get((state, event))
    if target is _AVAILABLE and counted >= max_delivery_count:
        return _ARCHIVED
    return target


def archive_reason(event: Event) -> ArchiveReason:
    """Return why ``event`` has archived a record."""
    return ARCHIVE_REASONS.get(event, ArchiveReason.DELIVERY_LIMIT)
