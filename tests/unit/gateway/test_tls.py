"""TLS: a real client of Kafka, clients that are none, and files that are not right."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType

from share_spark import ShareGroup, Tls, cli
from share_spark.gateway.connection import ConnectionLimits
from share_spark.gateway.door import Door
from share_spark.gateway.server import Server, ServerLimits
from share_spark.gateway.thread import GatewayThread
from share_spark.kafka.broker_connection import Address
from share_spark.model.errors import ConfigError
from tests.support.certificates import PASSWORD, Authority
from tests.support.gateway_client import GatewayClient, coordinator_request
from tests.support.share_consumers import Place, consumer, work_off
from tests.unit.gateway.test_server import Echo, wait_for

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> Tls:
    certificate, key = authority.certificate(HOST)
    return Tls(certificate=str(certificate), key=str(key))


@contextmanager
def serving(files: Tls, handler: Echo, **limits: Any) -> Iterator[Address]:
    connections = limits.pop("connections", 100)
    of_server = ServerLimits(connections=connections, connection=ConnectionLimits(**limits))
    thread = GatewayThread(Server(HOST, 0, handler, of_server, tls=files.context()))
    try:
        yield thread.start()
    finally:
        thread.stop()


def secured(authority: Authority, address: Address, *certificate: Path) -> GatewayClient:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if certificate:
        context.load_cert_chain(*certificate)
    client = GatewayClient(address)
    client.socket = context.wrap_socket(client.socket, server_hostname=HOST)
    return client


def test_a_share_consumer_consumes_over_tls(tmp_path: Path, authority: Authority, files: Tls) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 1_000)
    security = {"security.protocol": "SSL", "ssl.ca.location": str(authority.ca)}
    with place.gateway(door=Door(tls=files.context())) as address, consumer(address, security=security) as found:
        assert sum(work_off(found, 1_000, lambda _: AcknowledgeType.ACCEPT).values()) == 1_000


def test_with_an_authority_for_clients_only_they_come_in(authority: Authority, files: Tls, tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    echo = Echo()
    with serving(replace(files, client_ca=str(authority.ca)), echo) as address:
        with secured(authority, address, *authority.certificate("client")) as client:
            assert client.ask("known") == "known"
        assert refused(authority, address)
        assert refused(authority, address, *stranger.certificate("client"))
    assert echo.finished == ["known"]


def refused(authority: Authority, address: Address, *certificate: Path) -> bool:
    """Whether a client is disconnected: with TLS 1.3 it is told after its own part of the handshake."""
    try:
        with secured(authority, address, *certificate) as client:
            client.send(coordinator_request("unknown"))
            return client.socket.recv(1) == b""
    except OSError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\0\0\0\x0e\0\x12\0\3\0\0\0\1\0\4test\0", id="ApiVersions without TLS"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(bytes(1 << 16), id="zeros"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_who_does_not_speak_tls_is_disconnected_without_a_word(
    authority: Authority, files: Tls, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serving(files, Echo(), login_s=0.5) as address:
        with GatewayClient(address) as client:
            client.socket.sendall(sent)
            while not client.is_closed():
                pass
        with secured(authority, address) as client:
            assert client.ask("next") == "next"
    assert caplog.records == []


def test_a_handshake_that_does_not_go_on_holds_up_nobody_and_ends(authority: Authority, files: Tls) -> None:
    with serving(files, Echo(), login_s=1.0) as address:
        slow = [GatewayClient(address) for _ in range(20)]
        began = time.monotonic()
        with secured(authority, address) as client:
            assert client.ask("meanwhile") == "meanwhile"
        assert time.monotonic() - began < 0.9
        assert all(each.is_closed() for each in slow)
        for each in slow:
            each.socket.close()


def test_handshakes_count_as_connections_until_they_have_failed(authority: Authority, files: Tls) -> None:
    with serving(files, Echo(), connections=3) as address:
        slow = [socket.create_connection(address) for _ in range(3)]
        with GatewayClient(address) as fourth:
            assert fourth.is_closed()
        for each in slow:
            each.close()
        wait_for(_answered(authority, address))


def _answered(authority: Authority, address: Address) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            with secured(authority, address) as client:
                return client.ask("next") == "next"
        except OSError:
            return False

    return ask


def test_stopping_ends_handshakes(files: Tls) -> None:
    with serving(files, Echo(), login_s=60.0) as address:
        slow = socket.create_connection(address)
        time.sleep(0.1)
    with slow:
        assert slow.recv(1) == b""


def wrong_files(authority: Authority, files: Tls, directory: Path) -> dict[str, tuple[Tls, str]]:
    """Files with a fault, and the error."""
    certificate, encrypted = authority.certificate("encrypted", PASSWORD)
    _, other = authority.certificate("other")
    empty, cut = directory / "empty.pem", directory / "cut.pem"
    empty.touch()
    cut.write_text("".join(Path(files.certificate).read_text().splitlines(keepends=True)[:3]))
    return {
        "no certificate": (replace(files, certificate="/none.pem"), "TLS certificate /none.pem: No such file"),
        "no key": (replace(files, key="/none.key"), "TLS key /none.key: No such file"),
        "no authority": (replace(files, client_ca="/none.ca"), "TLS client CA /none.ca: No such file"),
        "a directory": (replace(files, key=str(directory)), f"TLS key {directory}: Is a directory"),
        "empty": (replace(files, certificate=str(empty)), f"TLS certificate {empty}: there is no certificate in it"),
        "a certificate as key": (
            replace(files, key=files.certificate),
            f"TLS key {files.certificate}: there is no private key in it",
        ),
        "of another": (replace(files, key=str(other)), f"TLS key {other}: it is not the key of certificate"),
        "encrypted": (Tls(certificate=str(certificate), key=str(encrypted)), f"TLS key {encrypted}: it has a password"),
        "cut": (replace(files, certificate=str(cut)), f"TLS certificate {cut} and key {files.key}: "),
        "cut authority": (replace(files, client_ca=str(cut)), f"TLS client CA {cut}: "),
    }


def test_a_file_that_is_not_right_is_named(authority: Authority, files: Tls, tmp_path: Path) -> None:
    for case, (wrong, reason) in wrong_files(authority, files, tmp_path).items():
        with pytest.raises(ConfigError) as fault:
            wrong.context()
        assert str(fault.value).startswith(reason), case
        assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tls-certificate", "/none.pem", "--tls-key", "/none.key"], "TLS certificate /none.pem: No such file"),
        (["--tls-certificate", "/none.pem"], "TLS takes a certificate and its key"),
        (["--tls-client-ca", "/none.pem"], "TLS takes a certificate and its key"),
    ],
)
def test_the_command_says_so_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    place = Place.below(tmp_path)
    command = ["gateway", "--state", place.state, "--topic-table", place.topics, "--listen", "127.0.0.1:0"]
    assert cli.main([*command, *options]) == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"share-spark: {reason}")


def test_a_query_says_so_before_it_starts(tmp_path: Path) -> None:
    place, session = Place.below(tmp_path), object()
    group = ShareGroup("billing", spark=session, state=place.state).table(place.topics).subscribe("orders")
    wrong = Tls(certificate="/none.pem", key="/none.key")
    with pytest.raises(ConfigError, match=r"TLS certificate /none\.pem: No such file"):
        group.listen_on("127.0.0.1:0", tls=wrong).start()
    with pytest.raises(ConfigError, match=r"users file /none\.toml: No such file"):
        group.listen_on("127.0.0.1:0", users="/none.toml").start()


def test_the_file_has_the_same_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place.below(tmp_path)
    file = tmp_path / "gateway.toml"
    file.write_text('[gateway]\nlisten = "127.0.0.1:0"\ntls-certificate = "/none.pem"\ntls-key = "/none.key"\n')
    command = ["gateway", "--state", place.state, "--topic-table", place.topics, "--config", str(file)]
    assert cli.main(command) == cli.BAD_INPUT
    assert "TLS certificate /none.pem" in capsys.readouterr().err
    file.write_text('[gateway]\nlisten-on = "127.0.0.1:0"\n')
    assert cli.main(command) == cli.BAD_INPUT
    assert "unknown key 'listen-on' in [gateway]" in capsys.readouterr().err
