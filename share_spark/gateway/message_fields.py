"""The shapes of fields, as the annotations of ``kio``'s dataclasses say them."""

from __future__ import annotations

from dataclasses import is_dataclass
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin


class FieldShape(NamedTuple):
    """The shape of a field: of what type, whether an array of it, and whether it may be null.

    ``element_optional``: whether elements of the array may be null.
    """

    kind: Any
    is_array: bool
    optional: bool
    element_optional: bool = False

    @property
    def is_message(self) -> bool:
        """Whether the field is a struct of fields, or an array of them."""
        return is_dataclass(self.kind)


def shape(annotation: Any) -> FieldShape:
    """Return the shape of a field with this annotation."""
    kind, optional = _without_none(annotation)
    if get_origin(kind) is not tuple:
        return FieldShape(kind, False, optional)
    element, element_optional = _without_none(get_args(kind)[0])
    return FieldShape(element, True, optional, element_optional)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is not UnionType:
        return annotation, False
    (kind,) = (option for option in get_args(annotation) if option is not type(None))
    return kind, True
