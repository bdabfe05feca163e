"""How the kind of a handler is inferred, what is declared about it, and how it is loaded by name. No JVM."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

from share_spark.handlers.handler import (
    Record,
    arrow_handler,
    as_handler,
    frame_handler,
    list_handler,
    pandas_handler,
    record_handler,
)
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.names import load_handler
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    import pyarrow as arrow
    from pyarrow import Table
    from pyspark.sql import DataFrame


def plain(record): ...
def of_record(record: Record): ...
def of_batch(batch: pa.RecordBatch): ...
def of_table(table: pa.Table): ...
def of_pandas(frame: pd.DataFrame): ...
def of_unseen_name(batch: arrow.RecordBatch): ...
def of_unseen_table(table: Table): ...
def of_some_frame(frame: DataFrame): ...


@arrow_handler(columns=["value"], timeout_ms=20)
def decorated(batch): ...


class Model:
    def __call__(self, batch: pa.RecordBatch): ...

    def score(self, record): ...


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (plain, HandlerKind.RECORD),
        (of_record, HandlerKind.RECORD),
        (lambda _: None, HandlerKind.RECORD),
        (print, HandlerKind.RECORD),
        (of_batch, HandlerKind.ARROW),
        (of_table, HandlerKind.TABLE),
        (of_pandas, HandlerKind.PANDAS),
        (functools.partial(of_batch), HandlerKind.ARROW),
        (Model(), HandlerKind.ARROW),
        (arrow_handler(lambda _: None), HandlerKind.ARROW),
        (pandas_handler(lambda _: None), HandlerKind.PANDAS),
        (record_handler(lambda _: None), HandlerKind.RECORD),
        (record_handler(Model().score), HandlerKind.RECORD),
        (frame_handler(lambda records: records), HandlerKind.FRAME),
    ],
)
def test_kind(function: Callable[..., Any], kind: HandlerKind) -> None:
    assert as_handler(function).kind is kind


def test_an_arrow_handler_of_a_table_gets_a_table() -> None:
    def of_own_table(table: pa.Table): ...

    assert as_handler(arrow_handler(of_own_table)).kind is HandlerKind.TABLE


def test_an_annotation_that_cannot_be_resolved_is_read_as_written() -> None:
    assert as_handler(of_unseen_table).kind is HandlerKind.TABLE
    with pytest.raises(
        HandlerError, match=r"arrow.RecordBatch, as its parameter is annotated, cannot be resolved: NameE"
    ):
        as_handler(of_unseen_name)
    assert as_handler(arrow_handler(of_unseen_name)).kind is HandlerKind.ARROW
    with pytest.raises(HandlerError, match="DataFrame may be of pandas or of Spark: use pandas_handler or"):
        as_handler(of_some_frame)


def test_declared_settings_and_those_given_later() -> None:
    handler = as_handler(decorated)
    assert (handler.columns, handler.timeout_ms) == (("value",), 20)
    assert as_handler(decorated, columns=["key"]).columns == ("key",)
    assert as_handler(handler) is handler


def test_a_decorated_function_stays_itself_and_pickles_by_name() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ["valeu"]}, "there is no column valeu to read"),
        ({"timeout_ms": 0}, "timeout_ms is 0, not above 0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        as_handler(plain, **settings)


async def waits(record): ...
async def gives_and_waits(record):
    yield


def gives(record):
    yield


class Waiting:
    async def __call__(self, record): ...

    async def bill(self, record): ...

    def gives(self, record):  # noqa: ARG002
        yield


GENERATOR = r"is a generator function \(it has yield\): a handler returns its answer$"
OF_MANY = r"is async: it may take one record or a list of them \(list\[Record\]\)$"


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (arrow_handler(columns=["value"])(functools.partial(waits)), OF_MANY),
        (frame_handler(functools.partial(waits)), OF_MANY),
        (gives, GENERATOR),
        (Waiting().gives, GENERATOR),
        (gives_and_waits, GENERATOR),
    ],
)
def test_a_function_whose_call_runs_nothing_is_refused(handler: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message) as caught:
        as_handler(handler)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "handler",
    [
        waits,
        functools.partial(functools.partial(waits)),
        Waiting(),
        functools.partial(Waiting()),
        Waiting().bill,
        record_handler(Waiting().bill),
        "tests.unit.handlers.test_kinds:waits",
    ],
)
def test_a_function_whose_call_is_a_coroutine_waits(handler: Any) -> None:
    assert as_handler(handler).waits
    assert not as_handler(plain).waits


def test_a_plain_function_around_an_async_one_is_a_handler() -> None:
    @functools.wraps(waits)
    def plain_one(record: Record) -> None: ...

    assert as_handler(plain_one).kind is HandlerKind.RECORD


@pytest.mark.parametrize("setting", [{"timeout_ms": 5}, {"cost": len}], ids=str)
def test_a_frame_handler_has_no_time_limit_and_no_cost_function(setting: dict[str, Any]) -> None:
    with pytest.raises(HandlerError, match="no output schema, no time limit and no cost function"):
        as_handler(frame_handler(lambda records: records), **setting)


def tokens(record: Record) -> float:
    return len(record.value or b"") / 4


@record_handler(cost=tokens)
def with_tokens(record: Record) -> None: ...


def test_a_cost_function_may_be_declared_given_and_named() -> None:
    assert as_handler(plain).cost is None
    assert as_handler(with_tokens).cost is tokens
    assert as_handler(with_tokens, cost=len).cost is len
    assert as_handler(as_handler(plain), cost=f"{__name__}:tokens").cost is tokens
    assert as_handler(pickle.loads(pickle.dumps(as_handler(with_tokens)))).cost is tokens


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ("tokens", "^cost function 'tokens' is not of the form module:function$"),
        ("json:none", "^cost function json:none: module json has no function none$"),
        (12, "cost is no function that returns a number for a record$"),
        (waits, "cost is no function that returns a number for a record$"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_what_is_no_cost_function(cost: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        as_handler(plain, cost=cost)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("orders", "'orders' is not of the form module:function"),
        (":bill", "not of the form module:function"),
        ("no_such_module:bill", "module no_such_module does not import: ModuleNotFoundError"),
        ("broken:bill", "handler broken:bill: module broken does not import: ZeroDivisionError: division by zero"),
        ("sound:charge", "handler sound:charge: module sound has no function charge"),
        ("sound:LIMIT", "handler sound:LIMIT is not a function: it is of type int"),
    ],
)
def test_loading_by_name_says_what_is_wrong(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "sound.py").write_text("LIMIT = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(HandlerError, match=message) as caught:
        as_handler(name)
    assert "\n" not in str(caught.value)
    sys.modules.pop("sound", None)


def test_loading_by_name() -> None:
    assert load_handler("json:dumps")({}) == "{}"
    handler = as_handler("tests.unit.handlers.test_kinds:decorated")
    assert (handler.name, handler.kind) == ("tests.unit.handlers.test_kinds:decorated", HandlerKind.ARROW)


# ------------------------------------------------------------------------------- many calls at a time


async def of_list(records: list[Record]): ...
async def of_unseen_list(records: list[arrow.Table]): ...
def of_list_at_once(records: list[Record]): ...


class OfList:
    async def __call__(self, records: list[Record]): ...


@list_handler(batch=8, linger=0.5, columns=["value"])
async def of_some(records): ...


@record_handler(threads=8)
def blocks(record): ...


def calls(handler: Any, **settings: Any) -> tuple[HandlerKind, int | None, float | None, int | None]:
    made = as_handler(handler, **settings)
    assert made.waits
    return made.kind, made.batch, made.linger_s, made.threads


def test_a_list_is_found_by_its_annotation_its_decorator_or_its_size() -> None:
    for handler in (of_list, OfList, OfList(), list_handler(functools.partial(waits))):
        assert calls(handler) == (HandlerKind.LIST, 32, 0.02, None)
    assert calls(of_list, batch=4) == calls(waits, batch=4) == (HandlerKind.LIST, 4, 0.02, None)
    assert calls(of_some) == (HandlerKind.LIST, 8, 0.5, None)
    assert calls(of_some, linger=0) == (HandlerKind.LIST, 8, 0, None)
    with pytest.raises(HandlerError, match=r"list\[arrow.Table\], as its parameter is annotated, cannot be resolved"):
        as_handler(of_unseen_list)


def test_threads_make_a_plain_function_wait() -> None:
    assert calls(plain, threads=3) == (HandlerKind.RECORD, None, None, 3)
    assert calls(blocks) == (HandlerKind.RECORD, None, None, 8)
    assert as_handler(as_handler(blocks), threads=2).threads == 2
    assert as_handler(blocks).calls_at_a_time(100) == 8
    assert as_handler(blocks).calls_at_a_time(3) == 3


@pytest.mark.parametrize(
    ("handler", "settings", "message"),
    [
        (of_list_at_once, {}, "takes a list of records and is not async: take a pa.RecordBatch instead$"),
        (plain, {"batch": 8}, "takes a list of records and is not async: take a pa.RecordBatch instead$"),
        (of_record, {"batch": 8}, r"batch and linger are for handlers of a list of records \(list\[Record\]\)$"),
        (of_batch, {"batch": 8}, "batch and linger are for"),
        (waits, {"linger": 0.1}, "batch and linger are for"),
        (waits, {"threads": 8}, "is async: threads are for handlers that block$"),
        (of_list, {"threads": 8}, "is async: threads are for handlers that block$"),
        (of_batch, {"threads": 8}, "threads are for handlers of one record$"),
        (frame_handler(lambda records: records), {"threads": 8}, "threads are for handlers of one record$"),
        (plain, {"threads": 0}, "threads is 0, not a number from 1 to 1000$"),
        (plain, {"threads": True}, "threads is True, not a number"),
        (of_list, {"batch": 0}, "batch is 0, not a number from 1 to 10000$"),
        (of_list, {"batch": 2.5}, "batch is 2.5, not a number"),
        (of_list, {"linger": -1}, "linger is -1, not seconds from 0 to 60$"),
        (of_list, {"linger": float("nan")}, "linger is nan, not seconds"),
        (of_list, {"linger": "1s"}, "linger is '1s', not seconds"),
    ],
)
def test_settings_of_another_kind_or_out_of_range(handler: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        as_handler(handler, **settings)


def test_settings_of_a_handler_that_is_made_are_checked() -> None:
    with pytest.raises(HandlerError, match=r"threads are for handlers that block$"):
        as_handler(as_handler(waits), threads=3)
