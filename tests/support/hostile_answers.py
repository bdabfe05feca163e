"""What handlers raise and return that nobody expects: each is one record's own failure."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, tzinfo
from typing import Any

from share_spark.handlers.acknowledgement import Ack, Acknowledgement


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text today")


class PanicException(BaseException):
    """As extensions written in Rust raise it: no Exception."""


class Unseen:
    """Raises whatever it is asked."""

    def __repr__(self) -> str:
        raise LookupError("no text today")

    def __eq__(self, other: object) -> bool:
        raise LookupError("not to be compared")

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        raise LookupError("not to be looked at")


class Greedy(int):
    """A number that says it is what one looks for, and becomes another one."""

    def __le__(self, other: object) -> bool:
        return True

    __ge__ = __lt__ = __gt__ = __le__

    def __int__(self) -> int:
        return 300


class Loud(str):
    """A text with methods of its own."""

    def upper(self) -> Any:
        raise LookupError("never louder")

    __str__ = __repr__ = __format__ = encode = upper  # type: ignore[assignment]


class Fields(Mapping[str, Any]):
    """A row that breaks while it is read."""

    def __getitem__(self, name: str) -> Any:
        raise LookupError(name)

    def __iter__(self) -> Iterator[str]:
        yield "id"
        raise asyncio.CancelledError("half way")

    def __len__(self) -> int:
        raise LookupError("no length")


class Pair(tuple[Any, ...]):
    """A row of another length each time."""

    def __iter__(self) -> Iterator[Any]:
        raise GeneratorExit

    def __len__(self) -> int:
        return 2


class Nowhere(tzinfo):
    """A time zone that breaks when a time is converted."""

    def utcoffset(self, at: datetime | None) -> Any:  # noqa: ARG002
        raise PanicException("index out of bounds")

    dst = tzname = utcoffset


Point = namedtuple("Point", "x y")


async def coroutine() -> None:
    """Is never awaited."""


def raises(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


def lone(surrogate: str = "\ud83d") -> str:
    return f"unknown {surrogate}"


_EXPECTED: dict[str, tuple[Callable[[], Any], str]] = {
    "a lone surrogate in an error": (raises(ValueError(lone())), r"ValueError: unknown \ud83d"),
    "a lone surrogate in a reason": (lambda: Ack.reject(lone()), r"unknown \ud83d"),
    "an error without a text": (raises(MuteError()), "MuteError: (no text: RuntimeError)"),
    "a cancelled task": (raises(asyncio.CancelledError("by its server")), "CancelledError: by its server"),
    "the end of a generator": (raises(GeneratorExit()), "GeneratorExit"),
    "a panic": (raises(PanicException("index out of bounds")), "PanicException: index out of bounds"),
    "an end of the process": (raises(SystemExit(3)), "SystemExit: 3"),
    "an error as the reason": (lambda: Ack.reject(ValueError("no city")), "ValueError: no city"),
    "a reason without a text": (lambda: Ack.release(MuteError()), "MuteError: (no text: RuntimeError)"),
    "a reason of another type": (lambda: Ack.release({"a": 1}), "{'a': 1}"),  # type: ignore[arg-type]
    "an object that raises": (Unseen, "answered what cannot be looked at: LookupError: not to be looked at"),
    "a number of its own": (lambda: Greedy(7), "answered 7, which is not Ack.ACCEPT, Ack.RELEASE or Ack.REJECT"),
    "a text of its own": (lambda: Loud("why"), "answered (no text: LookupError), which is not Ack.ACCEPT, "),
    "a huge number": (lambda: 10**5_000, "answered (no text: ValueError), which is not Ack.ACCEPT, "),
    "a named tuple": (lambda: Point(1, 2), "answered Point(x=1, y=2), which is not Ack.ACCEPT, "),
    "a coroutine": (coroutine, "returned a coroutine, which nothing awaits"),
    "a generator": (lambda: (one for one in ()), "answered <generator object "),
    "a delay that is a text": (
        lambda: Acknowledgement(Ack.RELEASE, None, "1s"),  # type: ignore[arg-type]
        "answered with a delay_ms of '1s', not 0 to 30 days",
    ),
    "a delay that is a bool": (
        lambda: Acknowledgement(Ack.RELEASE, None, delay_ms=True),
        "answered with a delay_ms of True, not 0 to 30 days",
    ),
    "a delay that is no number": (
        lambda: Acknowledgement(Ack.RELEASE, None, float("nan")),  # type: ignore[arg-type]
        "answered with a delay_ms of nan, not 0 to 30 days",
    ),
    "a delay for ever": (
        lambda: Acknowledgement(Ack.RELEASE, None, 10**5_000),
        "answered with a delay_ms of (no text: ValueError), not 0 to 30 days",
    ),
}

_EXPECTED_OF_ROWS: dict[str, tuple[Callable[[], Any], str]] = {
    "a column that is no text": (
        lambda: (Ack.ACCEPT, {7: 1, "id": 2}),
        "returned output column 7, which is not in the schema",
    ),
    "a column with a lone surrogate": (
        lambda: (Ack.ACCEPT, {"\ud83d": 1}),
        r"returned output column \ud83d, which is not in the schema",
    ),
    "a row with a lone surrogate": (
        lambda: (Ack.ACCEPT, {"id": 1, "name": lone()}),
        "returned output column name that is no string: UnicodeEncodeError",
    ),
    "a row that breaks": (
        lambda: (Ack.ACCEPT, Fields()),
        "returned output that cannot be looked at: CancelledError: half way",
    ),
    "a row of its own": (lambda: (Ack.ACCEPT, Pair()), "returned output that cannot be looked at: GeneratorExit"),
    "a value that panics": (
        lambda: (Ack.ACCEPT, {"at": datetime(2026, 1, 2, tzinfo=Nowhere())}),
        "returned output column at that is no timestamp[us, tz=UTC]: PanicException: index out of bounds",
    ),
    "a coroutine for rows": (lambda: (Ack.ACCEPT, coroutine()), "returned a coroutine, which nothing awaits"),
    "a coroutine with rows": (lambda: (coroutine(), {"id": 1}), "returned a coroutine, which nothing awaits"),
    "a time that is no date": (
        lambda: (Ack.ACCEPT, {"id": 1, "at": 1_700_000_000_000_000_000}),
        "returned output column at with a time outside of the years 1 to 9999",
    ),
    "a null for an entry of a map": (
        lambda: (Ack.ACCEPT, {"id": 1, "places": [{"counts": [None]}]}),
        "returned output column places that is no list<element: struct<x: int32, "
        "counts: map<string, int64>>>: ValueError: a map has an entry that is no pair of key and value",
    ),
}

_COSTS: dict[str, tuple[Any, str]] = {
    "a cost that is none": (None, "None"),
    "a cost below 0": (-1, "-1"),
    "a cost that is no number": (float("nan"), "nan"),
    "a cost without an end": (float("inf"), "inf"),
    "a cost that is a text": ("812", "'812'"),
    "a cost that is a bool": (True, "True"),
    "a cost that no float is": (10**400, str(10**400)[:57] + "..."),
    "a cost that is a list": ([1], "[1]"),
    "a cost of its own": (Greedy(-7), "-7"),
    "a cost that raises": (Unseen(), "(no text: LookupError)"),
}

_EXPECTED |= {
    name: (functools.partial(Ack.accept, cost=cost), f"accepted with a cost of {text}, not a number of 0 or more")
    for name, (cost, text) in _COSTS.items()
}

COSTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a failure without a text": (raises(MuteError()), "the cost function failed: MuteError: (no text: RuntimeError)"),
    "a cancelled task": (raises(asyncio.CancelledError("no")), "the cost function failed: CancelledError: no"),
    "a panic": (raises(PanicException("no index")), "the cost function failed: PanicException: no index"),
    "an end of the process": (raises(SystemExit(3)), "the cost function failed: SystemExit: 3"),
    "a coroutine": (coroutine, "the cost function failed: HandlerError: returned a coroutine, which nothing awaits"),
} | {
    name: (lambda cost=cost: cost, f"the cost function returned {text}, not a number of 0 or more")  # type: ignore[misc]
    for name, (cost, text) in _COSTS.items()
}
COSTS["a cost that raises"] = (Unseen, "the cost function failed: LookupError: not to be looked at")
"""What a cost function does that nobody expects, and the error of the record."""

NAMES, NAMES_OF_ROWS = list(_EXPECTED), list(_EXPECTED_OF_ROWS)


def answer_of(name: str) -> Any:
    """Answer, or raise, what ``name`` says."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that is never awaited
        return {**_EXPECTED, **_EXPECTED_OF_ROWS}[name][0]()


def error_of(name: str) -> str:
    """What the error of its record begins with."""
    return {**_EXPECTED, **_EXPECTED_OF_ROWS}[name][1]
