"""The handlers that a Python worker has opened, kept from task to task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from share_spark.delivery.packed_handler import unpacked
from share_spark.handlers.handler import Handler
from share_spark.handlers.handler_objects import close, has_close, opened
from share_spark.spark.python_worker import forget_garbage_so_far, task_context
from share_spark.spark.worker_end import at_worker_end

_MOST = 4

_opened: dict[tuple[str, bytes], Handler] = {}
"""The handlers by name and packed form, the one that was used last at the end."""


def opened_handler(name: str, payload: bytes) -> Handler:
    """Return the handler of this name, with all that it keeps (a client, a model): made and opened the first time, and
    closed once four others were used since, or at the end of the worker. Raises HandlerError: it cannot be loaded,
    made or opened."""
    key = name, payload
    handler = _opened.pop(key, None)
    if handler is None:
        handler = opened(unpacked(name, payload))
        if has_close(handler):
            at_worker_end(_close_all)
        if task_context() is not None:
            forget_garbage_so_far()
    _opened[key] = handler
    while len(_opened) > _MOST:
        close(_opened.pop(next(iter(_opened))))
    return handler


@contextmanager
def opened_here(handler: Handler, payload: bytes) -> Iterator[None]:
    """Let this process have an opened handler for ``payload`` meanwhile, which is not closed: a test has opened it."""
    key = handler.name, payload
    _opened[key] = handler
    try:
        yield
    finally:
        _opened.pop(key, None)


def _close_all() -> None:
    while _opened:
        close(_opened.popitem()[1])
