"""The names of handlers, ``module:function``, and how a function is found by its name."""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Callable
from typing import Any

from share_spark.model.errors import HandlerError


def load_handler(name: str, what: str = "handler") -> Callable[..., Any]:
    """Return the function that ``module:function`` names. Raises HandlerError with the cause, on one line, that says
    ``what`` it is."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise HandlerError(f"{what} {name!r} is not of the form module:function")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as fault:
        reason = " ".join(str(fault).split())
        raise HandlerError(
            f"{what} {name}: module {module_name} does not import: {type(fault).__name__}: {reason}"
        ) from fault
    for part in path.split("."):
        if not hasattr(found, part):
            raise HandlerError(f"{what} {name}: module {module_name} has no function {path}")
        found = getattr(found, part)
    if not callable(found):
        raise HandlerError(f"{what} {name} is not a function: it is of type {type(found).__name__}")
    return typing.cast(Callable[..., Any], found)


def handler_name(handler: object) -> str:
    """Return ``module:function`` of an object, with ``?`` for a name that it does not have."""
    if isinstance(handler, str):
        return handler
    if isinstance(handler, functools.partial):
        return handler_name(handler.func)
    named = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{getattr(named, '__module__', None) or '?'}:{getattr(named, '__qualname__', '?')}"
