"""Makes messages in whatever version a client asks for, from the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from kio.static.protocol import Entity

from share_spark.gateway.message_fields import shape

_Kind = TypeVar("_Kind", bound=Entity)


def make_message(kind: type[_Kind], values: Mapping[str, Any]) -> _Kind:
    """Make a message from the values of its fields, by the names of ``kio``. A struct is a mapping too, and an array of
    them an iterable of mappings. Values of fields that this version does not have are left out."""
    return kind(**{name: make(values[name]) for name, make in _makers(kind) if name in values})


@cache
def _makers(kind: type[Entity]) -> list[tuple[str, Callable[[Any], Any]]]:
    return [(field.name, _maker(field.type)) for field in fields(kind)]


def _maker(annotation: Any) -> Callable[[Any], Any]:
    kind, is_array, *_ = field_shape = shape(annotation)
    if not field_shape.is_message:
        return tuple if is_array and not field_shape.optional else _same
    if is_array:
        return lambda values: None if values is None else tuple(make_message(kind, each) for each in values)
    return lambda values: None if values is None else make_message(kind, values)


def _same(value: Any) -> Any:
    return value
