"""Values that users write on the command line: numbers, times, topics with their partitions."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from datetime import UTC, datetime

from share_spark.model.config import parse_duration_ms
from share_spark.model.errors import ConfigError
from share_spark.model.moments import milliseconds, moment


def not_negative(text: str) -> int:
    """Return the number, for argparse."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def positive(text: str) -> int:
    """Return the number, for argparse."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def past_moment(text: str) -> datetime:
    """Return a time in the past. Raises ConfigError."""
    found = moment(text)
    if found > datetime.now(UTC):
        raise ConfigError(f"{text} is in the future")
    return found


def later_ms(text: str) -> int:
    """Return a time to come, or this long from now, in milliseconds since the epoch. Raises ConfigError."""
    now = datetime.now(UTC)
    if not (text[:1].isdecimal() and "-" in text):
        return milliseconds(now) + parse_duration_ms(text)
    if (found := moment(text)) <= now:
        raise ConfigError(f"{text} is past")
    return milliseconds(found)


def topic_partitions(text: str) -> tuple[str, Sequence[int]]:
    """Parse ``TOPIC`` (no partitions: all of them) or ``TOPIC:0,1,2``. Raises ConfigError."""
    name, _, partitions = text.partition(":")
    numbers = partitions.split(",") if partitions else []
    if not name or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"{text!r} is no topic: TOPIC or TOPIC:0,1,2")
    return name, [int(number) for number in numbers]


def topics_named(texts: Sequence[str]) -> dict[str, Sequence[int]]:
    """Return partitions by topic; a topic that is named twice has the partitions of both. Raises ConfigError."""
    found: dict[str, Sequence[int]] = {}
    for name, numbers in map(topic_partitions, texts):
        known = found.get(name)
        found[name] = [] if not numbers or known == [] else [*(known or []), *numbers]
    return found


def offset_range(text: str) -> tuple[int, int]:
    """Parse ``17`` or ``17-42``, the last one included. Raises ConfigError."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
        raise ConfigError(f"{text!r} is no range of offsets: FIRST or FIRST-LAST")
    return int(first), int(last or first)
