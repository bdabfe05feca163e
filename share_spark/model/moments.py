"""Times as users write them, and as they see them."""

from __future__ import annotations

from datetime import UTC, datetime

from share_spark.model.errors import ConfigError

FIRST_MOMENT, LAST_MOMENT = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""The bounds of what a datetime can hold in any time zone. A producer may claim any year; what lies outside is seen as
one of these."""


def moment(text: str) -> datetime:
    """Read a time; without a zone it is in UTC. Raises ConfigError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time: YYYY-MM-DDThh:mm:ss.sss") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def milliseconds(found: datetime) -> int:
    """Return the milliseconds since the epoch."""
    return int(found.timestamp() * 1_000)
