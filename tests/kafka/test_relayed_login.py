"""Logins at a cluster that go wrong on their way, or by the client: one line at most, and nothing is left over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest

from share_spark.gateway import apis, cluster_login
from share_spark.gateway.cluster_login import ClusterLogins
from share_spark.gateway.connection import ConnectionLimits
from share_spark.gateway.server import Server, ServerLimits
from share_spark.gateway.thread import GatewayThread
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.options import KafkaOptions
from tests.support.broker import free_ports, started_again, stop
from tests.support.cluster_of_users import (
    ALICE,
    BOB,
    GROUP,
    HIDDEN,
    OTHER,
    ROOT,
    SECRET,
    TOPIC,
    ClusterOfUsers,
    asking_as,
    gateway_of_users,
    login_of,
    security,
)
from tests.support.cluster_of_users import cluster_of_users as new_cluster
from tests.support.gateway_client import GatewayClient, coordinator_request, head
from tests.support.requests_of_clients import request_frame
from tests.support.tcp_proxy import TcpProxy, as_it_is, proxy_to
from tests.unit.gateway.test_access import heartbeat, metadata
from tests.unit.gateway.test_login import FAILED, ILLEGAL, authenticate, handshake
from tests.unit.gateway.test_server import Echo, wait_for

SCRAM = "SCRAM-SHA-256"
STEPS = {"handshake": 1, "first word": 2, "last word": 3, "rights": 4}
"""The answer of the broker in a login by SCRAM, and in the first request after it."""

_CORRELATION = slice(4, 8)
FAULTS: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "closes": (lambda _: None, "it has closed the connection"),
    "is silent": (lambda _: b"", "no answer in 0.5 s"),
    "half of it": (lambda answer: answer[: len(answer) // 2], "no answer in 0.5 s"),
    "no Kafka": (lambda _: b"\0\0\0\x10HTTP/1.1 400 Bad", "the answer "),
    "cut": (lambda answer: b"\0\0\0\5" + answer[_CORRELATION] + b"\0", "the answer "),
    "huge": (lambda _: b"\x7f\xff\xff\xff", "the answer is too long"),
    "negative": (lambda _: b"\xff\xff\xff\xff", "the answer is too long"),
}
"""What comes in place of an answer, and what is said of it."""


@pytest.fixture(scope="module")
def proxy(cluster_of_users: ClusterOfUsers) -> Iterator[TcpProxy]:
    with proxy_to(cluster_of_users.servers) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def address(
    cluster_of_users: ClusterOfUsers, proxy: TcpProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Address]:
    """A gateway whose logins go through the proxy."""
    with gateway_of_users(cluster_of_users, tmp_path_factory.mktemp("state"), proxy.address) as found:
        with asking_as(found, ALICE) as client:
            assert heartbeat(client, GROUP, TOPIC) == ErrorCode.none
        yield found


@pytest.fixture(autouse=True)
def _nothing_is_left(proxy: TcpProxy, address: Address, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test the next login succeeds, and no connection to the cluster is left."""
    monkeypatch.setattr(cluster_login, "_STEP_S", 0.5)
    yield
    proxy.disturb, proxy.refuses = as_it_is, False
    with asking_as(address, ALICE) as client:
        assert heartbeat(client, GROUP, TOPIC) == ErrorCode.none
    wait_for(lambda: proxy.connections == 0)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """What was said, from a level on; no traceback with it."""
    assert not [record for record in caplog.records if record.exc_info]
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


# ---------------------------------------------------------------------------------------- by the cluster


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", STEPS)
def test_an_answer_that_does_not_come_whole_ends_the_connection_with_one_line(
    proxy: TcpProxy, address: Address, caplog: pytest.LogCaptureFixture, step: str, fault: str
) -> None:
    changed, reason = FAULTS[fault]
    proxy.disturb = lambda number, answer: changed(answer) if number == STEPS[step] else answer
    with pytest.raises(ConnectionError), asking_as(address, ALICE, SCRAM) as client:
        heartbeat(client, GROUP, TOPIC)
    (line,) = lines(caplog)
    assert line.startswith(("a login from 127.0.0.1 cannot be relayed", "a request of 127.0.0.1 has no answer"))
    assert reason in line
    assert SECRET not in caplog.text


