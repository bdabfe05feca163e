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
    load_handler,
    pandas_handler,
    record_handler,
)
from share_spark.handlers.kinds import HandlerKind
from share_spark.model.errors import HandlerError

if TYPE_CHECKING:
    import pyarrow as arrow
    from pyspark.sql import DataFrame


def plain(record): ...
def of_record(record: Record): ...
def of_batch(batch: pa.RecordBatch): ...
def of_table(table: pa.Table): ...
def of_pandas(frame: pd.DataFrame): ...
def of_unseen_name(batch: arrow.RecordBatch): ...
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
    assert as_handler(of_unseen_name).kind is HandlerKind.RECORD
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
OF_MANY = "is async, and takes more than one record: only one is possible$"


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


def test_a_frame_handler_has_no_time_limit() -> None:
    with pytest.raises(HandlerError, match="no output schema and no time limit"):
        as_handler(frame_handler(lambda records: records), timeout_ms=5)


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
