"""The settings of handlers of which many calls run at a time: which kinds have them, and their ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from share_spark.handlers.kinds import HandlerKind, is_async
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from share_spark.handlers.handler import Handler

MOST_RECORDS = 10_000
MOST_LINGER_S = 60
MOST_THREADS = 1_000


def check_calls(handler: Handler) -> None:
    """Check the settings. Raises HandlerError."""
    name, kind = handler.name, handler.kind
    waits = is_async(handler.call)
    if waits and kind not in (HandlerKind.RECORD, HandlerKind.LIST):
        raise HandlerError(f"handler {name} is async: it may take one record or a list of them (list[Record])")
    if kind is HandlerKind.LIST and not waits:
        raise HandlerError(f"handler {name} takes a list of records and is not async: take a pa.RecordBatch instead")
    if kind is not HandlerKind.LIST and (handler.batch is not None or handler.linger_s is not None):
        raise HandlerError(f"handler {name}: batch and linger are for handlers of a list of records (list[Record])")
    if handler.threads is not None and waits:
        raise HandlerError(f"handler {name} is async: threads are for handlers that block")
    if handler.threads is not None and kind is not HandlerKind.RECORD:
        raise HandlerError(f"handler {name}: threads are for handlers of one record")
    _check_whole(name, "batch", handler.batch, MOST_RECORDS)
    _check_whole(name, "threads", handler.threads, MOST_THREADS)
    _check_linger(name, handler.linger_s)


def _check_whole(handler: str, name: str, value: object, most: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise HandlerError(f"handler {handler}: {name} is {value!r}, not a number from 1 to {most}")


def _check_linger(handler: str, value: object) -> None:
    if value is not None and (type(value) not in (int, float) or not 0 <= value <= MOST_LINGER_S):  # type: ignore[operator]
        raise HandlerError(f"handler {handler}: linger is {value!r}, not seconds from 0 to {MOST_LINGER_S}")
