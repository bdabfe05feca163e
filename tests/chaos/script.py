"""What the handler does with a record, as its value says. Every call is first noted in a file outside Spark."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, NamedTuple

from share_spark import Ack, Record
from tests.chaos.faults import EXECUTOR, IN_HANDLER, SESSION, WORKER, Fault, note, strike, strike_once

OUTPUT = "part int, off bigint, cnt int, price double"

ACCEPT, RELEASE_ONCE, REJECT, ALWAYS_FAIL = "accept", "release once", "reject", "always fail"
KILL_WORKER, KILL_EXECUTOR, KILL_DRIVER = "kill the worker", "kill the executor", "kill the driver"
SLEEP, STAY_IN_C, NO_PRICE = "sleep for ever", "stay in C for ever", "have no price"
"""What the value of a record may be. Those from "always fail" on are poison: they do so in each of their deliveries."""

_KILLERS = {KILL_WORKER: WORKER, KILL_EXECUTOR: EXECUTOR, KILL_DRIVER: SESSION}
_C_MAX_INT = 2**31 - 1


def mixed(count: int) -> list[str]:
    """Values, mostly of records to accept; every ninth is rejected, every ninth released once."""
    return [{4: REJECT, 7: RELEASE_ONCE}.get(number % 9, ACCEPT) for number in range(count)]


class Script(NamedTuple):
    """``calls``: the file of calls, a line each: partition, offset, delivery count. ``order``: that of OrderEvents."""

    calls: Path
    order: Path
    struck: Path
    fault: Fault | None = None


class OrderEvent(NamedTuple):
    """A record that has a key was entered, or was ``finished`` with: accepted or rejected."""

    finished: bool
    partition: int
    offset: int
    count: int

    @classmethod
    def parse(cls, line: str) -> OrderEvent:
        """Undo ``str``."""
        finished, *place = map(int, line.split())
        return cls(bool(finished), *place)

    def __str__(self) -> str:
        return " ".join(map(str, map(int, self)))


def play(script: Script, record: Record) -> Any:
    """The answer; an accepted record puts out one row."""
    if record.key is None:
        return _answer(script, record)
    place = record.partition, record.offset, record.delivery_count
    note(script.order, str(OrderEvent(False, *place)))
    answer = _answer(script, record)
    note(script.order, str(OrderEvent(True, *place)))
    return answer


def _answer(script: Script, record: Record) -> Any:
    note(script.calls, f"{record.partition} {record.offset} {record.delivery_count}")
    value = (record.value or b"").decode()
    if value in _KILLERS:
        strike(Fault(IN_HANDLER, _KILLERS[value]), script.struck)
        time.sleep(3_600)  # a worker outlives its executor a little, and must not accept the record meanwhile
    _hang(value)
    if script.fault is not None and script.fault.point == IN_HANDLER and record.offset % 7 == 3:
        strike_once(script.fault, script.struck)
    if value == ALWAYS_FAIL or (value == RELEASE_ONCE and record.delivery_count == 1):
        raise ValueError("not yet")
    if value == REJECT:
        return Ack.reject("never")
    price = "N/A" if value == NO_PRICE else 9.99
    return Ack.ACCEPT, {"part": record.partition, "off": record.offset, "cnt": record.delivery_count, "price": price}


def _hang(value: str) -> None:
    while value == SLEEP:
        time.sleep(3_600)
    if value == STAY_IN_C:  # a quarter of an hour at least, in which no signal is looked at
        hashlib.pbkdf2_hmac("sha512", b"", b"", _C_MAX_INT)
