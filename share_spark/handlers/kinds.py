"""The kinds of handlers, and how the kind of a function, of a callable object, or of a class of such objects is found:
in the annotation of the first parameter."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from share_spark.model.errors import HandlerError


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


# ------------------------------------------------------------------------------ kinds from annotations

_KINDS = {
    ("share_spark", "Record"): HandlerKind.RECORD,
    ("pyarrow", "RecordBatch"): HandlerKind.ARROW,
    ("pyarrow", "Table"): HandlerKind.TABLE,
    ("pandas", "DataFrame"): HandlerKind.PANDAS,
    ("pyspark", "DataFrame"): HandlerKind.FRAME,
}
_WRITTEN = {
    "Record": HandlerKind.RECORD,
    "list[Record]": HandlerKind.LIST,
    **{f"{prefix}RecordBatch": HandlerKind.ARROW for prefix in ("", "pa.", "pyarrow.")},
    **{f"{prefix}Table": HandlerKind.TABLE for prefix in ("", "pa.", "pyarrow.")},
    **{f"{prefix}DataFrame": HandlerKind.PANDAS for prefix in ("pd.", "pandas.")},
    **{f"{prefix}DataFrame": HandlerKind.FRAME for prefix in ("sql.", "pyspark.sql.")},
}


def annotated_kind(function: Any, name: str) -> HandlerKind | None:
    """Return the kind that the annotation of the first parameter says; None if it says none. Raises HandlerError: it
    may mean two. ``name``: of the handler."""
    inner = function_in(function)
    annotation = _first_annotation(method_of(inner) if isinstance(inner, type) else function)
    if isinstance(annotation, str):
        if annotation == "DataFrame":
            raise HandlerError(
                f"handler {name}: DataFrame may be of pandas or of Spark: use pandas_handler or frame_handler"
            )
        return _WRITTEN.get(annotation)
    if typing.get_origin(annotation) is list:
        records = [_kind_of(one) for one in typing.get_args(annotation)]
        return HandlerKind.LIST if records == [HandlerKind.RECORD] else None
    return _kind_of(annotation)


def _kind_of(annotation: Any) -> HandlerKind | None:
    for kind in getattr(annotation, "__mro__", ()):
        if found := _KINDS.get((kind.__module__.partition(".")[0], kind.__name__)):
            return found
    return None


def _first_annotation(function: Any) -> Any:
    """Return the annotation of the first parameter, resolved if possible, else as written; None if there is none."""
    try:
        parameter = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return None
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return None
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return inspect.signature(function, eval_str=True).parameters[parameter.name].annotation
    except Exception:  # noqa: BLE001 - names under TYPE_CHECKING; the text says enough
        return parameter.annotation
