"""A connection of our own to a broker, for requests that librdkafka does not have: over TCP or TLS, with SASL before
the first request. The messages are those of ``kio``, which has no connection of its own."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kio.schema.api_versions.v2 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import BufferUnderflow
from kio.static.primitive import i32
from kio.static.protocol import Entity, RequestPayload, ResponsePayload

from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.sasl_exchange import SaslExchange
from share_spark.model.errors import ConfigError

_CLIENT_ID = "share-spark"
# One for all requests, as each is answered before the next.
_CORRELATION_ID = i32(4711)
_MOST_BYTES = 64 << 20
"""The longest answer: a longer one is not from a Kafka broker."""

_Answer = TypeVar("_Answer", bound=ResponsePayload)
_Part = TypeVar("_Part", bound=Entity)


class Address(NamedTuple):
    """The address of a broker, or of a gateway."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return ``host:port``; an IPv6 address is in brackets. Raises ConfigError."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ConfigError(f"{text!r} is not an address: host:port")
        return cls(host, int(port))


class LoginRefusedError(ValueError):
    """A refusal by the broker, in its words."""


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """An open connection to a broker. Methods raise OSError, and ValueError for an answer that no Kafka broker
    sends."""

    socket: socket.socket

    def ask(self, request: RequestPayload, answer: type[_Answer]) -> _Answer:
        """Send a request, and return the answer. ``answer``: its type, of the version of the request."""
        message = encoded_request(request)
        self.socket.sendall(len(message).to_bytes(4) + message)
        return decoded_answer(self._received(answer_size(self._received(4))), answer)

    def _received(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            some = self.socket.recv(min(length - len(found), 1 << 20))
            if not some:
                raise ConnectionError("it has closed the connection")
            found += some
        return bytes(found)

    def log_in(self, mechanism: str, exchange: SaslExchange) -> None:
        """Log in by SASL. Raises LoginRefusedError too."""
        if self.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse).error_code:
            raise LoginRefusedError(f"it does not take SASL {mechanism}")
        said = next(exchange)
        while True:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=said), SaslAuthenticateResponse)
            if answer.error_code:
                raise LoginRefusedError(answer.error_message or "it refuses the login")
            try:
                said = exchange.send(answer.auth_bytes)
            except StopIteration:
                return


def encoded_request(request: RequestPayload) -> bytes:
    """Return a request with its header."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=_CORRELATION_ID,
        client_id=_CLIENT_ID,
    )
    content = io.BytesIO()
    entity_writer(type(header))(content, header)
    entity_writer(type(request))(content, request)
    return content.getvalue()


def answer_size(prefix: bytes) -> int:
    """Return the size of the answer that follows these four bytes. Raises ValueError."""
    size = int.from_bytes(prefix)
    if size > _MOST_BYTES:
        raise ValueError("the answer is too long")
    return size


def decoded_answer(content: bytes, kind: type[_Answer]) -> _Answer:
    """Return the answer to an ``encoded_request``. Raises ValueError."""
    # The number is checked before the body: for an array that claims to be very long, kio 0.6 asks for so much memory
    # that the process may abort. A reply that is no answer to our request is refused here.
    header, begin = _read(content, 0, kind.__header_schema__)
    if header.correlation_id != _CORRELATION_ID:
        raise ValueError("the answer is not one to our request")
    return _read(content, begin, kind)[0]


def _read(content: bytes, begin: int, kind: type[_Part]) -> tuple[_Part, int]:
    """Read one part of an answer, and return it with its end. Raises ValueError for all errors of kio."""
    try:
        return entity_reader(kind)(content, begin)
    except BufferUnderflow:
        raise ValueError("the answer is cut") from None
    except Exception as fault:  # noqa: BLE001 - KeyError: an unknown tag; ValueError: an unknown error code; and more
        raise ValueError(f"the answer cannot be read, {type(fault).__name__}: {fault}") from None


def known_versions(connection: BrokerConnection) -> Mapping[int, range]:
    """Return the versions of requests that the broker knows, by API key. Raises OSError, ValueError."""
    # Version 2, as later ones have tagged fields: brokers may add some, and kio reads only those that it knows.
    answer = connection.ask(ApiVersionsRequest(), ApiVersionsResponse)
    return {one.api_key: range(one.min_version, one.max_version + 1) for one in answer.api_keys}


@contextmanager
def connected(broker: Address, login: BrokerLogin, timeout_s: float) -> Iterator[BrokerConnection]:
    """Connect and log in; close at the end. ``timeout_s``: for each step. Raises OSError, ValueError."""
    with socket.create_connection(broker, timeout=timeout_s) as plain:
        secured = plain if login.tls is None else login.tls.wrap_socket(plain, server_hostname=broker.host)
        with secured:
            connection = BrokerConnection(secured)
            if login.begin is not None:
                connection.log_in(login.mechanism, login.begin())
            yield connection
