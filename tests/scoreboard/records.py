"""The records of the comparison. The value of a record is its number, and the number says what the service answers."""

from __future__ import annotations

LIMIT = 5
"""The failures after which a record is a dead letter, in all systems."""

AT_A_TIME = 4
"""The calls that a system may have open."""

LOCK_MS = 10_000
"""So long a record stays with a consumer or an engine that says nothing, in all systems that have locks."""

OK, FAILED = 200, 503


def is_poison(number: int) -> bool:
    """One of 100 fails whenever it is asked for."""
    return number % 100 == 13


def status_of(number: int, failures: int) -> int:
    """Return the service's answer for a record for which it has answered so many failures: one of 20 fails once."""
    is_failing = is_poison(number) or (number % 20 == 7 and failures == 0)
    return FAILED if is_failing else OK


def latency_s(number: int) -> float:
    """Return the time that the service takes: 5 to 35 ms."""
    return (5 + number * 7_919 % 31) / 1_000
