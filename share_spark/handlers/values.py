"""Values of records as handlers want them: how bytes are decoded, and what becomes of a record if they cannot be.

    bill(order: Order)                   JSON, which pydantic decodes and checks
    process(bill, value_from=Decoder)    whatever a function of the user's makes of the bytes

A value that cannot be decoded is the record's fault, and UndecodableError says so: the record is rejected, and the
handler not called with it. That takes evidence: the decoder has raised an error about data, and so has whatever is
behind that error (its causes). Anything else (a registry that is away, an error that nobody knows) is raised as it is,
like an exception of the handler's own, and the record is tried again: a topic must not become dead letters because a
service has failed.

A decoder of a schema registry has a client, which cannot travel to the workers. So ``value_from`` may also be a class,
or a function without parameters, that makes the decoder where it is used.
"""

from __future__ import annotations

import inspect
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from share_spark.handlers.error_texts import NO_FAULTS, error_text, exception_text, shown
from share_spark.handlers.kinds import HandlerKind, called, function_in, is_async
from share_spark.handlers.parameters import Parameter, allows_none, type_text
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

    from share_spark.handlers.handler import Record

ArgumentOf: TypeAlias = "Callable[[Record], Any]"
"""The argument of a call for a record. Raises UndecodableError, and whatever else a decoder raises."""

_FAULTS_OF_DATA = ValueError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error
"""No TypeError or AttributeError: where a decoder is set up wrongly, it raises them for each record."""

_NAMED_FAULTS_OF_DATA = {
    ("confluent_kafka", "SerializationError"),
    ("fastavro", "SchemaResolutionException"),
    ("google", "DecodeError"),
    ("jsonschema", "ValidationError"),
}
"""Exceptions by package and class, which are recognized without an import."""

_MOST_FAULTS = 5
"""The faults of a value that its error lists."""

_NULL = "the value is null"


class UndecodableError(HandlerError):
    """A value that the handler cannot get: the record's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values that a handler wants. ``made_from``: as the user has given it (``value_from``), None: from JSON, which
    ``json`` decodes into ``json_type``. ``in_record``: the value is a part of its record. ``takes_null``: a null value
    is None for the handler, else it is undecodable. ``handler``: its name."""

    handler: str
    made_from: Callable[..., Any] | None = None
    json: TypeAdapter[Any] | None = None
    json_type: str = ""
    in_record: bool = True
    takes_null: bool = True

    def argument_of(self) -> ArgumentOf:
        """Return what makes the arguments of calls, with its decoder made. Raises HandlerError: it cannot be made."""
        decoded = self._decoder()
        in_record, takes_null = self.in_record, self.takes_null

        def argument(record: Record) -> Any:
            value: Any = record.value
            if value is not None:
                value = decoded(record)
            elif not takes_null:
                raise UndecodableError(_NULL)
            return record._replace(value=value) if in_record else value

        return argument

    def _decoder(self) -> ArgumentOf:
        """Return what decodes the value of a record."""
        if self.json is not None:
            return _from_json(self.json, self.json_type)
        assert self.made_from is not None
        return _by(_made(self.made_from, self.handler))


def values_of(
    parameter: Parameter, kind: HandlerKind, made_from: Callable[..., Any] | None, handler: str
) -> Values | None:
    """Return what the ``handler`` of this name and kind wants of values; None: bytes as they are, in their record.
    Raises HandlerError: values of this type cannot be made, or a handler of this kind has none."""
    takes_null = parameter.value is None or allows_none(parameter.value)
    common: dict[str, Any] = {"handler": handler, "in_record": parameter.in_record, "takes_null": takes_null}
    if made_from is not None:
        _check_source(made_from, kind, handler)
        return Values(**common, made_from=made_from)
    if parameter.value is None or kind not in (HandlerKind.RECORD, HandlerKind.LIST):
        return None
    return Values(**common, json=_adapter(parameter.value, handler), json_type=type_text(parameter.value))


def _check_source(made_from: Any, kind: HandlerKind, handler: str) -> None:
    if kind not in (HandlerKind.RECORD, HandlerKind.LIST):
        raise HandlerError(f"handler {handler}: value_from is for handlers of a record, or of a list of records")
    if not callable(made_from) or not called(made_from):
        raise HandlerError(f"handler {handler}: value_from is {shown(made_from)}, not a function of bytes")
    if isinstance(function_in(made_from), type) and not _needs_no_argument(made_from):
        text = "value_from is a class that is made with arguments: give an object, or a function that makes one"
        raise HandlerError(f"handler {handler}: {text}")
    if is_async(made_from):
        raise HandlerError(f"handler {handler}: value_from is async: a value is decoded at once")


