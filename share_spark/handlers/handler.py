"""Handlers: the functions that users write, their parameters, and how the kind of each is inferred.

A handler is a plain function. A decorator, or the annotation of its first parameter, declares what it takes;
without either it takes one record:

    def bill(record): ...                   # one Record -> Ack, None (accept); an exception releases
    async def ask(record): ...              # the same, with many calls at a time
    async def embed(records: list[Record])  # a list of them -> one Ack each, with many calls at a time
    def score(batch: pa.RecordBatch): ...   # an Arrow batch -> one Ack per row (pa.Table likewise)
    def clean(frame: pd.DataFrame): ...     # a pandas frame -> one Ack per row
    @frame_handler                          # a Spark frame -> a Spark frame with
    def join(records): ...                  #   topic, partition, offset, ack (and error)

Where it takes records, their values may be decoded for it (``parameters``, ``values``).

An object that can be called is a handler as well, and so is its class (``handler_objects``).

This module is about kinds, names and settings. It calls no handler and starts no Spark.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import pyarrow as pa

from share_spark.handlers.calls_at_once import check_calls
from share_spark.handlers.handler_objects import check_object
from share_spark.handlers.kinds import HandlerKind, called, is_async
from share_spark.handlers.names import handler_name, load_handler
from share_spark.handlers.output_schema import OutputSchema, arrow_output
from share_spark.handlers.parameters import Parameter, parameter_of
from share_spark.handlers.values import ArgumentOf, Values, values_of
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from share_spark.handlers.costs import CostFunction

    _Value = TypeVarWithDefault("_Value", default=bytes | None)
else:
    _Value = TypeVar("_Value")

HANDLER_COLUMNS = (*("topic", "partition", "offset", "timestamp", "key", "value", "headers", "delivery_count"),)
"""The columns that a batch handler sees, in this order. ``timestamp`` in the session's time zone, ``headers`` a list
of (key, value) structs, ``delivery_count`` 1 for the first delivery."""

DEFAULT_BATCH = 32
"""The most records of a call with a list of them, if it is not set."""

DEFAULT_LINGER_S = 0.02
"""The longest time that the first record of a list waits for others, if it is not set."""

KEY_COLUMNS = ("topic", "partition", "offset")
"""The columns that identify a record. They are always read, whatever a handler asks for."""


class Record(NamedTuple, Generic[_Value]):
    """One acquired record. A tuple and not a dataclass, because one is made for every record. ``Record[Order]``: one
    whose ``value`` is decoded.

    ``timestamp`` is aware, in UTC; a producer may write any year, and one that Python's dates do not have becomes the
    nearest that they have (``model.moments``). ``delivery_count`` counts this delivery: 1 is the first.
    """

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None = None
    key: bytes | None = None
    value: _Value = typing.cast(Any, None)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    delivery_count: int = 1


_Limit = TypeVar("_Limit", bound=int | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A handler with its declarations. ``call``: the function or object, or the class of which an object is made.

    ``columns``: those of HANDLER_COLUMNS it needs, None for all; others are not read or converted. ``timeout_ms``: the
    time limit of a call, None for none. ``output``: the schema of its output rows, None for none. ``batch``: most
    records of a call, and ``linger_s``: how long the first of them waits for others, None if a call has one.
    ``threads`` that make the calls, None if no threads do. ``cost``: says before the call what a record costs
    (``costs``), None if only answers do. ``values``: what it wants of values, None: bytes as they are, in their record;
    ``argument_of`` is made of that when the handler is opened (``handler_objects``).
    """

    name: str
    kind: HandlerKind
    call: Callable[[Any], Any] = field(repr=False)
    columns: tuple[str, ...] | None = None
    timeout_ms: int | None = None
    output: pa.Schema | None = None
    batch: int | None = None
    linger_s: float | None = None
    threads: int | None = None
    cost: CostFunction | None = field(default=None, repr=False)
    values: Values | None = field(default=None, repr=False)
    argument_of: ArgumentOf | None = field(default=None, repr=False)

    def limit_ms(self, default_ms: _Limit) -> int | _Limit:
        """Return the time limit of a call. ``default_ms``: that of the group, for handlers without one."""
        return default_ms if self.timeout_ms is None else self.timeout_ms

    @property
    def waits(self) -> bool:
        """Whether many calls run at a time: a call is a coroutine (``async def``), or it has a thread of its own."""
        return self.threads is not None or is_async(self.call)

    @property
    def call_of_record(self) -> Callable[[Record], Any]:
        """The call for a record. Where its value has to be decoded first, it may raise UndecodableError."""
        call, argument_of = self.call, self.argument_of
        if self.values is None:
            return call
        assert argument_of is not None, "a handler is opened before it is called"
        return lambda record: call(argument_of(record))

    def argument(self, record: Record) -> Any:
        """Return the argument of the opened handler for a record. May raise UndecodableError."""
        return record if self.argument_of is None else self.argument_of(record)

    def calls_at_a_time(self, most: int) -> int:
        """Return how many calls may run at a time, where ``most`` are allowed."""
        return most if self.threads is None else min(most, self.threads)

    @property
    def no_rows(self) -> pa.Table | None:
        """An empty table of output rows, None if there is no schema."""
        return None if self.output is None else self.output.empty_table()

    def records_in(self, calls: int) -> int:
        """Return how many records so many calls have."""
        return calls * (self.batch or 1)


