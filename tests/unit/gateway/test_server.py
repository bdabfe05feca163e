"""The server over real sockets: order, limits, and what closes a connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v0 import FindCoordinatorResponse

from share_spark.gateway.connection import ConnectionLimits
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.server import Server, ServerLimits
from share_spark.gateway.share_fetch_answer import FetchedPartition, FetchedTopic, ShareFetchAnswer
from share_spark.gateway.thread import GatewayThread
from share_spark.kafka.broker_connection import Address
from share_spark.topics.varints import unsigned_varint
from tests.support.gateway_client import GatewayClient, coordinator_request, head

GIVE_UP_S = 10.0
LARGE = 32 << 20


class Echo:
    """Answers FindCoordinator by its key; some keys are orders."""

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []
        self.ended: list[int] = []
        self.cancelled: list[str] = []
        self.finished: list[str] = []
        self.turn = 0
        self.turns: list[int] = []
        """Of the event loop, by request."""

    async def answer(self, context: RequestContext, request: Any) -> Any:
        self.contexts.append(context)
        self.turns.append(self.turn)
        asyncio.get_running_loop().call_soon(self._next_turn)
        key = request.key if context.api_key == 10 else "another request"
        try:
            answer = await self._answer(key)
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        self.finished.append(key)
        return answer

    async def _answer(self, key: str) -> Any:
        order, _, argument = key.partition(" ")
        match order:
            case "wait":
                await asyncio.sleep(float(argument))
            case "raise":
                raise RuntimeError(argument)
            case "silent":
                return None
            case "large":
                topic = FetchedTopic(UUID(int=1), [FetchedPartition(0, [bytes(LARGE)])])
                return ShareFetchAnswer([topic])
        return FindCoordinatorResponse(error_code=ErrorCode.none, node_id=1, host=key, port=9092)

    def _next_turn(self) -> None:
        self.turn += 1

    def closed(self, connection_id: int) -> None:
        assert connection_id not in self.ended
        self.ended.append(connection_id)


@contextmanager
def gateway(handler: Echo, limits: ServerLimits | None = None) -> Iterator[Address]:
    """A running server. When it has stopped, the end of each connection was told."""
    thread = GatewayThread(Server("127.0.0.1", 0, handler, limits))
    try:
        yield thread.start()
    finally:
        thread.stop()
    assert {context.connection_id for context in handler.contexts} <= set(handler.ended)


@pytest.fixture
def echo() -> Echo:
    return Echo()


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + GIVE_UP_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def limits(connections: int = 100, **of_one: Any) -> ServerLimits:
    return ServerLimits(connections=connections, connection=ConnectionLimits(**of_one))


def test_a_request_is_answered(echo: Echo) -> None:
    with gateway(echo) as address, GatewayClient(address) as client:
        assert client.ask("group") == "group"
        assert echo.contexts == [RequestContext(1, "test", "127.0.0.1", 10, 0, frame=coordinator_request("group"))]


@pytest.mark.parametrize("version", range(5))
def test_api_versions(echo: Echo, version: int) -> None:
    with gateway(echo) as address, GatewayClient(address) as client:
        client.send(head(18, version) + (b"\0\2x\2y\0" if version >= 3 else b""))
        answer = client.answer(18, version)
        assert answer.error_code == ErrorCode.none
        named = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        assert named[78] == (1, 2)
        assert named[0] == (3, 13)
        assert not {71, 72} & set(named)
        assert echo.contexts == []


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_of_api_versions_is_answered_with_those_known(echo: Echo, version: int) -> None:
    with gateway(echo) as address, GatewayClient(address) as client:
        client.send(head(18, version) + b"what nobody knows yet")
        answer = client.answer(18, 0)
        assert answer.error_code == ErrorCode.unsupported_version
        assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == [(18, 0, 4)]
        assert client.ask("still there") == "still there"


def test_requests_of_a_connection_are_answered_in_their_order_one_at_a_time(echo: Echo) -> None:
    keys = ["wait 0.2", "a", "wait 0.1", "b", *map(str, range(200))]
    with gateway(echo) as address, GatewayClient(address) as client:
        for key in keys:
            client.send(coordinator_request(key))
        wait_for(lambda: echo.contexts)
        time.sleep(0.05)
        assert len(echo.contexts) == 1
        assert [client.answer(10, 0).host for _ in keys] == keys


def test_a_client_that_sends_on_and_on_does_not_keep_the_loop_from_others(echo: Echo) -> None:
    frame = coordinator_request("next")
    with gateway(echo) as address, GatewayClient(address) as client:
        client.socket.sendall((struct.pack(">i", len(frame)) + frame) * 100)
        assert [client.answer(10, 0).host for _ in range(100)] == ["next"] * 100
    assert len(set(echo.turns)) == 100


def test_a_long_frame_does_not_keep_the_loop_from_others(echo: Echo) -> None:
    topics = 300_000
    # Metadata: each topic has an empty name.
    frame = head(3, 9) + b"\0" + unsigned_varint(topics + 1) + b"\1\0" * topics + b"\0\0\0\0"
    with gateway(echo) as address, GatewayClient(address) as client, GatewayClient(address) as other:
        assert other.ask("before") == "before"
        client.send(frame)
        assert [other.ask("meanwhile") for _ in range(3)] == ["meanwhile"] * 3
        wait_for(lambda: len(echo.contexts) == 5)
    assert [context.api_key for context in echo.contexts] == [10, 10, 10, 10, 3]


def test_a_request_that_waits_does_not_stop_other_connections(echo: Echo) -> None:
    with gateway(echo) as address, GatewayClient(address) as first, GatewayClient(address) as second:
        first.send(coordinator_request("wait 60"))
        wait_for(lambda: echo.contexts)
        assert second.ask("other") == "other"
        assert echo.finished == ["other"]


def test_frames_arrive_in_pieces(echo: Echo) -> None:
    frame = coordinator_request("in pieces")
    with gateway(echo) as address, GatewayClient(address) as client:
        for byte in struct.pack(">i", len(frame)) + frame:
            client.socket.sendall(bytes([byte]))
            time.sleep(0.001)
        assert client.answer(10, 0).host == "in pieces"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\x0a\0\0", id="no header"),
        pytest.param(head(0, 3), id="Produce"),
        pytest.param(head(10, 7), id="a version that is not served"),
        pytest.param(head(12345, 0), id="an API that nobody has"),
        pytest.param(coordinator_request("cut")[:-1], id="cut"),
        pytest.param(coordinator_request("longer") + b"\0", id="longer"),
        pytest.param(coordinator_request("silent"), id="no answer"),
    ],
)
def test_what_is_no_request_closes_the_connection_in_one_line(
    echo: Echo, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "share_spark")
    with gateway(echo) as address:
        with GatewayClient(address) as client:
            client.send(frame)
            assert client.is_closed()
        wait_for(lambda: echo.ended == [1])
        with GatewayClient(address) as client:
            assert client.ask("next") == "next"
    said = [record for record in caplog.records if "connection 1 " in record.getMessage()]
    assert [(record.levelno, record.exc_info) for record in said] == [(logging.DEBUG, None)]


@pytest.mark.parametrize("length", [1001, (1 << 31) - 1, -1, -(1 << 31)])
def test_a_length_out_of_bounds_closes_the_connection(echo: Echo, length: int) -> None:
    with gateway(echo, limits(frame_bytes=1000)) as address, GatewayClient(address) as client:
        client.socket.sendall(struct.pack(">i", length))
        assert client.is_closed()


def test_a_frame_of_the_largest_length_is_read(echo: Echo) -> None:
    key = "k" * 20_000
    with gateway(echo, limits(frame_bytes=len(coordinator_request(key)))) as address, GatewayClient(address) as client:
        assert client.ask(key) == key


def test_connections_above_the_limit_are_closed(echo: Echo) -> None:
    with gateway(echo, limits(connections=2)) as address, GatewayClient(address) as first:
        with GatewayClient(address) as second:
            assert (first.ask("1"), second.ask("2")) == ("1", "2")
            with GatewayClient(address) as third:
                assert third.is_closed()
        wait_for(lambda: echo.ended == [2])
        with GatewayClient(address) as fourth:
            assert fourth.ask("4") == "4"


def test_an_idle_connection_is_closed_but_not_one_that_waits_for_its_answer(echo: Echo) -> None:
    with gateway(echo, limits(idle_s=0.2)) as address, GatewayClient(address) as client:
        assert client.ask("wait 0.7") == "wait 0.7"
        assert client.is_closed()
        with GatewayClient(address) as slow:
            slow.socket.sendall(b"\0\0")
            assert slow.is_closed()


def test_a_client_that_does_not_read_is_closed(echo: Echo) -> None:
    with gateway(echo, limits(idle_s=0.3)) as address, GatewayClient(address) as client:
        client.send(coordinator_request("large"))
        wait_for(lambda: echo.ended == [1])


def test_no_request_is_begun_before_the_last_answer_is_taken(echo: Echo) -> None:
    with gateway(echo) as address, GatewayClient(address) as client:
        client.send(coordinator_request("large"))
        client.send(coordinator_request("next"))
        wait_for(lambda: echo.finished)
        with GatewayClient(address) as other:
            assert other.ask("other") == "other"
        assert echo.finished == ["large", "other"]
        assert len(client.receive()) > LARGE
        assert client.answer(10, 0).host == "next"


def test_what_a_client_sends_during_a_request_stays_in_its_socket(echo: Echo) -> None:
    frame = coordinator_request("x" * 1000)
    flood = (struct.pack(">i", len(frame)) + frame) * (1 << 16)
    with gateway(echo) as address, GatewayClient(address) as client:
        client.send(coordinator_request("wait 60"))
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.socket.sendall(flood)
        assert len(echo.contexts) == 1


def test_a_request_is_cancelled_when_its_client_goes_and_then_the_connection_ends(echo: Echo) -> None:
    with gateway(echo) as address:
        with GatewayClient(address) as client:
            client.send(coordinator_request("wait 60"))
            wait_for(lambda: echo.contexts)
            assert echo.ended == []
        wait_for(lambda: echo.ended == [1])
        assert echo.cancelled == ["wait 60"]


def test_a_fault_of_the_handler_is_logged_and_closes_the_connection(
    echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway(echo) as address:
        with GatewayClient(address) as client:
            client.send(coordinator_request("raise oh"))
            assert client.is_closed()
        with GatewayClient(address) as client:
            assert client.ask("next") == "next"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "RuntimeError: oh" in caplog.text


def test_stopping_cancels_and_closes_all(echo: Echo) -> None:
    threads = threading.active_count()
    with gateway(echo) as address:
        clients = [GatewayClient(address) for _ in range(5)]
        for client in clients[:3]:
            client.send(coordinator_request("wait 60"))
        clients[3].ask("done")
        wait_for(lambda: len(echo.contexts) == 4)
    assert echo.cancelled == ["wait 60"] * 3
    assert sorted(echo.ended) == [1, 2, 3, 4, 5]
    for client in clients:
        assert client.is_closed()
        client.socket.close()
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        GatewayClient(address)


def test_a_port_in_use_is_an_error_of_start(echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        thread = GatewayThread(Server("127.0.0.1", taken.getsockname()[1], echo))
        with pytest.raises(OSError, match="in use"):
            thread.start()
        thread.stop()
