"""What no client of Kafka sends: it is refused in one way, costs memory in proportion to its bytes, and leaves the
server as it was."""

from __future__ import annotations

import logging
import os
import socket
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v0 import FindCoordinatorResponse

from share_spark.gateway import login
from share_spark.gateway.access import EVERYTHING
from share_spark.gateway.apis import served_versions
from share_spark.gateway.connection import ConnectionLimits
from share_spark.gateway.frames import FrameSplitter, read_head, read_request
from share_spark.gateway.login import SaslLogins
from share_spark.gateway.message_reader import MalformedRequestError
from share_spark.gateway.server import Server, ServerLimits
from share_spark.gateway.thread import GatewayThread
from share_spark.gateway.users import User, Users, UsersFile, users_text
from share_spark.kafka.broker_connection import Address, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from tests.support.gateway_client import GatewayClient, head
from tests.support.requests_of_clients import FRAMES, LOGIN, REQUESTS, hostile_frame, request_frame, share_fetch
from tests.unit.gateway.test_server import Echo

HOW_MANY = [pytest.param(5_000, id="5,000"), pytest.param(100_000, id="100,000", marks=pytest.mark.long)]
FRAME_BYTES = 1 << 16
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.password": "hunter2"}


def test_the_requests_are_read_when_nothing_is_wrong() -> None:
    for request, frame in zip(REQUESTS, FRAMES, strict=True):
        assert read_request(frame, read_head(frame)) == ("test", request)


@pytest.mark.parametrize("how_many", HOW_MANY)
def test_a_hostile_frame_is_read_or_refused(how_many: int) -> None:
    random = Random(how_many)
    refused = []
    for _ in range(how_many):
        frame = hostile_frame(random)
        try:
            read_request(frame, read_head(frame))
        except MalformedRequestError as error:
            refused.append(str(error))
    assert how_many / 2 < len(refused) < how_many
    assert not any("\n" in reason for reason in refused)


@pytest.mark.parametrize("how_many", HOW_MANY)
def test_any_pieces_of_a_stream_are_frames_or_refused(how_many: int) -> None:
    random = Random(how_many)
    for _ in range(how_many // 50):
        frames = FrameSplitter(FRAME_BYTES)
        with suppress(MalformedRequestError):
            for _ in range(50):
                frame = hostile_frame(random)
                length = len(frame) if random.random() < 0.95 else random.randrange(-5, FRAME_BYTES * 2)
                frames.add(struct.pack(">i", length) + frame)
                while (found := frames.next()) is not None:
                    assert len(found) <= FRAME_BYTES
                    with suppress(MalformedRequestError):
                        read_request(found, read_head(found))
        assert frames.waiting_bytes <= FRAME_BYTES + 4 + 50 * 1000


@pytest.mark.parametrize(
    "claim", [b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x07"]
)
@pytest.mark.parametrize(("key", "version"), [(api.key, version) for api, version in served_versions()])
def test_an_array_that_claims_to_be_long_costs_nothing(key: int, version: int, claim: bytes) -> None:
    for zeros in range(12):
        frame = head(key, version) + bytes(zeros) + claim + b"\xff" * 40
        tracemalloc.start()
        with suppress(MalformedRequestError):
            read_request(frame, read_head(frame))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


def test_the_largest_message_in_a_frame_takes_memory_in_proportion() -> None:
    frame = request_frame(share_fetch(partitions=1000, batches=40))
    read_request(frame, read_head(frame))
    tracemalloc.start()
    read_request(frame, read_head(frame))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * len(frame)


class Silent:
    """Answers each request as FindCoordinator."""

    async def answer(self, *_: Any) -> Any:
        return FindCoordinatorResponse(error_code=ErrorCode.none, node_id=1, host="host", port=9092)

    def closed(self, connection_id: int) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("how_many", HOW_MANY)
def test_the_server_withstands_hostile_clients(how_many: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    random = Random(how_many)
    limits = ServerLimits(connection=ConnectionLimits(frame_bytes=FRAME_BYTES))
    thread = GatewayThread(Server("127.0.0.1", 0, Silent(), limits))
    address = thread.start()
    try:
        before = 0
        for number in range(how_many // 10):
            attack(address, [hostile_frame(random) for _ in range(10)], random)
            if number == how_many // 50:
                before = resident_bytes()
        grown = resident_bytes() - before
        with GatewayClient(address) as client:
            assert client.ask("anything") == "host"
    finally:
        thread.stop()
    assert caplog.records == []
    assert grown < 16 << 20


@pytest.mark.parametrize("how_many", HOW_MANY)
def test_a_login_withstands_hostile_clients(
    how_many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the login, and in each of its steps: the handler is asked nothing, and nobody gets in."""
    monkeypatch.setattr(login, "_REFUSAL_S", 0.0)
    caplog.set_level(logging.WARNING)
    random, asked = Random(how_many), Echo()
    file = tmp_path / "users.toml"
    file.write_text(users_text(Users.none().with_user("alice", User.of(b"hunter2", EVERYTHING))))
    logins = SaslLogins.of(UsersFile.open(str(file)), is_encrypted=True)
    server = Server("127.0.0.1", 0, asked, logins=logins)
    thread = GatewayThread(server)
    address = thread.start()
    before = 0
    for number in range(how_many // 10):
        first = [request_frame(one) for one in LOGIN[: random.randrange(3)]]
        attack(address, [*first, *(hostile_frame(random) for _ in range(10 - len(first)))], random)
        if number == how_many // 50:
            before = resident_bytes()
    grown = resident_bytes() - before
    known = KafkaOptions.parse({"bootstrap.servers": "b:1", **SASL, "sasl.username": "alice"})
    with connected(address, BrokerLogin.of(known), 30):
        assert len(server._connections) == 1
        assert not server._strangers
    thread.stop()
    assert asked.contexts == []
    assert caplog.records == []
    assert grown < 16 << 20


def attack(address: Address, frames: list[bytes], random: Random) -> None:
    """Send frames, some with a wrong length, and read until the server closes."""
    with socket.create_connection(address, timeout=30) as client, suppress(OSError):
        for frame in frames:
            length = len(frame) if random.random() < 0.9 else random.choice((0, 1, 1 << 15, 1 << 30, -1))
            client.sendall(struct.pack(">i", length) + frame)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
