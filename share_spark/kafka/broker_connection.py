"""A connection of our own to a broker, for requests that librdkafka does not have: over TCP or TLS, with SASL
(SaslHandshake 17, SaslAuthenticate 36) before the first request."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.message_fields import NO_TAGS, AnswerFields, byte_string, struct
from share_spark.kafka.sasl_exchange import SaslExchange

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2

_CLIENT_ID = b"share-spark"
_CORRELATION = (4711).to_bytes(4)
_MOST_BYTES = 64 << 20
"""Of an answer: what claims to be longer is no Kafka broker."""


class Address(NamedTuple):
    """Of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class LoginRefusedError(ValueError):
    """By the broker, in its words."""


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """Methods raise OSError, and ValueError for an answer that is none of a Kafka broker."""

    socket: socket.socket

    def exchange(self, key: int, version: int, rest: bytes) -> bytes:
        """One request: its number, its version, and what follows the client id. Returns what follows the answer's
        correlation id."""
        message = key.to_bytes(2) + version.to_bytes(2) + _CORRELATION
        message += len(_CLIENT_ID).to_bytes(2) + _CLIENT_ID + rest
        self.socket.sendall(len(message).to_bytes(4) + message)
        size = int.from_bytes(self._received(4))
        if size > _MOST_BYTES:
            raise ValueError("the answer is too long")
        return self._received(size).removeprefix(_CORRELATION)

    def _received(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            some = self.socket.recv(min(length - len(found), 1 << 20))
            if not some:
                raise ConnectionError("it has closed the connection")
            found += some
        return found

    def log_in(self, mechanism: str, exchange: SaslExchange) -> None:
        """By SASL. Raises LoginRefusedError too."""
        name = mechanism.encode()
        answer = AnswerFields(self.exchange(SASL_HANDSHAKE, _HANDSHAKE_VERSION, len(name).to_bytes(2) + name))
        if answer.int16():
            raise LoginRefusedError(f"it does not take SASL {mechanism}")
        said = next(exchange)
        while True:
            said_back = self._authenticate(said)
            try:
                said = exchange.send(said_back)
            except StopIteration:
                return

    def _authenticate(self, said: bytes) -> bytes:
        body = NO_TAGS + byte_string(said) + NO_TAGS
        answer = AnswerFields(self.exchange(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, body))
        answer.tags()
        found = _AUTHENTICATED(answer)
        if found["error"]:
            raise LoginRefusedError(found["message"] or "it refuses the login")
        return found["content"] or b""


_AUTHENTICATED = struct(
    error=AnswerFields.int16,
    message=AnswerFields.string,
    content=AnswerFields.byte_string,
    lifetime_ms=AnswerFields.int64,
)


@contextmanager
def connected(broker: Address, login: BrokerLogin, timeout_s: float) -> Iterator[BrokerConnection]:
    """Logged in, closed at the end. ``timeout_s``: for each step. Raises OSError, ValueError."""
    with socket.create_connection(broker, timeout=timeout_s) as plain:
        secured = plain if login.tls is None else login.tls.wrap_socket(plain, server_hostname=broker.host)
        with secured:
            connection = BrokerConnection(secured)
            if login.begin is not None:
                connection.log_in(login.mechanism, login.begin())
            yield connection
