"""What handlers take, as the annotations of their first parameters say. No JVM."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pydantic
import pytest
from typing_extensions import TypedDict

from share_spark import Record, list_handler, pandas_handler, record_handler
from share_spark.handlers.handler import as_handler
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.parameters import Parameter, parameter_of
from share_spark.model.errors import HandlerError

T = TypeVar("T")


@dataclasses.dataclass
class Order:
    id: int


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


class Bill(TypedDict):
    id: int


class Model(pydantic.BaseModel):
    id: int


class Asks:
    def __call__(self, order: Order) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821 - only the first one counts

    def method(self, order: Order): ...


class HasOffset(Protocol):
    offset: int


def of(annotation: Any):
    def function(one): ...

    function.__annotations__["one"] = annotation
    return function


ALONE = functools.partial(Parameter, HandlerKind.RECORD, in_record=False)


@pytest.mark.parametrize(
    ("annotation", "parameter"),
    [
        (Order, ALONE(Order)),
        ("Order", ALONE(Order)),
        (Bill, ALONE(Bill)),
        (Model, ALONE(Model)),
        ("Order | None", ALONE(Order | None)),
        ("Annotated[Order | Model, 'either']", ALONE(Annotated[Order | Model, "either"])),
        ("Page[Order]", ALONE(Page[Order])),
        (dict, ALONE(dict)),
        (dict[str, Any], ALONE(dict[str, Any])),
        (Record, Parameter(HandlerKind.RECORD)),
        ("Record | None", Parameter(HandlerKind.RECORD)),
        ("Record[Order]", Parameter(HandlerKind.RECORD, Order)),
        ("Record[list[Order]]", Parameter(HandlerKind.RECORD, list[Order])),
        ("Record[int]", Parameter(HandlerKind.RECORD, int)),
        ("Record[bytes]", Parameter(HandlerKind.RECORD)),
        (Record[bytes | None], Parameter(HandlerKind.RECORD)),
        (Record[Any], Parameter(HandlerKind.RECORD)),
        ("Record[T]", Parameter(HandlerKind.RECORD)),
        (list, Parameter(HandlerKind.LIST)),
        ("list[Any]", Parameter(HandlerKind.LIST)),
        (Sequence[Record], Parameter(HandlerKind.LIST)),
        ("list[Order]", Parameter(HandlerKind.LIST, Order, in_record=False)),
        ("list[Record[Order]]", Parameter(HandlerKind.LIST, Order)),
        ("pa.RecordBatch", Parameter(HandlerKind.ARROW)),
        (Any, Parameter()),
        (object, Parameter()),
        (tuple, Parameter()),
        (T, Parameter()),
        (None, Parameter()),
    ],
)
def test_a_parameter(annotation: Any, parameter: Parameter) -> None:
    assert parameter_of(of(annotation), "jobs:bill") == parameter


@pytest.mark.parametrize("function", [Asks, Asks(), Asks().method, functools.partial(Asks), functools.partial(Asks())])
def test_it_is_found_in_whatever_is_called(function: Any) -> None:
    assert parameter_of(function, "jobs:bill") == ALONE(Order)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("Ordr", "Ordr, as its parameter is annotated, cannot be resolved: NameError: name 'Ordr' is not defined$"),
        ("Record[Ordr]", r"Record\[Ordr\], as its parameter is annotated, cannot be resolved: NameError: "),
        ("1 +", "1 \\+, as its parameter is annotated, cannot be resolved: SyntaxError: "),
        (int, "its parameter is int, which is no record, no table and no type that a value may have "),
        (bytes, "its parameter is bytes, which is no record"),
        ("Order | int", r"Order \| int, which is no record"),
        (HasOffset, "its parameter is HasOffset, which is no record"),
        (list[int], r"its parameter is list\[int\], which is no record"),
        (list[pa.Table], r"its parameter is list\[pyarrow.*Table\], which is no record"),
        (12, "its parameter is 12, which is no record"),
    ],
)
def test_an_annotation_that_means_nothing_is_refused(annotation: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=f"^handler jobs:bill: .*{message}"):
        parameter_of(of(annotation), "jobs:bill")


@pytest.mark.parametrize("annotation", [int, bytes, HasOffset, "Order | int"])
def test_a_function_of_the_users_makes_values_of_any_type(annotation: Any) -> None:
    found = parameter_of(of(annotation), "jobs:bill", any_value=True)
    assert (found.kind, found.in_record) == (HandlerKind.RECORD, False)


def test_a_decorator_that_says_something_else() -> None:
    assert as_handler(pandas_handler(of("whatever"))).kind is HandlerKind.PANDAS
    with pytest.raises(HandlerError, match=r"it is marked as a record handler, and annotated for a list$"):
        as_handler(record_handler(of(list[Order])))
    with pytest.raises(HandlerError, match=r"it is marked as a list handler, and annotated for a record$"):
        as_handler(list_handler(of(Order)))