# --------------------------------------------------------------------------------------- decorators

_F = TypeVar("_F", bound=Callable[..., Any])
_Decorator = Callable[[_F], _F]
_DECLARED = "__share_spark_handler__"
_OF_RECORDS = (HandlerKind.RECORD, HandlerKind.LIST)

ValueFrom = Callable[..., Any] | str
"""The decoder of values, or a function that makes it (``values``); or ``"module:name"`` of one."""


class _Settings(NamedTuple):
    """The settings of a handler, as users write them; None where there is none."""

    columns: Sequence[str] | None = None
    timeout_ms: int | None = None
    batch: int | None = None
    linger: float | None = None
    threads: int | None = None
    cost: CostFunction | str | None = None
    value_from: ValueFrom | None = None


class _Declared(NamedTuple):
    kind: HandlerKind | None = None
    settings: _Settings = _Settings()


@overload
def record_handler(function: _F) -> _F: ...
@overload
def record_handler(
    *,
    columns: Sequence[str] | None = None,
    timeout_ms: int | None = None,
    threads: int | None = None,
    cost: CostFunction | str | None = None,
    value_from: ValueFrom | None = None,
) -> _Decorator[_F]: ...
def record_handler(function: Any = None, **declared: Any) -> Any:
    """Mark a function of one Record, or of its value. With or without options: ``columns``, ``timeout_ms``,
    ``threads``, ``cost``, ``value_from``."""
    return _decorated(HandlerKind.RECORD, function, declared)


@overload
def list_handler(function: _F) -> _F: ...
@overload
def list_handler(
    *,
    batch: int | None = None,
    linger: float | None = None,
    columns: Sequence[str] | None = None,
    timeout_ms: int | None = None,
    cost: CostFunction | str | None = None,
    value_from: ValueFrom | None = None,
) -> _Decorator[_F]: ...
def list_handler(function: Any = None, **declared: Any) -> Any:
    """Mark an ``async`` function of a list of Record, at most ``batch`` of them; the first one waits for others for
    ``linger`` seconds at most."""
    return _decorated(HandlerKind.LIST, function, declared)


@overload
def arrow_handler(function: _F) -> _F: ...
@overload
def arrow_handler(
    *, columns: Sequence[str] | None = None, timeout_ms: int | None = None, cost: CostFunction | str | None = None
) -> _Decorator[_F]: ...
def arrow_handler(function: Any = None, **declared: Any) -> Any:
    """Mark a function of a ``pyarrow.RecordBatch`` (of a ``pyarrow.Table`` if its parameter is annotated so)."""
    return _decorated(HandlerKind.ARROW, function, declared)


