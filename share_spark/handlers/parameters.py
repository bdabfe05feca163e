"""The first parameter of a handler, as its annotation says: the kind of the handler, and what it wants of a value.

    record, record: Record       the record; its value is bytes
    record: Record[Order]        the record; its value is an Order
    order: Order                 the value alone: a dataclass, a TypedDict, a pydantic model, a dict, or unions of these
    orders: list[Order]          a list of any of these, in an async handler

The annotation may be a text, as ``from __future__ import annotations`` makes it; then it is resolved here.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from share_spark.handlers.error_texts import shown
from share_spark.handlers.kinds import HandlerKind, function_in, method_of
from share_spark.model.errors import HandlerError

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
_OF_ANYTHING = (Any, object, tuple)
"""Annotations that say nothing, as a record has these types as well."""

_LISTS = (list, Sequence, Collection, Iterable)
"""The types that the parameter of a list handler may have."""

_AS_IT_IS = (Any, bytes, bytes | None)
"""The types of a value that nobody has to decode."""


class Parameter(NamedTuple):
    """The first parameter of a handler. ``kind``: None if nothing says it. ``value``: the type of a record's value,
    None for bytes as they are. ``in_record``: it is a part of the record; else the handler gets the value alone."""

    kind: HandlerKind | None = None
    value: Any = None
    in_record: bool = True


def parameter_of(function: Any, name: str, *, any_value: bool = False) -> Parameter:
    """Return the first parameter of a function, a callable object, or the objects of a class. ``name``: of the handler.
    ``any_value``: values may have any type, as a function of the user's makes them. Raises HandlerError: an annotation
    that means two kinds, or none."""
    inner = function_in(function)
    annotation = _first_annotation(method_of(inner) if isinstance(inner, type) else function, name)
    if isinstance(annotation, HandlerKind):
        return Parameter(annotation)
    try:
        return _listed(annotation, any_value) or _one(annotation, any_value)
    except _NotTakenError:
        raise HandlerError(
            f"handler {name}: its parameter is {type_text(annotation)}, which is no record, no table and no type that "
            "a value may have (a dataclass, a TypedDict, a pydantic model, a dict); value_from makes any other"
        ) from None


def allows_none(annotation: Any) -> bool:
    """Return whether a null value has this type."""
    inner = _inner(annotation)
    return inner in (None, Any, object, types.NoneType) or any(map(allows_none, _members(inner)))


def type_text(annotation: Any) -> str:
    """Return the name of a type, for messages."""
    if members := _members(_inner(annotation)):
        return " | ".join(map(type_text, members))
    if annotation is types.NoneType:
        return "None"
    is_plain = isinstance(annotation, type) and not typing.get_args(annotation)
    return annotation.__name__ if is_plain else shown(annotation)


# --------------------------------------------------------------------------------- from an annotation


class _NotTakenError(Exception):
    """No handler takes such a parameter."""


def _listed(annotation: Any, any_value: bool) -> Parameter | None:
    """Return the parameter if it is a list, else None. Raises _NotTakenError."""
    if annotation is not list and typing.get_origin(annotation) not in _LISTS:
        return None
    one = _one(next(iter(typing.get_args(annotation)), Any), any_value)
    if one.kind not in (None, HandlerKind.RECORD):
        raise _NotTakenError
    return one._replace(kind=HandlerKind.LIST)


def _one(annotation: Any, any_value: bool) -> Parameter:
    """Return the parameter if it is no list. Raises _NotTakenError."""
    inner = _inner(annotation)
    if inner is None or inner in _OF_ANYTHING or isinstance(inner, typing.TypeVar):
        return Parameter()
    members = [one for one in _members(inner) if one is not types.NoneType]
    if len(members) == 1 and _kind_of(typing.get_origin(members[0]) or members[0]):
        return _one(members[0], any_value)
    made = typing.get_origin(inner) or inner
    kind = _kind_of(made)
    if kind is not None:
        arguments = typing.get_args(inner) if kind is HandlerKind.RECORD else ()
        value = next(iter(arguments), bytes)
        return Parameter(kind, None if value in _AS_IT_IS or isinstance(value, typing.TypeVar) else value)
    if not any_value and not _is_value_type(annotation):
        raise _NotTakenError
    return Parameter(HandlerKind.RECORD, annotation, in_record=False)


def _kind_of(made: Any) -> HandlerKind | None:
    for kind in getattr(made, "__mro__", ()):
        if found := _KINDS.get((kind.__module__.partition(".")[0], kind.__name__)):
            return found
    return None


def _is_value_type(annotation: Any) -> bool:
    """Return whether it can only be meant as the type of a value."""
    inner = _inner(annotation)
    members = [one for one in _members(inner) if one is not types.NoneType]
    if members:
        return all(map(_is_value_type, members))
    made = typing.get_origin(inner) or inner
    if not isinstance(made, type):
        return False
    is_model = hasattr(made, "__pydantic_validator__")
    is_typed_dict = hasattr(made, "__required_keys__")  # of typing and of typing_extensions
    return made is dict or is_model or is_typed_dict or dataclasses.is_dataclass(made)


def _inner(annotation: Any) -> Any:
    """Return the type inside of ``Annotated`` and of a ``type`` statement."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; none if it is no union."""
    return typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()


# ---------------------------------------------------------------------------------- from a function


def _first_annotation(function: Any, name: str) -> Any:
    """Return the annotation of the first parameter, resolved, or the kind that its text means; None if there is none.
    Raises HandlerError: a text that means none, or two."""
    try:
        parameter = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return None
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return None
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        noted = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        return typing.get_type_hints(noted, _globals_of(function), include_extras=True)[parameter.name]
    except Exception as fault:  # noqa: BLE001 - a name under TYPE_CHECKING, or whatever the text does
        return _written_kind(parameter.annotation, name, fault)


def _written_kind(annotation: str, name: str, fault: Exception) -> HandlerKind:
    """Return the kind that a text means which cannot be resolved. Raises HandlerError."""
    if annotation == "DataFrame":
        raise HandlerError(
            f"handler {name}: DataFrame may be of pandas or of Spark: use pandas_handler or frame_handler"
        )
    found = _WRITTEN.get(annotation)
    if found is None:
        reason = f"{type(fault).__name__}: {fault}"
        raise HandlerError(f"handler {name}: {annotation}, as its parameter is annotated, cannot be resolved: {reason}")
    return found


def _globals_of(function: Any) -> dict[str, Any]:
    """Return the names that a function's annotations may use."""
    inner = function_in(function)
    called: tuple[Callable[..., Any], ...] = (inspect.unwrap(inner), inspect.unwrap(type(inner).__call__))
    return next((found for one in called if (found := getattr(one, "__globals__", None)) is not None), {})
