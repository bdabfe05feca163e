"""What the handler does with a record: its value says so. Every call is noted outside Spark before anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from share_spark import Ack, Record
from tests.chaos.faults import IN_HANDLER, SESSION, WORKER, Fault, note, strike, strike_once

OUTPUT = "part int, off bigint, cnt int"

ACCEPT, RELEASE_ONCE, REJECT, ALWAYS_FAIL = "accept", "release once", "reject", "always fail"
KILL_WORKER, KILL_DRIVER = "kill the worker", "kill the driver"
"""What the value of a record may be. The last two are poison: they do so in each of their deliveries."""

_POISON = {KILL_WORKER: WORKER, KILL_DRIVER: SESSION}


def mixed(count: int) -> list[str]:
    """Values, mostly of records to accept; every ninth is rejected, every ninth released once."""
    return [{4: REJECT, 7: RELEASE_ONCE}.get(number % 9, ACCEPT) for number in range(count)]


class Script(NamedTuple):
    """``calls``: the file of calls, a line each: partition, offset, delivery count."""

    calls: Path
    struck: Path
    fault: Fault | None = None


def play(script: Script, record: Record) -> Any:
    """The answer; an accepted record puts out one row."""
    note(script.calls, f"{record.partition} {record.offset} {record.delivery_count}")
    value = (record.value or b"").decode()
    if value in _POISON:
        strike(Fault(IN_HANDLER, _POISON[value]), script.struck)
    if script.fault is not None and script.fault.point == IN_HANDLER and record.offset % 7 == 3:
        strike_once(script.fault, script.struck)
    if value == ALWAYS_FAIL or (value == RELEASE_ONCE and record.delivery_count == 1):
        raise ValueError("not yet")
    if value == REJECT:
        return Ack.reject("never")
    return Ack.ACCEPT, {"part": record.partition, "off": record.offset, "cnt": record.delivery_count}
