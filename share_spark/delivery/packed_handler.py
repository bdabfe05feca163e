"""Handlers as they travel to other processes: pickled by us, so that one that cannot be loaded there is reported by
name."""

from __future__ import annotations

from typing import Any

from share_spark.handlers.error_texts import exception_text
from share_spark.handlers.handler import Handler
from share_spark.model.errors import HandlerError


def packed(handler: Handler) -> bytes:
    """Return the handler in the form in which it travels. Raises HandlerError if it cannot."""
    try:
        return bytes(_pickler().dumps(handler))
    except Exception as fault:
        reason = f"cannot be sent to the workers: {exception_text(fault)}"
        if _has_unsent_decoder(handler):
            reason = f"value_from {reason}: give a function without parameters, which makes it there"
        raise HandlerError(f"handler {handler.name} {reason}") from fault


def unpacked(name: str, payload: bytes) -> Handler:
    """Return the handler of this name, not opened. Raises HandlerError: it cannot be loaded."""
    try:
        handler: Handler = _pickler().loads(payload)
    except Exception as fault:  # noqa: BLE001 - whatever importing the user's module does
        raise HandlerError(f"handler {name} cannot be loaded on a worker: {exception_text(fault)}") from None
    return handler


def _has_unsent_decoder(handler: Handler) -> bool:
    """Return whether what decodes values is what cannot be sent."""
    try:
        _pickler().dumps(handler.values)
    except Exception:  # noqa: BLE001 - whatever pickling does
        return True
    return False


def _pickler() -> Any:
    """Return PySpark's pickler, which also takes functions that are in no module."""
    from pyspark import cloudpickle

    return cloudpickle
