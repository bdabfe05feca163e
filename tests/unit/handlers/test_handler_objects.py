"""Handlers that are objects or classes: what they are taken for, how they are made, opened and closed. No JVM."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from share_spark.handlers.handler import Handler, Record, arrow_handler, as_handler, frame_handler, record_handler
from share_spark.handlers.handler_objects import close, close_on_loop, has_close, opened, opened_on_loop
from share_spark.handlers.kinds import HandlerKind
from share_spark.model.errors import HandlerError


class Ask:
    """One that notes what happens to it."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def open(self) -> None:
        self.noted.append("open")

    def __call__(self, record: Record) -> None:
        self.noted.append(f"call {record.offset}")

    def close(self) -> None:
        self.noted.append("close")


class AskAsync:
    def __init__(self, url: str = "") -> None:
        self.noted = [url]

    async def open(self) -> None:
        await asyncio.sleep(0)
        self.noted.append("open")

    async def __call__(self, record: Record) -> None: ...

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.noted.append("close")


class OfBatch:
    def __call__(self, batch: pa.RecordBatch): ...


class OfFrame:
    def __call__(self, frame: pd.DataFrame): ...


class Inherits(OfFrame): ...


class Declares:
    @record_handler(columns=["value"], timeout_ms=20)
    def __call__(self, record): ...


@arrow_handler(columns=["key"])
class Decorated:
    def __call__(self, batch): ...


class Unmade:
    def __init__(self, url: str) -> None: ...

    def __call__(self, record): ...


class NoCall: ...


def with_methods(call: Any, **methods: Any) -> type:
    return type("Made", (), {"__call__": call, **methods})


async def waits(self: Any, record: Record | None = None) -> None: ...


def plain(self: Any, record: Record | None = None) -> None: ...


@pytest.mark.parametrize(
    ("handler", "kind", "is_async"),
    [
        (Ask, HandlerKind.RECORD, False),
        (Ask(), HandlerKind.RECORD, False),
        (AskAsync, HandlerKind.RECORD, True),
        (functools.partial(AskAsync, "https://model"), HandlerKind.RECORD, True),
        (functools.partial(Unmade, "https://model"), HandlerKind.RECORD, False),
        (OfBatch, HandlerKind.ARROW, False),
        (OfBatch(), HandlerKind.ARROW, False),
        (OfFrame, HandlerKind.PANDAS, False),
        (Inherits, HandlerKind.PANDAS, False),
        (Decorated, HandlerKind.ARROW, False),
        (Decorated(), HandlerKind.ARROW, False),
    ],
)
def test_a_class_is_what_its_objects_are(handler: Any, kind: HandlerKind, is_async: bool) -> None:
    made = as_handler(handler)
    assert (made.kind, made.waits) == (kind, is_async)


@pytest.mark.parametrize("handler", [Declares, Declares(), f"{__name__}:Declares"])
def test_a_decorator_of_the_method_counts(handler: Any) -> None:
    made = as_handler(handler)
    assert (made.columns, made.timeout_ms, made.name) == (("value",), 20, f"{__name__}:Declares")
    assert as_handler(Decorated).columns == ("key",)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (Unmade, "is a class that is made with arguments: give an object of it"),
        (NoCall, "is a class whose objects are no functions: it has no __call__"),
        (with_methods(plain, open=waits), r"is not async, so its open\(\) cannot be"),
        (with_methods(plain, close=waits)(), r"is not async, so its close\(\) cannot be"),
        (
            with_methods(plain, open=lambda _self, _partition, _epoch: None),
            r"open\(\) has parameters, and is called with",
        ),
        (
            with_methods(waits, close=lambda _self, _error: None)(),
            r"close\(\) has parameters, and is called without any",
        ),
        (frame_handler(with_methods(plain)()), None),
        (frame_handler(with_methods(plain)), r"a frame handler is no class, and has no open\(\) and no close\(\)"),
        (frame_handler(with_methods(plain, open=plain)()), "a frame handler is no class"),
    ],
)
def test_what_cannot_be_opened_is_refused(handler: Any, message: str | None) -> None:
    if message is None:
        assert as_handler(handler).kind is HandlerKind.FRAME
        return
    with pytest.raises(HandlerError, match=message) as caught:
        as_handler(handler)
    assert "\n" not in str(caught.value)


def noted(handler: Handler) -> list[str]:
    found: list[str] = handler.call.noted  # type: ignore[attr-defined]
    return found


def test_a_class_is_made_and_opened_once() -> None:
    handler = as_handler(Ask)
    made = opened(handler)
    assert isinstance(made.call, Ask)
    made.call(Record("orders", 0, 7))
    close(made)
    assert noted(made) == ["open", "call 7", "close"]
    assert noted(opened(handler)) == ["open"]


def test_an_async_one_is_opened_on_its_loop() -> None:
    async def play() -> Handler:
        made = await opened_on_loop(as_handler(functools.partial(AskAsync, "https://model")))
        await close_on_loop(made)
        return made

    assert noted(asyncio.run(play())) == ["https://model", "open", "close"]


def test_a_plain_open_is_good_for_an_async_one() -> None:
    seen: list[str] = []
    kind = with_methods(waits, open=lambda _: seen.append("open"), close=lambda _: seen.append("close"))

    async def play() -> None:
        await close_on_loop(await opened_on_loop(as_handler(kind)))

    asyncio.run(play())
    assert seen == ["open", "close"]


def failing(self: Any) -> None:
    raise SystemExit("no\nmodel")


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"open": failing}, "open() failed: SystemExit: no\nmodel"),
        ({"open": lambda _: asyncio.sleep(0)}, "open() failed: HandlerError: returned a coroutine"),
        ({"__init__": failing}, "cannot be made: SystemExit: no\nmodel"),
    ],
)
def test_an_open_that_fails_is_a_fault_of_the_handler(methods: dict[str, Any], message: str) -> None:
    with pytest.raises(HandlerError) as caught:
        opened(as_handler(with_methods(plain, **methods)))
    assert message in str(caught.value)
    if message.endswith("model"):
        with pytest.raises(HandlerError) as caught:
            asyncio.run(opened_on_loop(as_handler(with_methods(waits, **methods))))
        assert message in str(caught.value)


def test_a_close_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        close(as_handler(with_methods(plain, close=failing)()))
        asyncio.run(close_on_loop(as_handler(with_methods(waits, close=failing)())))
    assert caplog.text.count("close() failed: SystemExit: no") == 2


def test_what_is_no_method_of_an_object_is_not_called() -> None:
    def function(record: Record) -> None: ...

    function.close = lambda: None  # type: ignore[attr-defined]
    assert not has_close(as_handler(function))
    assert not has_close(as_handler(with_methods(plain, close=False)))
    assert has_close(as_handler(functools.partial(Ask())))
