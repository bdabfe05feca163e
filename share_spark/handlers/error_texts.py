"""Texts of what a handler has raised or returned, in the form kept in ledgers, in the state and in dead letters.

The user's code makes such a text (``__str__``, ``__repr__``); it may raise, and the text may hold what no file takes:
a lone surrogate, as ``json.loads(r'"\\ud83d"')`` gives one. So it is made here, where nothing raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from share_spark.handlers.time_limit import OverrunError

ERROR_TEXT_LIMIT = 1000
"""The number of characters of an error that are kept. It is written to the state and into dead-letter headers."""

NO_FAULTS = (KeyboardInterrupt, OverrunError)
"""Exceptions that the user's code may raise through no fault of its own: Spark ends tasks by the first, the time limit
ends calls by the second."""

_SHOWN_LIMIT = 60

_name_of_type: Callable[[type], str] = type.__dict__["__name__"].__get__
"""A getter of ``__name__`` that ignores what a metaclass may have made of it."""


def storable(text: str) -> str:
    """Return the text with each lone surrogate written as an escape, ``\\ud83d``. Calls no method of a subclass of
    str."""
    if type(text) is str and text.isascii():
        return text
    return str.encode(text, "utf-8", "backslashreplace").decode()


def error_text(text: str) -> str:
    """Return the error as it is kept: storable, and cut to ERROR_TEXT_LIMIT characters."""
    return _cut(storable(text), ERROR_TEXT_LIMIT)


def exception_text(error: BaseException) -> str:
    """Return ``ValueError: bad amount``, the form in which an exception of a handler is kept."""
    name, message = storable(_name_of_type(type(error))), _made(str, error)
    return error_text(f"{name}: {message}" if message else name)


def reason_text(why: object) -> str | None:
    """Return a handler's reason for its answer as text: an exception by ``exception_text``, anything else by ``str``,
    None for none."""
    if why is None:
        return None
    if type(why) is str:
        return error_text(why)
    return exception_text(why) if isinstance(why, BaseException) else error_text(_made(str, why))


def shown(value: object) -> str:
    """Return a short form of a wrong value, for the error that names it."""
    return _cut(_made(_value_text, value), _SHOWN_LIMIT)


def _value_text(value: object) -> str:
    return str(value) if isinstance(value, np.number) else repr(value)


def _made(make: Callable[[Any], str], value: object) -> str:
    """Return the storable text that ``make`` gives, or a note that it raises."""
    try:
        return storable(make(value))
    except NO_FAULTS:
        raise
    except BaseException as fault:  # noqa: BLE001 - it is the user's code that makes the text
        return f"(no text: {_name_of_type(type(fault))})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