def test_a_cluster_that_takes_no_connection_is_one_line(
    proxy: TcpProxy, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuses = True
    with GatewayClient(address) as client:
        client.send(request_frame(SaslHandshakeRequest(mechanism=SCRAM)))
        assert client.is_closed()
    (line,) = lines(caplog)
    assert line.startswith("a login from 127.0.0.1 cannot be relayed")


def test_a_listener_without_tls_is_one_line(cluster_of_users: ClusterOfUsers, caplog: pytest.LogCaptureFixture) -> None:
    options = cluster_of_users.options()
    with_tls = replace(options, values={**options.values, "security.protocol": "SASL_SSL"})
    with relaying(with_tls) as gateway, GatewayClient(gateway.address) as client:
        client.send(request_frame(SaslHandshakeRequest(mechanism=SCRAM)))
        assert client.is_closed()
    (line,) = lines(caplog)
    assert line.startswith("a login from 127.0.0.1 cannot be relayed")


def test_another_address_of_the_cluster_is_tried(proxy: TcpProxy, caplog: pytest.LogCaptureFixture) -> None:
    (closed,) = free_ports(1)
    servers = f"127.0.0.1:{closed},{proxy.address}"
    options = KafkaOptions.parse({"bootstrap.servers": servers, **security(ALICE)})
    with relaying(options) as gateway, ExitStack() as clients:
        for _ in range(8):
            clients.enter_context(asking_as(gateway.address, ALICE, SCRAM))
        assert proxy.connections == 8
    assert lines(caplog, logging.WARNING) == []


def test_a_broken_connection_to_the_cluster_ends_that_of_its_client_alone(
    proxy: TcpProxy, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    with asking_as(address, ALICE) as one, asking_as(address, ALICE) as other:
        assert heartbeat(one, GROUP, TOPIC) == ErrorCode.none
        proxy.disturb = lambda _, __: None
        with pytest.raises(ConnectionError):
            heartbeat(other, GROUP, TOPIC)
        # What it was told still counts.
        assert heartbeat(one, GROUP, TOPIC) == ErrorCode.none
    assert len(lines(caplog)) == 1


def test_a_second_login_that_fails_on_its_way_ends_the_connection(
    proxy: TcpProxy, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    with asking_as(address, ALICE) as client:
        assert heartbeat(client, GROUP, TOPIC) == ErrorCode.none
        proxy.disturb = lambda _, __: None
        again = login_of(security(ALICE))
        assert again.begin is not None
        with pytest.raises(ConnectionError):
            client.connection.log_in("PLAIN", again.begin())
    assert len(lines(caplog)) == 1


def test_a_late_answer_is_not_taken_for_the_next_one(
    cluster_of_users: ClusterOfUsers, proxy: TcpProxy, address: Address
) -> None:
    """A group that the user may delete, and after it another one."""

    def late(number: int, answer: bytes) -> bytes:
        time.sleep(0.8 if number == 3 else 0)
        return answer

    rule = cluster_of_users.allow(BOB, ResourceType.GROUP, GROUP, AclOperation.DELETE)
    with asking_as(address, *ROOT) as root, asking_as(address, BOB) as bob:
        assert heartbeat(root, OTHER, TOPIC) == ErrorCode.none
        root.heartbeat(OTHER, "me", epoch=-1)
        proxy.disturb = late
        deleted = bob.ask(apis.DELETE_GROUPS, groups_names=(GROUP, OTHER)).results
        assert [one.error_code for one in deleted] == [ErrorCode.coordinator_not_available] * 2
        with pytest.raises(ConnectionError):
            metadata(bob)
        proxy.disturb = as_it_is
        assert root.state(OTHER) == "Empty"
    cluster_of_users.take_back([rule])


@pytest.mark.slow
def test_a_cluster_that_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While it is down nobody logs in, and who has logged in is disconnected as soon as something has to be asked."""
    with new_cluster() as cluster, gateway_of_users(cluster, tmp_path) as address, asking_as(address, ALICE) as early:
        assert heartbeat(early, GROUP, TOPIC) == ErrorCode.none
        stop(cluster.broker.process)
        with pytest.raises(ConnectionError), asking_as(address, ALICE):
            pass
        with pytest.raises(ConnectionError):
            metadata(early, HIDDEN)
        said = [line for line in lines(caplog, logging.WARNING) if "127.0.0.1 " in line]
        assert ["relayed" in line for line in said] == [True, False], said
        with started_again(cluster.broker), asking_as(address, ALICE) as late:
            wait_for(lambda: heartbeat(late, GROUP, TOPIC) == ErrorCode.none)


# ----------------------------------------------------------------------------------------- by the client


@pytest.fixture
def client(address: Address, caplog: pytest.LogCaptureFixture) -> Iterator[GatewayClient]:
    """It is disconnected at the end; what clients do wrong is at most one line, and no warning."""
    with GatewayClient(address) as client:
        yield client
        assert client.is_closed()
    assert len(lines(caplog)) <= 1
    assert lines(caplog, logging.WARNING) == []


@pytest.mark.parametrize(
    "said", [b"\0alice\0wrong", b"\0nobody there\0wrong", b"", b"\0\0", b"\xff" * 100, b"n,,n=a,r=b"]
)
def test_wrong_credentials_are_refused_by_the_cluster(client: GatewayClient, said: bytes) -> None:
    assert handshake(client, "PLAIN").error_code == ErrorCode.none
    assert authenticate(client, said).error_code == FAILED


def test_a_step_of_another_mechanism_is_refused_by_the_cluster(client: GatewayClient) -> None:
    assert handshake(client, SCRAM).error_code == ErrorCode.none
    assert authenticate(client, f"\0{ALICE}\0{SECRET}".encode()).error_code == FAILED


@pytest.mark.parametrize("mechanism", ["GSSAPI", "", "PLAIN\0", "x" * 5_000])
def test_a_mechanism_that_the_cluster_has_not(client: GatewayClient, mechanism: str) -> None:
    assert handshake(client, mechanism).error_code == ErrorCode.unsupported_sasl_mechanism


def test_a_second_handshake_in_an_exchange(client: GatewayClient) -> None:
    assert handshake(client, SCRAM).error_code == ErrorCode.none
    assert handshake(client, SCRAM).error_code == ILLEGAL


def test_an_exchange_without_its_handshake(client: GatewayClient, proxy: TcpProxy) -> None:
    assert authenticate(client, f"\0{ALICE}\0{SECRET}".encode()).error_code == ILLEGAL
    assert proxy.connections == 0


def test_an_exchange_that_goes_on_after_its_end(client: GatewayClient) -> None:
    assert handshake(client, "PLAIN").error_code == ErrorCode.none
    assert authenticate(client, f"\0{ALICE}\0{SECRET}".encode()).error_code == ErrorCode.none
    assert authenticate(client, f"\0{ALICE}\0{SECRET}".encode()).error_code == ILLEGAL


@pytest.mark.parametrize("after_handshake", [False, True])
@pytest.mark.parametrize(
    "frame", [coordinator_request(GROUP), head(3, 9), head(36, 2) + b"\0" + b"x" * 20_000, b"\0" * 8, b""]
)
def test_other_data_before_the_end_of_the_login(client: GatewayClient, after_handshake: bool, frame: bytes) -> None:
    if after_handshake:
        assert handshake(client, SCRAM).error_code == ErrorCode.none
    client.send(frame)


# ------------------------------------------------------------------------------------ who does not go on


@pytest.fixture
def threads() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield
    assert {*threading.enumerate()} <= before


@contextmanager
def relaying(options: KafkaOptions, login_s: float = 10.0) -> Iterator[GatewayThread]:
    """A server whose logins are relayed, and that answers all else with an echo."""
    limits = ServerLimits(connection=ConnectionLimits(login_s=login_s))
    thread = GatewayThread(Server("127.0.0.1", 0, Echo(), limits, logins=ClusterLogins.of(options)))
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


@pytest.mark.usefixtures("threads")
def test_who_begins_and_says_no_more_is_disconnected_on_both_sides(
    cluster_of_users: ClusterOfUsers, proxy: TcpProxy, caplog: pytest.LogCaptureFixture
) -> None:
    options = cluster_of_users.options(proxy.address)
    with relaying(options, login_s=0.5) as gateway, GatewayClient(gateway.address) as client:
        assert handshake(client, SCRAM).error_code == ErrorCode.none
        assert proxy.connections == 1
        assert client.is_closed()
        wait_for(lambda: proxy.connections == 0)
    assert lines(caplog) == []


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("leaves", ["client", "server"])
def test_who_leaves_while_the_cluster_is_silent_leaves_nothing(
    cluster_of_users: ClusterOfUsers,
    proxy: TcpProxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    leaves: str,
) -> None:
    monkeypatch.setattr(cluster_login, "_STEP_S", 30.0)
    proxy.disturb = lambda number, answer: b"" if number == 2 else answer
    options = cluster_of_users.options(proxy.address)
    with relaying(options) as gateway, GatewayClient(gateway.address) as client:
        assert handshake(client, "PLAIN").error_code == ErrorCode.none
        client.send(head(36, 2) + b"\0\2a\0")
        time.sleep(0.1)
        assert proxy.connections == 1
        if leaves == "client":
            client.socket.close()
        else:
            gateway.stop()
        wait_for(lambda: proxy.connections == 0)
    assert lines(caplog) == []
