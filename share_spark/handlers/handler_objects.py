"""Handlers that are objects: made of their class where they are called, opened before the first call, then closed.

    class Ask:
        def open(self): self.client = Client()            once in each process that calls it; may be left out
        def __call__(self, record): ...
        def close(self): self.client.close()              when the process is done with it; may be left out

``open`` and ``close`` of an ``async`` handler may be ``async`` as well, and run on the loop of its calls.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from share_spark.handlers.acknowledgement import refuse_coroutine
from share_spark.handlers.error_texts import NO_FAULTS, exception_text
from share_spark.handlers.kinds import HandlerKind, function_in, is_async
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from share_spark.handlers.handler import Handler

_log = logging.getLogger(__name__)

_METHODS = "open", "close"


class _UnopenedError(HandlerError):
    """A handler that cannot be made or opened. It may be inside of another one, whose ``open`` opens it."""


def check_object(handler: Handler) -> None:
    """Check that the class can be made, and what ``open`` and ``close`` are. Raises HandlerError."""
    inner = function_in(handler.call)
    if isinstance(inner, type) and _needs_arguments(handler.call):
        raise HandlerError(f"handler {handler.name} is a class that is made with arguments: give an object of it")
    methods = [name for name in _METHODS if _method(inner, name) is not None]
    if handler.kind is HandlerKind.FRAME and (methods or isinstance(inner, type)):
        raise HandlerError(f"handler {handler.name}: a frame handler is no class, and has no open() and no close()")
    for name in methods:
        if _needs_arguments(_method(inner, name), given=isinstance(inner, type)):
            raise HandlerError(f"handler {handler.name}: {name}() has parameters, and is called without any")
        if inspect.iscoroutinefunction(_method(inner, name)) and not is_async(handler.call):
            raise HandlerError(f"handler {handler.name} is not async, so its {name}() cannot be")


def opened(handler: Handler) -> Handler:
    """Make the object if the handler is a class, and what decodes values for it; open it. Raises HandlerError."""
    made = _made(handler)
    for opening in _calls(made, "open"):
        try:
            refuse_coroutine(opening())
        except NO_FAULTS:
            raise
        except BaseException as fault:  # noqa: BLE001 - a client may raise anything
            raise _not_opened(handler, fault) from None
    return made


async def opened_on_loop(handler: Handler) -> Handler:
    """Do as ``opened``, on a loop. Raises HandlerError."""
    made = _made(handler)
    for opening in _calls(made, "open"):
        try:
            found = opening()
            if inspect.isawaitable(found):
                await found
        except BaseException as fault:  # noqa: BLE001 - a client may raise anything
            raise _not_opened(handler, fault) from None
    return made


def close(handler: Handler) -> None:
    """Close an opened handler. What that raises is logged: the calls have their answers."""
    for closing in _calls(handler, "close"):
        try:
            refuse_coroutine(closing())
        except BaseException as fault:  # noqa: BLE001 - nothing can be done about it
            _log_fault(handler, fault)


async def close_on_loop(handler: Handler) -> None:
    """Do as ``close``, on a loop."""
    for closing in _calls(handler, "close"):
        try:
            found = closing()
            if inspect.isawaitable(found):
                await found
        except BaseException as fault:  # noqa: BLE001 - nothing can be done about it
            _log_fault(handler, fault)


def has_close(handler: Handler) -> bool:
    """Return whether there is something to do at the end."""
    return any(True for _ in _calls(handler, "close"))


def _made(handler: Handler) -> Handler:
    make: Callable[..., Any] = handler.call
    if handler.values is not None:
        handler = replace(handler, argument_of=handler.values.argument_of())
    if not isinstance(function_in(make), type):
        return handler
    try:
        return replace(handler, call=make())
    except NO_FAULTS:
        raise
    except BaseException as fault:  # noqa: BLE001 - whatever a constructor does
        raise _UnopenedError(f"handler {handler.name} cannot be made: {exception_text(fault)}") from None


def _calls(handler: Handler, name: str) -> Iterator[Any]:
    """Yield the method of this name, if the handler has one."""
    inner = function_in(handler.call)
    if _method(inner, name) is not None:
        yield getattr(inner, name)


def _method(inner: Any, name: str) -> Any:
    """Return what a handler has under a name: of an object or a class of the user's, and only what can be called."""
    if inspect.isroutine(inner):
        return None
    found = getattr(inner, name, None)
    return found if callable(found) else None


def _needs_arguments(function: Any, *, given: bool = False) -> bool:
    """Return whether it cannot be called without arguments. ``given``: it is of a class, and gets its object."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(*[None] * given)
    except TypeError:
        return True
    return False


def _not_opened(handler: Handler, fault: BaseException) -> HandlerError:
    return (
        fault
        if isinstance(fault, _UnopenedError)
        else _UnopenedError(f"handler {handler.name}: open() failed: {exception_text(fault)}")
    )


def _log_fault(handler: Handler, fault: BaseException) -> None:
    _log.warning("handler %s: close() failed: %s", handler.name, exception_text(fault))
