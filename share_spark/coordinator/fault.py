"""The refusal of a request, as a value."""

from __future__ import annotations

from typing import NamedTuple

from share_spark.model.errors import ErrorCode


class Fault(NamedTuple):
    """The reason why a request is refused: a value, not an exception."""

    code: ErrorCode
    message: str
