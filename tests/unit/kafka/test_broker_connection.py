"""Our own connections to a broker: who is trusted, who we say we are, and what is said where that fails."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from share_spark.kafka.broker_connection import Address, LoginRefusedError, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.sasl_exchange import plain
from share_spark.model.errors import ConfigError
from tests.support.certificates import PASSWORD, Authority

CORRELATION = (4711).to_bytes(4)
SAID: list[bytes] = []


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def listening(tls: ssl.SSLContext | None = None, answers: Sequence[bytes] = ()) -> Iterator[Address]:
    """One connection. What the client says is in ``SAID``."""
    SAID.clear()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                try:
                    secured = connection if tls is None else tls.wrap_socket(connection, server_side=True)
                    for answer in answers:
                        SAID.append(secured.recv(4096))
                        secured.sendall(len(CORRELATION + answer).to_bytes(4) + CORRELATION + answer)
                    secured.recv(1)
                    secured.close()
                except OSError:
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("localhost", server.getsockname()[1])
        thread.join(10)


def context_of(authority: Authority, host: str, *, asks_for_a_certificate: bool = False) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(*authority.certificate(host))
    found.maximum_version = ssl.TLSVersion.TLSv1_2  # a client learns in its own handshake what is wrong
    if asks_for_a_certificate:
        found.verify_mode = ssl.CERT_REQUIRED
        found.load_verify_locations(authority.ca)
    return found


def login(**given: Any) -> BrokerLogin:
    options = {name.replace("__", "."): str(value) for name, value in given.items()}
    return BrokerLogin.of(KafkaOptions.parse({"bootstrap.servers": "b:1", "security.protocol": "SSL", **options}))


def connects(authority: Authority, host: str, who: BrokerLogin, **asks: bool) -> None:
    with listening(context_of(authority, host, **asks)) as address, connected(address, who, 10):
        pass


def test_a_broker_of_a_known_authority_is_trusted(authority: Authority) -> None:
    connects(authority, "localhost", login(ssl__ca__location=authority.ca))
    connects(authority, "localhost", login(ssl__ca__pem=authority.ca.read_text()))


def test_a_broker_of_another_authority_is_not(authority: Authority, tmp_path: Path) -> None:
    for who in (login(), login(ssl__ca__location=Authority(tmp_path).ca)):
        with pytest.raises(ssl.SSLCertVerificationError):
            connects(authority, "localhost", who)


def test_a_broker_of_another_name_is_trusted_only_if_names_do_not_count(authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connects(authority, "other.example", login(ssl__ca__location=authority.ca))
    unnamed = {"ssl.endpoint.identification.algorithm": "none"}
    connects(authority, "other.example", login(ssl__ca__location=authority.ca, **unnamed))


def test_we_show_our_own_certificate(authority: Authority) -> None:
    certificate, key = authority.certificate("us", PASSWORD)
    known, asks = {"ssl__ca__location": authority.ca}, {"asks_for_a_certificate": True}
    files = {"ssl__certificate__location": certificate, "ssl__key__location": key, "ssl__key__password": PASSWORD}
    connects(authority, "localhost", login(**known, **files), **asks)
    texts = {"ssl__certificate__pem": certificate.read_text(), "ssl__key__pem": key.read_text()}
    connects(authority, "localhost", login(**known, **texts, ssl__key__password=PASSWORD), **asks)
    with pytest.raises(OSError, match="HANDSHAKE_FAILURE"):
        connects(authority, "localhost", login(**known), **asks)


def test_what_cannot_be_used_is_one_line_without_the_password(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.certificate("them", PASSWORD)
    other, _ = authority.certificate("others")
    (tmp_path / "text").write_text("no PEM")
    files = {"ssl__certificate__location": certificate, "ssl__key__location": key}
    for given, reason in (
        ({"ssl__ca__location": tmp_path / "none"}, r"ssl\.ca\.location .*none: cannot be read \(No such file"),
        ({"ssl__ca__location": tmp_path / "text"}, r"ssl\.ca\.location .*text: "),
        ({"ssl__ca__pem": "no PEM"}, r"ssl\.ca\.pem: "),
        (files, "certificate and key of the client: "),
        ({**files, "ssl__key__password": f"not {PASSWORD}"}, "certificate and key of the client: "),
        ({**files, "ssl__certificate__location": other, "ssl__key__password": PASSWORD}, "KEY_VALUES_MISMATCH"),
        ({"ssl__keystore__location": "/k.p12"}, r"not with ssl\.keystore\.location \(PKCS12\)"),
    ):
        with pytest.raises(ConfigError, match=reason) as fault:
            login(**given)
        assert PASSWORD not in str(fault.value)
        assert "\n" not in str(fault.value)


def test_a_mechanism_that_there_is_not_here_is_one_line() -> None:
    oauth = {f"sasl.oauthbearer.{name}": "x" for name in ("client.id", "client.secret", "token.endpoint.url")}
    options = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **oauth}
    with pytest.raises(ConfigError, match="SASL PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or without SASL, not with OAUTH"):
        BrokerLogin.of(KafkaOptions.parse(options))
    with pytest.raises(ConfigError, match=r"'sasl\.mechanism' must be one of PLAIN, .*OAUTHBEARER"):
        KafkaOptions.parse({**options, "sasl.mechanism": "GSSAPI"})


PLAIN = BrokerLogin(mechanism="PLAIN", begin=lambda: plain("me", "hunter2"))
TAKEN = bytes(2) + (0).to_bytes(4)
WELCOME = b"\0" + bytes(2) + b"\0" + b"\1" + bytes(8) + b"\0"


def test_sasl_as_the_broker_defines_it() -> None:
    with listening(answers=[TAKEN, WELCOME]) as address, connected(address, PLAIN, 10):
        pass
    head = CORRELATION + (11).to_bytes(2) + b"share-spark"
    first, second = (said[4:] for said in SAID)
    assert first == (17).to_bytes(2) + (1).to_bytes(2) + head + (5).to_bytes(2) + b"PLAIN"
    assert second == (36).to_bytes(2) + (2).to_bytes(2) + head + b"\0" + b"\x0c\0me\0hunter2" + b"\0"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([(33).to_bytes(2) + (0).to_bytes(4)], "it does not take SASL PLAIN"),
        ([TAKEN, b"\0" + (58).to_bytes(2) + b"\x06wrong\1" + bytes(8) + b"\0"], "wrong"),
        ([TAKEN, b"\0" + (58).to_bytes(2) + b"\0\1" + bytes(8) + b"\0"], "it refuses the login"),
    ],
)
def test_a_refusal_is_said_in_the_words_of_the_broker(answers: Sequence[bytes], reason: str) -> None:
    with (
        listening(answers=answers) as address,
        pytest.raises(LoginRefusedError, match=reason),
        connected(address, PLAIN, 10),
    ):
        pass