# ----------------------------------------------------------------------------------------------- JSON


def _adapter(value: Any, handler: str) -> TypeAdapter[Any]:
    """Return pydantic's decoder for values of this type. Raises HandlerError: there is none."""
    try:
        from pydantic import TypeAdapter
    except ImportError:
        text = 'typed values are decoded by pydantic, which is not installed: pip install "share_spark[typed]"'
        raise HandlerError(f"handler {handler}: {text}") from None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(value)
        if not adapter.pydantic_complete:  # a name in it was not there when the class was made
            adapter.rebuild(raise_errors=True)
    except Exception as fault:  # noqa: BLE001 - code of the user's classes runs as well
        reason = str(fault).partition("\n")[0]
        raise HandlerError(f"handler {handler}: pydantic cannot decode {type_text(value)}: {reason}") from None
    return adapter


def _from_json(adapter: TypeAdapter[Any], type_name: str) -> ArgumentOf:
    from pydantic import ValidationError

    decode = adapter.validate_json

    def decoded(record: Record) -> Any:
        try:
            return decode(record.value)  # type: ignore[arg-type]
        except ValidationError as fault:
            raise UndecodableError(error_text(f"the value is no {type_name}: {_validation_text(fault)}")) from None

    return decoded


def _validation_text(fault: ValidationError) -> str:
    """Return the faults of a value with their places, on one line. The value itself is not shown: it may be a secret,
    and it is in the dead letter."""
    faults = fault.errors(include_url=False, include_input=False, include_context=False)
    texts = [": ".join([".".join(map(str, one["loc"])), one["msg"]][not one["loc"] :]) for one in faults[:_MOST_FAULTS]]
    more = f", and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
    return " ".join(f"{'; '.join(texts)}{more}".split())


# ------------------------------------------------------------------------------ functions of the user's


def _made(made_from: Callable[..., Any], handler: str) -> Callable[..., Any]:
    """Return the decoder. Raises HandlerError: it cannot be made, or is none."""
    if not _needs_no_argument(made_from):
        return made_from
    try:
        decoder = made_from()
    except NO_FAULTS:
        raise
    except BaseException as fault:  # noqa: BLE001 - whatever a client does
        raise HandlerError(f"handler {handler}: value_from cannot be made: {exception_text(fault)}") from None
    if not callable(decoder) or is_async(decoder):
        raise HandlerError(f"handler {handler}: value_from made {shown(decoder)}, not a function of bytes")
    return decoder  # type: ignore[no-any-return]


def _by(decoder: Callable[..., Any]) -> ArgumentOf:
    """Return the decoder as a function of records."""
    decode: ArgumentOf
    if _wants_context(decoder):
        from confluent_kafka.serialization import MessageField, SerializationContext

        def decode(record: Record) -> Any:
            context = SerializationContext(record.topic, MessageField.VALUE, [*record.headers])
            return decoder(record.value, context)
    else:

        def decode(record: Record) -> Any:
            return decoder(record.value)

    def decoded(record: Record) -> Any:
        try:
            return decode(record)
        except NO_FAULTS:
            raise
        except Exception as fault:
            if all(map(_is_of_data, _with_causes(fault))):
                raise UndecodableError(error_text(f"the value cannot be decoded: {exception_text(fault)}")) from None
            raise

    return decoded


def _wants_context(decoder: Callable[..., Any]) -> bool:
    """Return whether the decoder takes a SerializationContext: one of confluent-kafka's, or a function of two
    arguments."""
    from confluent_kafka.serialization import Deserializer

    return isinstance(decoder, Deserializer) or (_takes(decoder, 2) and not _takes(decoder, 1))


def _needs_no_argument(function: Callable[..., Any]) -> bool:
    return _takes(function, 0)


def _takes(function: Callable[..., Any], many: int) -> bool:
    """Return whether it can be called with so many arguments; False if nobody knows, as for functions in C."""
    try:
        inspect.signature(function).bind(*[None] * many)
    except (TypeError, ValueError):
        return False
    return True


def _with_causes(fault: BaseException) -> Iterator[BaseException]:
    """Yield the exception, and what was behind it."""
    seen: set[int] = set()
    cause: BaseException | None = fault
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__


def _is_of_data(fault: BaseException) -> bool:
    """Return whether the exception says that data is wrong. One of a failed service may be both, a ValueError as well:
    it is an OSError then."""
    if isinstance(fault, OSError):
        return False
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(fault).__mro__}
    return isinstance(fault, _FAULTS_OF_DATA) or not _NAMED_FAULTS_OF_DATA.isdisjoint(names)
