"""The kinds of handlers, and what a call of a function, of a callable object, or of an object of a class runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any


class HandlerKind(StrEnum):
    """The argument of a handler: one record, a list of records, an Arrow record batch, an Arrow table, a pandas frame,
    a Spark frame."""

    RECORD = "record"
    LIST = "list"
    ARROW = "arrow"
    TABLE = "table"
    PANDAS = "pandas"
    FRAME = "frame"


# ------------------------------------------------------------------------------------ what a call runs


def function_in(function: Any) -> Any:
    """Return the function, object or class inside of partial ones."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def called(function: Any) -> tuple[Any, ...]:
    """Return the functions that a call may run: the function itself and that of a callable object; of a class that of
    its objects, none if they cannot be called."""
    inner = function_in(function)
    if not isinstance(inner, type):
        return inner, type(inner).__call__
    method = method_of(inner)
    return () if method is None else (method,)


def is_async(function: Any) -> bool:
    """Return whether a call is a coroutine."""
    return any(map(inspect.iscoroutinefunction, called(function)))


def method_of(made: type) -> Callable[..., Any] | None:
    """Return ``__call__`` of the objects of a class, as it is called; None if it has none."""
    for base in made.__mro__:
        if (found := vars(base).get("__call__")) is not None:
            # An object that is no instance: what a method is bound to does not change its parameters.
            bound: Callable[..., Any] = found.__get__(object(), made)
            return bound
    return None