@overload
def pandas_handler(function: _F) -> _F: ...
@overload
def pandas_handler(
    *, columns: Sequence[str] | None = None, timeout_ms: int | None = None, cost: CostFunction | str | None = None
) -> _Decorator[_F]: ...
def pandas_handler(function: Any = None, **declared: Any) -> Any:
    """Mark a function of a ``pandas.DataFrame``."""
    return _decorated(HandlerKind.PANDAS, function, declared)


def frame_handler(function: _F) -> _F:
    """Mark a function of a Spark DataFrame that returns one with topic, partition, offset, ack, and optionally error
    and delay_ms.

    It is called on the driver. Its operations on the frame run in Spark's own tasks, which Spark repeats after a
    failure: the guarantee of one call per record and delivery holds for the other kinds only.
    """
    return typing.cast(_F, _decorated(HandlerKind.FRAME, function, {}))


def _decorated(kind: HandlerKind, function: Any, declared: dict[str, Any]) -> Any:
    if function is None:
        return functools.partial(_decorated, kind, declared=declared)
    return _mark(function, _Declared(kind, _Settings(**declared)))


def _mark(function: Any, declared: _Declared) -> Any:
    """Return the function itself with a note on it, so that it still pickles by its name; a method gets a wrapper."""
    try:
        setattr(function, _DECLARED, declared)
    except (AttributeError, TypeError):
        function = functools.partial(function)
        setattr(function, _DECLARED, declared)
    return function


# ----------------------------------------------------------------------- from a function to a Handler


def as_handler(
    handler: Handler | Callable[..., Any] | str,
    *,
    output: OutputSchema | None = None,
    columns: Sequence[str] | None = None,
    timeout_ms: int | None = None,
    batch: int | None = None,
    linger: float | None = None,
    threads: int | None = None,
    cost: CostFunction | str | None = None,
    value_from: ValueFrom | None = None,
) -> Handler:
    """Return the handler with its kind inferred and its settings checked; arguments win over the decorator.

    ``handler``: a function, an object or its class, or ``"module:name"`` of one. ``output``: a DDL string (which needs
    a running session), a StructType or an Arrow schema. The others are those of Handler; ``cost`` may be a
    name as well, and so may ``value_from``, which says how values are made (``values``). Raises HandlerError: cannot be
    imported, not callable, a generator function, a class that needs arguments, unknown column, values of a type that
    cannot be decoded, a setting out of its range or of another kind of handler.
    """
    settings = _Settings(columns, timeout_ms, batch, linger, threads, cost, value_from)
    parameter: Parameter | None = None
    if isinstance(handler, Handler):
        made = handler if output is None else replace(handler, output=arrow_output(output, handler.name))
    else:
        function = load_handler(handler) if isinstance(handler, str) else handler
        name = handler_name(handler)
        _check_callable(function, name)
        declared = _declared(function)
        settings = _Settings(*map(_first, settings, declared.settings))
        parameter = _parameter(function, declared.kind, settings.value_from is not None, name)
        made = Handler(
            name=name,
            kind=_kind(parameter.kind, declared.kind, settings),
            call=function,
            output=arrow_output(output, name) if output is not None else None,
        )
    made = _with(made, settings)
    if parameter is not None or value_from is not None:
        made = _with_values(made, parameter, settings.value_from)
    _check(made)
    return made


def shown_name(handler: Handler | None) -> str:
    """Return the name of a group's handler, for people."""
    return "none: for clients only" if handler is None else handler.name


def _declared(function: Any) -> _Declared:
    """Return what a decorator has noted: on the function, object or class, or on its ``__call__``."""
    noted = (getattr(one, _DECLARED, None) for one in (function, *called(function)))
    return next((one for one in noted if one is not None), _Declared())


