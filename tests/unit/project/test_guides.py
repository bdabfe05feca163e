"""The handlers of docs/guides.md are called, with stand-ins for their services."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from share_spark import Ack, Record, ShareGroup
from share_spark.handlers.handler import as_handler
from share_spark.handlers.handler_objects import close, close_on_loop, opened, opened_on_loop
from share_spark.handlers.values import UndecodableError
from share_spark.testing import run_handler
from tests.support.python_blocks import python_blocks

GUIDES = Path(__file__).parents[3] / "docs" / "guides.md"


class Bills(BaseHTTPRequestHandler):
    """A service that refuses bills of 0."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        refused = self.rfile.read(int(self.headers["content-length"])) == b"0"
        self.send_response(503 if refused else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class Embeddings:
    """A service that is asked for vectors of texts."""

    def __init__(self) -> None:
        self.embeddings, self.is_closed = self, False

    async def create(self, *, model: str, input: list[str]) -> Any:  # noqa: A002, ARG002
        return SimpleNamespace(data=[SimpleNamespace(embedding=[float(len(text))]) for text in input])

    async def close(self) -> None:
        self.is_closed = True


def test_output_to_a_kafka_topic() -> None:
    text = GUIDES.read_text()
    bill, once, *_ = python_blocks(text[text.index("## Output to a Kafka topic\n") :])
    names: dict[str, Any] = {"__name__": "guide", "Ack": Ack, "charge": lambda record: float(record.value)}
    exec(compile(bill + once, "guides.md", "exec", dont_inherit=True), names)  # noqa: S102
    rows = run_handler(names["bill"], [{"value": b"9.5", "key": b"ann"}, b"1"], messages=True).rows
    assert [(row["key"], row["value"]) for row in rows] == [(b"ann", b"9.50"), (None, b"1.00")]
    told = ["group", "topic", "partition", "offset", "row", "delivery.count"]

    def sent(*values: str) -> Any:
        headers = [(f"share_spark.{name}", value.encode()) for name, value in zip(told, values, strict=True)]
        return SimpleNamespace(headers=lambda: headers)

    first, other = sent("g", "t", "0", "7", "0", "1"), sent("g", "t", "0", "7", "1", "1")
    repeat, seen = sent("g", "t", "0", "7", "0", "2"), set[Any]()
    assert list(names["once"]([first, other, repeat], seen)) == [first, other]


def test_the_test_kit() -> None:
    text = GUIDES.read_text()
    (program, *_) = python_blocks(text[text.index("## Testing a handler\n") :])
    exec(compile(program, "guides.md", "exec", dont_inherit=True), {"__name__": "guide"})  # noqa: S102


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("localhost", 0), Bills) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def names(port: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All that the guides define."""
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(AsyncOpenAI=Embeddings))  # type: ignore[arg-type]
    schema = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float64()))])
    names = {"Ack": Ack, "Record": Record, "ShareGroup": ShareGroup, "spark": None, "bill": print, "schema": schema}
    for block in python_blocks(GUIDES.read_text()):
        if "awaitTermination" in block:  # tests/spark/test_guides.py runs it
            continue
        exec(block.replace("8080", str(port)), names)  # noqa: S102
    return names


def test_the_handler_with_a_client(names: dict[str, Any]) -> None:
    made = opened(as_handler(names["Bill"]))
    answers = [made.call(Record("orders", 0, at, value=b"%d" % at)) for at in (1, 0, 2)]
    close(made)
    assert answers == [Ack.ACCEPT, Ack.release("status 503"), Ack.ACCEPT]
    assert names["billing"]._spec.handler.threads == 64


def test_the_decoder_of_a_registry(names: dict[str, Any]) -> None:
    made = opened(names["charges"]._spec.handler)
    assert made.argument_of is not None
    with pytest.raises(UndecodableError, match="the value is null"):
        made.argument_of(Record("orders", 0, 1))
    with pytest.raises(UndecodableError, match="SerializationError: Expecting data framing"):
        made.argument_of(Record("orders", 0, 1, value=b"{}"))


def test_the_handler_of_lists(names: dict[str, Any]) -> None:
    async def play() -> Any:
        made = await opened_on_loop(as_handler(names["Embed"]))
        answers = await made.call([Record("orders", 0, 1, value=b"a"), Record("orders", 0, 2, value=b"bcd")])
        await close_on_loop(made)
        return answers, made.call.client.is_closed  # type: ignore[attr-defined]

    rows = [(Ack.ACCEPT, {"text": "a", "vector": [1.0]}), (Ack.ACCEPT, {"text": "bcd", "vector": [3.0]})]
    assert asyncio.run(play()) == (rows, True)
    handler = names["embedding"]._spec.handler
    assert (handler.batch, handler.linger_s, handler.waits) == (64, 0.05, True)
