"""The demo's handler: an ordinary function, independent of Spark and of share groups.

It gets one record and returns the result: `Ack.ACCEPT` accepts it, `Ack.reject` says that it can never succeed, and any
exception gives it back, to be tried again until the delivery limit.
"""

import json
import zlib

from share_spark import Ack, Record

FAILURES_PER_THOUSAND = 50
MINUTES_A_DAY = 1_440


class ServiceBusyError(Exception):
    """Raised when the flaky service for delays is busy; the next attempt may succeed."""


def report_delay(record: Record) -> object:
    """Report to the service how late a flight arrived."""
    flight = json.loads(record.value)
    if flight["dep_time"] is None:
        return Ack.reject("cancelled: never departed, so it can never arrive")
    send(as_text(arrival_delay(flight)), record)
    return Ack.ACCEPT


def arrival_delay(flight: dict) -> int | None:
    """Return the minutes late (early if negative); None for a flight whose landing was not recorded.

    The record has clock times only, so the delay is known except for whole days; the delay at departure decides them.
    """
    if flight["arr_time"] is None:
        return None
    late = minutes(flight["arr_time"]) - minutes(flight["sched_arr_time"]) - flight["dep_delay"]
    return (late + MINUTES_A_DAY // 2) % MINUTES_A_DAY - MINUTES_A_DAY // 2 + flight["dep_delay"]


def minutes(clock: int) -> int:
    """Return the minutes since midnight of a time such as 1734."""
    return clock // 100 * 60 + clock % 100


def as_text(delay: int | None) -> str:
    """Return the delay as the service wants it. It has a bug: it cannot write delays of a day."""
    if delay is None:
        return "unknown"
    if delay >= 1_000:
        raise ValueError(f"{delay} minutes late does not fit into three digits")
    return f"{delay:+04d}"


def send(_text: str, record: Record) -> None:
    """Stand in for the service: fail now and then, pseudo-randomly, but the same in every run."""
    seed = f"{record.partition}/{record.offset}/{record.delivery_count}".encode()
    if zlib.crc32(seed) % 1_000 < FAILURES_PER_THOUSAND:
        raise ServiceBusyError("503 service busy, try again")