def _with(handler: Handler, settings: _Settings) -> Handler:
    """Return the handler with the settings that there are; those of a list have defaults."""
    columns, timeout_ms, batch, linger_s, threads, cost, _ = settings
    if handler.kind is HandlerKind.LIST:
        batch = _first(batch, _first(handler.batch, DEFAULT_BATCH))
        linger_s = _first(linger_s, _first(handler.linger_s, DEFAULT_LINGER_S))
    values = {
        "columns": None if columns is None else tuple(columns),
        "timeout_ms": timeout_ms,
        "batch": batch,
        "linger_s": linger_s,
        "threads": threads,
        "cost": load_handler(cost, "cost function") if isinstance(cost, str) else cost,
    }
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return replace(handler, **given) if given else handler


def _with_values(handler: Handler, parameter: Parameter | None, value_from: ValueFrom | None) -> Handler:
    """Return the handler with what it wants of values. One that gets values alone reads nothing else."""
    found = parameter or _parameter(handler.call, handler.kind, value_from is not None, handler.name)
    made_from = load_handler(value_from, "value_from") if isinstance(value_from, str) else value_from
    values = values_of(found, handler.kind, made_from, handler.name)
    if values is None or values.in_record or handler.cost is not None or handler.columns is not None:
        return replace(handler, values=values)
    return replace(handler, values=values, columns=("value", "headers"))


def _first(given: Any, declared: Any) -> Any:
    return given if given is not None else declared


def _check_callable(function: Any, name: str) -> None:
    if not callable(function):
        raise HandlerError(f"handler {name} is not a function: it is of type {type(function).__name__}")
    if not called(function):
        raise HandlerError(f"handler {name} is a class whose objects are no functions: it has no __call__")


def _check(handler: Handler) -> None:
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in called(handler.call)):
        raise HandlerError(
            f"handler {handler.name} is a generator function (it has yield): a handler returns its answer"
        )
    check_calls(handler)
    unknown = sorted(set(handler.columns or ()) - set(HANDLER_COLUMNS))
    if unknown:
        raise HandlerError(f"handler {handler.name}: there is no column {', '.join(unknown)} to read")
    if handler.values is not None and handler.columns is not None and "value" not in handler.columns:
        raise HandlerError(f"handler {handler.name}: its columns have no value, which has to be decoded")
    if handler.timeout_ms is not None and handler.timeout_ms <= 0:
        raise HandlerError(f"handler {handler.name}: timeout_ms is {handler.timeout_ms}, not above 0")
    if handler.kind is HandlerKind.FRAME and (handler.output or handler.timeout_ms or handler.cost):
        text = "a frame handler has no output schema, no time limit and no cost function"
        raise HandlerError(f"handler {handler.name}: {text}")
    cost: Any = handler.cost
    if cost is not None and (not callable(cost) or is_async(cost)):
        raise HandlerError(f"handler {handler.name}: cost is no function that returns a number for a record")
    check_object(handler)


def _parameter(function: Any, declared: HandlerKind | None, any_value: bool, name: str) -> Parameter:
    """Return what the handler takes, as its annotation says. Raises HandlerError: the decorator says something else."""
    try:
        found = parameter_of(function, name, any_value=any_value)
    except HandlerError:
        if declared in (None, *_OF_RECORDS):
            raise
        return Parameter(declared)  # of a table: its annotation is nobody's business
    if declared in _OF_RECORDS and found.kind in _OF_RECORDS and declared is not found.kind:
        raise HandlerError(f"handler {name}: it is marked as a {declared} handler, and annotated for a {found.kind}")
    return found


def _kind(annotated: HandlerKind | None, declared: HandlerKind | None, settings: _Settings) -> HandlerKind:
    """Return the declared kind, else the kind of the annotation; else LIST for a handler of batches, RECORD for any
    other."""
    if declared is None:
        return annotated or (HandlerKind.RECORD if settings.batch is None else HandlerKind.LIST)
    table = declared is HandlerKind.ARROW and annotated is HandlerKind.TABLE
    return HandlerKind.TABLE if table else declared
