"""The login: of real clients of Kafka, and of clients that do it in another way."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaException
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest

from share_spark import Tls
from share_spark.gateway import users as users_module
from share_spark.gateway.access import EVERYTHING
from share_spark.gateway.connection import ConnectionLimits
from share_spark.gateway.door import Door
from share_spark.gateway.login import SaslLogins
from share_spark.gateway.scram import ExchangeError
from share_spark.gateway.server import Server, ServerLimits
from share_spark.gateway.thread import GatewayThread
from share_spark.gateway.users import User, Users, UsersFile, users_text
from share_spark.kafka.broker_connection import Address, BrokerConnection, LoginRefusedError, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from tests.support.certificates import Authority
from tests.support.gateway_client import GatewayClient, coordinator_request, head
from tests.support.requests_of_clients import request_frame
from tests.support.share_consumers import GatewayProcess, Place, consumer, work_off
from tests.unit.gateway.test_server import Echo, wait_for

HOST = "127.0.0.1"
SECRET = "hunter2, ½"
ACCEPT = AcknowledgeType.ACCEPT
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
FAILED, ILLEGAL = ErrorCode.sasl_authentication_failed, ErrorCode.illegal_sasl_state


@pytest.fixture(scope="module")
def users() -> Users:
    return Users.none().with_user("alice", User.of(SECRET.encode(), EVERYTHING))


@pytest.fixture
def file(users: Users, tmp_path: Path) -> Path:
    file = tmp_path / "users.toml"
    file.write_text(users_text(users))
    return file


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def door_of(file: Path, authority: Authority | None = None) -> Door:
    tls = None
    if authority is not None:
        certificate, key = authority.certificate(HOST)
        tls = Tls(certificate=str(certificate), key=str(key))
    return Door.of(Address(HOST, 0), tls=tls, users=str(file))


def security(mechanism: str, authority: Authority | None = None, password: str = SECRET) -> dict[str, str]:
    found = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}
    if authority is None:
        return {"security.protocol": "SASL_PLAINTEXT", **found}
    return {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.ca), **found}


@contextmanager
def serving(file: Path, handler: Echo, strangers: int = 100, **limits: Any) -> Iterator[Address]:
    door = door_of(file)
    of_server = ServerLimits(strangers=strangers, connection=ConnectionLimits(**limits))
    thread = GatewayThread(Server(HOST, 0, handler, of_server, logins=door.logins))
    try:
        yield thread.start()
    finally:
        thread.stop()


# ---------------------------------------------------------------------------------------- clients of Kafka


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_share_consumer_logs_in_and_consumes(tmp_path: Path, file: Path, mechanism: str) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 200)
    with place.gateway(door=door_of(file)) as address, consumer(address, security=security(mechanism)) as found:
        assert sum(work_off(found, 200, lambda _: ACCEPT).values()) == 200


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_share_consumer_logs_in_over_tls(tmp_path: Path, file: Path, authority: Authority, mechanism: str) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 200)
    said = security(mechanism, authority)
    with place.gateway(door=door_of(file, authority)) as address, consumer(address, security=said) as found:
        assert sum(work_off(found, 200, lambda _: ACCEPT).values()) == 200


def test_the_commands_together(tmp_path: Path, authority: Authority) -> None:
    """A user as an operator adds one, a gateway as a process with TLS, and a consumer with both."""
    place, file = Place.below(tmp_path), tmp_path / "added.toml"
    place.produce(1, 200)
    add = [sys.executable, "-m", "share_spark.cli", "gateway-user", "alice", "--file", str(file)]
    subprocess.run([*add, "--group", "bill*", "--topic", "orders"], input=f"{SECRET}\n", text=True, check=True)
    certificate, key = map(str, authority.certificate(HOST))
    options = ["--tls-certificate", certificate, "--tls-key", key, "--users", str(file)]
    with GatewayProcess(place, options=options) as gateway:
        with consumer(gateway.address, security=security("SCRAM-SHA-256", authority)) as found:
            assert sum(work_off(found, 200, lambda _: ACCEPT).values()) == 200
        assert gateway.end(signal.SIGTERM) == (0, "share-spark: disconnecting clients\n")


@pytest.mark.parametrize(
    ("mechanism", "password", "reason"),
    [
        ("SCRAM-SHA-512", "wrong", "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("PLAIN", SECRET, "Broker: Unsupported SASL mechanism|supported mechanisms: SCRAM-SHA-256,SCRAM-SHA-512"),
    ],
)
def test_a_client_is_told_why_it_is_refused(file: Path, mechanism: str, password: str, reason: str) -> None:
    told: list[str] = []
    with serving(file, Echo()) as address:
        settings: dict[str, Any] = {
            "bootstrap.servers": str(address),
            **security(mechanism, password=password),
            "log_level": 0,
            "error_cb": lambda error: told.append(str(error)),
        }
        admin = AdminClient(settings)
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=2)
        admin.poll(0.1)
    assert any(part in one for one in told for part in reason.split("|")), told


# --------------------------------------------------------------------------------------- single requests


def login(mechanism: str, password: str = SECRET, user: str = "alice") -> BrokerLogin:
    said = {**security(mechanism, password=password), "sasl.username": user, "bootstrap.servers": "b:1"}
    return BrokerLogin.of(KafkaOptions.parse(said))


def handshake(client: GatewayClient, mechanism: str = "SCRAM-SHA-256") -> Any:
    client.send(request_frame(SaslHandshakeRequest(mechanism=mechanism)))
    return client.answer(17, 1)


def authenticate(client: GatewayClient, said: bytes) -> Any:
    client.send(request_frame(SaslAuthenticateRequest(auth_bytes=said)))
    return client.answer(36, 2)


def test_logins_by_scram_do_not_wait_for_those_by_plain(file: Path) -> None:
    logins = SaslLogins.of(UsersFile.open(str(file)), is_encrypted=True)

    async def play() -> list[str]:
        ended: list[str] = []

        async def step(mechanism: str, said: bytes) -> None:
            with suppress(ExchangeError):
                await logins.step(logins.begin(mechanism), said)
            ended.append(mechanism)

        plain = (step("PLAIN", b"\0alice\0wrong") for _ in range(5))
        await asyncio.gather(*plain, step("SCRAM-SHA-256", b"n,,n=alice,r=abc"))
        return ended

    assert asyncio.run(play()) == ["SCRAM-SHA-256", *["PLAIN"] * 5]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_refusal_is_late_and_the_same_for_all(file: Path, mechanism: str) -> None:
    told = []
    with serving(file, Echo()) as address:
        for user, password in (("alice", "wrong"), ("nobody", SECRET)):
            began = time.monotonic()
            with pytest.raises(LoginRefusedError) as fault, connected(address, login(mechanism, password, user), 10):
                pass
            assert 0.1 <= time.monotonic() - began < 5
            told.append(str(fault.value))
        with connected(address, login(mechanism), 10):
            pass
    assert told[0] == told[1]
    assert mechanism in told[0]


@pytest.mark.parametrize("frame", [coordinator_request("any"), head(3, 9) + b"\0\0\0\0\0", head(1, 4), head(99, 0)])
@pytest.mark.parametrize("after_handshake", [False, True])
def test_nothing_else_is_answered_before_the_login(file: Path, frame: bytes, after_handshake: bool) -> None:
    echo = Echo()
    with serving(file, echo) as address, GatewayClient(address) as client:
        client.send(head(18, 0))
        assert client.answer(18, 0).error_code == ErrorCode.none
        if after_handshake:
            assert handshake(client).error_code == ErrorCode.none
        client.send(frame)
        assert client.is_closed()
    assert echo.contexts == []


def test_a_mechanism_that_is_not_there_ends_it_with_those_that_are(file: Path) -> None:
    with serving(file, Echo()) as address, GatewayClient(address) as client:
        answer = handshake(client, "PLAIN")
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.unsupported_sasl_mechanism, SCRAM)
        assert client.is_closed()


def test_steps_out_of_order_end_it(file: Path) -> None:
    with serving(file, Echo()) as address:
        with GatewayClient(address) as client:
            assert authenticate(client, b"n,,n=alice,r=abc").error_code == ILLEGAL
            assert client.is_closed()
        with GatewayClient(address) as client:
            handshake(client)
            assert handshake(client).error_code == ILLEGAL
            assert client.is_closed()
        with GatewayClient(address) as client:
            handshake(client)
            assert authenticate(client, b"anything").error_code == FAILED
            assert client.is_closed()


def test_there_is_no_second_login(file: Path) -> None:
    again = login("SCRAM-SHA-256")
    assert again.begin is not None
    with serving(file, Echo()) as address, connected(address, again, 10) as connection:  # noqa: SIM117
        with pytest.raises(LoginRefusedError):
            connection.log_in("SCRAM-SHA-256", again.begin())


def test_where_no_login_is_asked_for_there_is_none() -> None:
    thread = GatewayThread(Server(HOST, 0, Echo()))
    with GatewayClient(thread.start()) as client:
        assert handshake(client).error_code == ILLEGAL
        assert client.is_closed()
    thread.stop()


def test_who_does_not_log_in_in_time_is_disconnected_and_who_has_stays(file: Path) -> None:
    with serving(file, Echo(), login_s=0.5) as address, connected(address, login("SCRAM-SHA-256"), 10) as known:
        with GatewayClient(address) as client:
            handshake(client)
            assert client.is_closed()
        time.sleep(0.5)
        known.socket.sendall(len(coordinator_request("still")).to_bytes(4) + coordinator_request("still"))
        assert b"still" in known.socket.recv(1_000)


def test_strangers_are_few_and_known_clients_many(file: Path) -> None:
    with serving(file, Echo(), strangers=2) as address, ExitStack() as until_end:
        for mechanism in SCRAM:
            until_end.enter_context(connected(address, login(mechanism), 10))
        strangers = [GatewayClient(address) for _ in range(2)]
        for each in strangers:
            handshake(each)
        with GatewayClient(address) as third:
            assert third.is_closed()
        for each in strangers:
            each.socket.close()
        wait_for(lambda: logs_in(address))


def logs_in(address: Address) -> bool:
    try:
        with connected(address, login("SCRAM-SHA-256"), 10):
            return True
    except (OSError, LoginRefusedError):
        return False


def test_a_frame_of_a_stranger_is_short(file: Path) -> None:
    with serving(file, Echo()) as address:
        with GatewayClient(address) as client:
            client.socket.sendall((1 << 15).to_bytes(4))
            assert client.is_closed()
        with connected(address, login("SCRAM-SHA-256"), 10) as known:
            frame = coordinator_request("k" * 30_000)
            known.socket.sendall(len(frame).to_bytes(4) + frame)
            assert known.socket.recv(10)


def test_a_user_who_is_taken_out_of_the_file_is_disconnected(
    file: Path, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_module, "_LOOK_S", 0.0)
    frame = coordinator_request("any")
    with serving(file, Echo()) as address, connected(address, login("SCRAM-SHA-256"), 10) as known:
        known.socket.sendall(len(frame).to_bytes(4) + frame)
        assert known.socket.recv(100)
        file.write_text(users_text(Users(decoy=users.decoy)))
        known.socket.sendall(len(frame).to_bytes(4) + frame)
        wait_for(lambda: not is_open(known))
        assert not logs_in(address)


def is_open(connection: BrokerConnection) -> bool:
    try:
        return connection.socket.recv(100) != b""
    except ConnectionResetError:
        return False


def test_no_log_has_a_secret(file: Path, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(file, Echo()) as address, GatewayClient(address) as client:
        handshake(client)
        authenticate(client, f"n,,n={SECRET},r={SECRET}".encode())
        client.send(request_frame(SaslAuthenticateRequest(auth_bytes=SECRET.encode())) + b"!")
        assert client.is_closed()
    assert caplog.records
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("host", "warnings"), [("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("0.0.0.0", 1), ("h", 1)]
)
def test_a_login_without_tls_that_others_can_see_is_warned_of(
    file: Path, caplog: pytest.LogCaptureFixture, host: str, warnings: int
) -> None:
    Door.of(Address(host, 9092), tls=None, users=str(file))
    assert len(caplog.records) == warnings
