"""Values as handlers want them: JSON by pydantic, and what functions of the user's make of bytes. The registry is
confluent-kafka's own in memory, and where it fails, a server that fails. No JVM."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pydantic
import pytest
import requests
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError, StringDeserializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, strategies
from typing_extensions import TypedDict

from share_spark import Record, record_handler
from share_spark.delivery.packed_handler import packed, unpacked
from share_spark.handlers.handler import as_handler
from share_spark.handlers.handler_objects import opened
from share_spark.handlers.values import UndecodableError
from share_spark.model.errors import HandlerError


class Kind(enum.Enum):
    CASH = "cash"


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    sku: str
    price: decimal.Decimal


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    at: datetime.datetime
    items: list[Item]
    kind: Kind = Kind.CASH
    note: str | None = None


class Bill(TypedDict, total=False):
    order: Order
    paid: bool


class Model(pydantic.BaseModel):
    amount: int

    @pydantic.field_validator("amount")
    @classmethod
    def positive(cls, amount: int) -> int:
        if amount <= 0:
            raise ValueError(f"{amount} is not\nabove 0")
        return amount


ID = uuid.UUID(int=7)
ORDER = b'{"id": "%s", "at": "2026-11-25T19:00:00Z", "items": [{"sku": "a", "price": "1.50"}]}' % str(ID).encode()
KNOWN = Order(ID, datetime.datetime(2026, 11, 25, 19, tzinfo=datetime.UTC), [Item("a", decimal.Decimal("1.50"))])


def of(annotation: Any) -> Callable[[Any], Any]:
    def function(one: Any) -> Any: ...

    function.__annotations__["one"] = annotation
    return function


def record(value: bytes | None) -> Record:
    return Record("orders", 1, 42, key=b"k", value=value, headers=(("h", b"v"),), delivery_count=3)


def argument(handler: Callable[..., Any], value: bytes | None, **settings: Any) -> Any:
    """What the handler gets for a value."""
    made = opened(as_handler(handler, **settings))
    assert made.argument_of is not None
    return made.argument_of(record(value))


# ----------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("annotation", "value", "decoded"),
    [
        (Order, ORDER, KNOWN),
        ("Order | None", ORDER, KNOWN),
        (Bill, b'{"order": %s}' % ORDER, {"order": KNOWN}),
        (Model, b'{"amount": 3}', Model(amount=3)),
        (Model | Bill, b'{"paid": true}', {"paid": True}),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
    ],
)
def test_a_value_alone_and_in_its_record(annotation: Any, value: bytes, decoded: Any) -> None:
    assert argument(of(annotation), value) == decoded
    in_record = Record[annotation] if not isinstance(annotation, str) else f"Record[{annotation}]"
    assert argument(of(in_record), value) == record(value)._replace(value=decoded)


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (Order, b"{", "the value is no Order: Invalid JSON: EOF while parsing an object at line 1 column 1"),
        (Order, b"\xff", "the value is no Order: Invalid JSON: "),
        (Order, b"", "the value is no Order: Invalid JSON: "),
        (Order, b"[" * 100_000, "the value is no Order: Invalid JSON: recursion limit exceeded"),
        (Order, b"null", "the value is no Order: Input should be an object"),
        (Order, b"{}", "the value is no Order: id: Field required; at: Field required; items: Field required"),
        (Order, ORDER.replace(b"1.50", b"x"), "the value is no Order: items.0.price: Input should be a valid decimal"),
        (Model, b'{"amount": -1}', "the value is no Model: amount: Value error, -1 is not above 0"),
        (dict[str, int], b'{"a": "x"}', r"the value is no dict\[str, int\]: a: Input should be a valid integer"),
        (dict[str, int], b'{"\\ud83d": "x"}', r"the value is no dict\[str, int\]: Invalid JSON: "),
        (dict[str, int], json.dumps(dict.fromkeys("abcdefgh", "x")).encode(), ".*; e: Input.*, and 3 more$"),
    ],
)
def test_what_cannot_be_decoded_has_a_reason_on_one_line(annotation: Any, value: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError, match=f"^{reason}") as raised:
        argument(of(annotation), value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 1_000


@given(strategies.binary(max_size=40) | strategies.text(max_size=20).map(lambda text: json.dumps(text).encode()))
def test_whatever_bytes_come_they_are_a_value_or_have_a_reason(value: bytes) -> None:
    decode = opened(as_handler(of(dict[str, Order]))).argument_of
    assert decode is not None
    try:
        assert isinstance(decode(record(value)), dict)
    except UndecodableError as fault:
        assert str(fault).startswith("the value is no dict[str, ")  # noqa: PT017 - a value may also be right


def test_a_null_value() -> None:
    assert argument(of("Order | None"), None) is None
    assert argument(of("Record[Order | None]"), None) == record(None)
    for annotation in (Order, "Record[Order]"):
        with pytest.raises(UndecodableError, match=r"^the value is null$"):
            argument(of(annotation), None)


def test_the_error_of_a_validator_that_is_no_value_error_is_not_the_records_fault() -> None:
    class Asks(pydantic.BaseModel):
        @pydantic.model_validator(mode="before")
        @classmethod
        def ask(cls, _: Any) -> Any:
            raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        argument(of(Asks), b"{}")


class Node:
    """A class that pydantic does not know."""


@dataclasses.dataclass
class HasNode:
    node: Node


@dataclasses.dataclass
class Lacks:
    other: Missing  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (HasNode, "pydantic cannot decode HasNode: Unable to generate pydantic-core schema for .*Node"),
        (Lacks, "pydantic cannot decode Lacks: name 'Missing' is not defined"),
        (Record[Lacks], "pydantic cannot decode Lacks: name 'Missing' is not defined"),
        (list[Lacks], "pydantic cannot decode Lacks: name 'Missing' is not defined"),
    ],
)
def test_a_type_that_cannot_be_decoded_is_refused_at_once(annotation: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=f"^handler .*: {message}.*$") as raised:
        as_handler(of(annotation))
    assert "\n" not in str(raised.value)


def test_without_pydantic_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(HandlerError, match=r'is not installed: pip install "share_spark\[typed\]"$'):
        as_handler(of(Order))
    assert as_handler(of(Record)).values is None


def test_a_handler_without_typed_values_stays_as_it_was() -> None:
    def plain(record): ...

    handler = opened(as_handler(plain))
    assert handler.call_of_record is plain
    assert handler.columns is None


def test_a_handler_of_values_alone_reads_only_them() -> None:
    assert as_handler(of(Order)).columns == ("value", "headers")
    assert as_handler(of(Record[Order])).columns is None
    assert as_handler(of(Order), cost=len).columns is None
    with pytest.raises(HandlerError, match=r"its columns have no value, which has to be decoded$"):
        as_handler(of(Order), columns=["key"])


def test_it_travels_with_the_handler_and_always_in_the_same_form() -> None:
    """A worker opens a handler again if it comes in another form."""
    handler = as_handler(of(Order))
    before = packed(handler)
    assert argument(handler, ORDER) == KNOWN
    assert packed(handler) == before
    assert argument(unpacked(handler.name, before), ORDER) == KNOWN


# -------------------------------------------------------------------------------- functions of the user's


def doubled(value: bytes) -> bytes:
    return value * 2


def with_context(value: bytes, context: SerializationContext) -> tuple[Any, ...]:
    return value, context.topic, context.field, context.headers


class Shifts:
    """A decoder that is made in the worker."""

    def __init__(self, by: int = 1) -> None:
        self.by = by

    def __call__(self, value: bytes) -> bytes:
        return bytes(one + self.by for one in value)


@pytest.mark.parametrize(
    ("value_from", "decoded"),
    [
        (doubled, b"abab"),
        (f"{__name__}:doubled", b"abab"),
        (with_context, (b"ab", "orders", MessageField.VALUE, [("h", b"v")])),
        (StringDeserializer(), "ab"),
        (bytes.decode, "ab"),
        (Shifts(), b"bc"),
        (Shifts, b"bc"),
        (functools.partial(Shifts, 2), b"cd"),
        (lambda: Shifts(3), b"de"),
        (lambda: doubled, b"abab"),
    ],
)
def test_value_from(value_from: Any, decoded: Any) -> None:
    assert argument(lambda _: None, b"ab", value_from=value_from) == record(b"ab")._replace(value=decoded)
    assert argument(of(Record[bytes]), b"ab", value_from=value_from).value == decoded
    assert argument(of(int), b"ab", value_from=value_from) == decoded
    assert argument(record_handler(value_from=value_from)(of(int)), b"ab") == decoded
    assert argument(as_handler(of(Model)), b"ab", value_from=value_from) == decoded
    assert argument(lambda _: None, None, value_from=value_from).value is None


def test_a_null_value_is_not_decoded() -> None:
    assert argument(of(Any), None, value_from=doubled) == record(None)
    assert argument(of(int | None), None, value_from=doubled) is None
    with pytest.raises(UndecodableError, match=r"^the value is null$"):
        argument(of(int), None, value_from=doubled)


@pytest.mark.parametrize(
    ("value_from", "message"),
    [
        (12, "value_from is 12, not a function of bytes$"),
        (Node, "value_from is <class .*, not a function of bytes$"),
        (
            AvroDeserializer,
            "value_from is a class that is made with arguments: give an object, or a function that makes o",
        ),
        ("nowhere:f", "^value_from nowhere:f: module nowhere does not import"),
        ("json:__name__", "^value_from json:__name__ is not a function: it is of type str$"),
    ],
)
def test_what_makes_no_values_is_refused(value_from: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        as_handler(lambda _: None, value_from=value_from)


def test_an_async_decoder_and_a_handler_of_tables_are_refused() -> None:
    async def waits(value: bytes): ...

    with pytest.raises(HandlerError, match=r"value_from is async: a value is decoded at once$"):
        as_handler(lambda _: None, value_from=waits)
    with pytest.raises(HandlerError, match=r"value_from is for handlers of a record, or of a list of records$"):
        as_handler(of("pandas.DataFrame"), value_from=doubled)


def fails() -> Any:
    raise OSError("no\nlicense")


@pytest.mark.parametrize(
    ("value_from", "message"),
    [
        (fails, "value_from cannot be made: OSError: no\nlicense"),
        (lambda: 12, "value_from made 12, not a function of bytes"),
    ],
)
def test_a_decoder_that_cannot_be_made_is_a_fault_of_the_handler(value_from: Any, message: str) -> None:
    with pytest.raises(HandlerError) as raised:
        opened(as_handler(lambda _: None, value_from=value_from))
    assert message in str(raised.value)


class HttpError(Exception):
    """As services raise it, and no OSError."""


def raising(
    fault: BaseException, behind: BaseException | None = None, *, hides: bool = False
) -> Callable[[bytes], Any]:
    def decode(value: bytes) -> Any:
        if behind is None:
            raise fault
        try:
            raise behind
        except BaseException:  # noqa: BLE001 - as they are raised
            if hides:
                raise fault from None
            raise fault  # noqa: B904 - what is behind it stays to be seen

    return decode


@pytest.mark.parametrize(
    "decoder",
    [
        raising(ValueError("x")),
        raising(KeyError("x")),
        raising(EOFError()),
        raising(OverflowError("x")),
        raising(SerializationError("x")),
        raising(SerializationError("x"), KeyError("x")),
        raising(ValueError("x"), StopIteration(), hides=True),
        json.loads,
        Model.model_validate_json,
    ],
)
def test_an_error_about_data_is_the_records_fault(decoder: Callable[[bytes], Any]) -> None:
    with pytest.raises(UndecodableError, match=r"^the value cannot be decoded: "):
        argument(lambda _: None, b"{x", value_from=decoder)


@pytest.mark.parametrize(
    "fault",
    [
        *(OSError("x"), TimeoutError(), HttpError("x"), MemoryError(), TypeError("x"), SystemExit(1)),
        requests.JSONDecodeError("x", "x", 0),  # a ValueError as well
    ],
)
def test_any_other_error_is_not_the_records_fault(fault: BaseException) -> None:
    for decoder in (raising(fault), raising(SerializationError("x"), fault)):
        with pytest.raises((type(fault), SerializationError)):
            argument(lambda _: None, b"x", value_from=decoder)


# ------------------------------------------------------------------------------------- schema registries

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
VALUE = SerializationContext("orders", MessageField.VALUE)


def protobuf_order() -> Any:
    """The class of messages with an id."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    number = descriptor_pb2.FieldDescriptorProto(name="id", number=1, type=3, label=1)
    file.message_type.add(name="Order").field.append(number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def avro(registry: SchemaRegistryClient) -> tuple[bytes, Any]:
    return AvroSerializer(registry, AVRO)({"id": 7}, VALUE), AvroDeserializer(registry)


def json_schema(registry: SchemaRegistryClient) -> tuple[bytes, Any]:
    return JSONSerializer(JSON, registry)({"id": 7}, VALUE), JSONDeserializer(None, schema_registry_client=registry)


def protobuf(registry: SchemaRegistryClient) -> tuple[bytes, Any]:
    made = protobuf_order()
    serializer = ProtobufSerializer(made, registry)
    return serializer(made(id=7), VALUE), ProtobufDeserializer(made, {"use.deprecated.format": False}, registry)


def registry() -> SchemaRegistryClient:
    """One in the memory of the client."""
    return SchemaRegistryClient.new_client({"url": f"mock://{uuid.uuid4()}"})


@pytest.mark.parametrize("form", [avro, json_schema, protobuf])
def test_the_deserializers_of_confluent_kafka(form: Any) -> None:
    value, decoder = form(registry())
    found = argument(of(object), value, value_from=decoder).value
    assert (found["id"] if isinstance(found, dict) else found.id) == 7
    assert argument(of(object), value, value_from=lambda: decoder).value == found
    assert argument(of(object), None, value_from=decoder).value is None
    for wrong in (b"", b"{}", b"x" * 40, value[:-1], value[:5] + b"\xff" * 9):
        with pytest.raises(UndecodableError, match=r"^the value cannot be decoded: ") as raised:
            argument(of(object), wrong, value_from=decoder)
        assert not isinstance(raised.value.__cause__, OSError)


def test_a_schema_that_the_registry_does_not_have_may_come_yet() -> None:
    value, decoder = avro(registry())
    with pytest.raises(Exception, match="Schema Not Found") as raised:
        argument(of(object), b"\0\0\0\1\1" + value[5:], value_from=decoder)
    assert not isinstance(raised.value, UndecodableError)


class Failing(BaseHTTPRequestHandler):
    """A registry that has a fault."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def failing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("form", [avro, json_schema, protobuf])
@pytest.mark.parametrize("status", [401, 404, 429, 500, 503, None])
def test_the_outage_of_a_registry_is_not_the_records_fault(form: Any, status: int | None, failing: str) -> None:
    value, _ = form(registry())
    url = "http://127.0.0.1:9" if status is None else f"{failing}/{status}"
    away = SchemaRegistryClient({"url": url, "max.retries": 0, "timeout": 5})
    decoder = {avro: AvroDeserializer(away), json_schema: JSONDeserializer(None, schema_registry_client=away)}.get(
        form, ProtobufDeserializer(protobuf_order(), {"use.deprecated.format": False}, away)
    )
    with pytest.raises(Exception, match=r"status code|refused") as raised:
        argument(of(object), value, value_from=decoder)
    assert not isinstance(raised.value, UndecodableError)


def test_a_decoder_that_cannot_travel_is_named_with_what_to_do() -> None:
    _, decoder = avro(registry())
    with pytest.raises(
        HandlerError, match=r"value_from cannot be sent to the workers: .*: give a function without param"
    ):
        packed(as_handler(of(object), value_from=decoder))
    payload = packed(as_handler(of(object), value_from=lambda: AvroDeserializer(registry())))
    assert opened(unpacked("jobs:bill", payload)).argument_of is not None
