"""The login of a connection at the cluster: what the client says is said to a broker, and its answers are given on.

Each client has a connection of its own to a broker, on which it is logged in as itself once the exchange has ended, and
on which the cluster is asked for its rights. Nothing that is said is looked into: only the broker's last word is known
by its beginning.
"""

from __future__ import annotations

import logging
import math
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode as WireError
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse

from share_spark.gateway.access import Rights
from share_spark.gateway.apis import SASL_HANDSHAKE
from share_spark.gateway.cluster_rights import ClusterRights
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.login import Login, LoginAnswer, authenticate_answer, handshake_answer, illegal_answer
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.broker_stream import BrokerStream
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.sasl_exchange import SCRAM_HASHES
from share_spark.model.errors import ConfigError

_log = logging.getLogger(__name__)

_STEP_S = 5.0
"""The time for each step of the cluster: to connect, and to answer."""

_LAST_WORDS: Mapping[str, bytes] = {"PLAIN": b"", "OAUTHBEARER": b"", **dict.fromkeys(SCRAM_HASHES, b"v=")}
"""The beginning of what a broker says last to a client that it lets in; nothing: it says nothing. Kerberos is not among
them: its tickets are for the broker's own name, and so cannot be relayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLogins:
    """Makes the logins of connections. ``brokers``: each login is relayed to any of them."""

    brokers: tuple[Address, ...]
    tls: ssl.SSLContext | None = field(repr=False)

    @classmethod
    def of(cls, options: KafkaOptions) -> ClusterLogins:
        """Return the logins at the cluster of these options. Raises ConfigError."""
        protocol = options.values.get("security.protocol", "PLAINTEXT")
        if not protocol.startswith("SASL"):
            raise ConfigError(
                f"--login cluster: clients log in by SASL, but security.protocol of the cluster is {protocol}: "
                "give a listener of it with SASL_SSL or SASL_PLAINTEXT"
            )
        brokers = tuple(map(Address.parse, options.bootstrap_servers.split(",")))
        return cls(brokers=brokers, tls=BrokerLogin.of(options).tls)

    def __call__(self) -> Login:
        """Return the login of a new connection."""
        return _ClusterLogin(self)

    async def connect(self) -> BrokerStream:
        """Connect to a broker. Raises OSError."""
        *others, last = random.sample(self.brokers, len(self.brokers))
        for broker in others:
            try:
                return await BrokerStream.open(broker, self.tls, _STEP_S)
            except OSError as fault:
                _log.info("Kafka at %s takes no connection: %s", broker, fault)
        return await BrokerStream.open(last, self.tls, _STEP_S)


@dataclass(slots=True)
class _ClusterLogin:
    """``_mechanism``: of the exchange that goes on, empty if there is none. ``_ends_s``: when the client has to have
    logged in again."""

    logins: ClusterLogins
    _stream: BrokerStream | None = None
    _mechanism: str = ""
    _rights: ClusterRights | None = None
    _ends_s: float = math.inf

    @property
    def via(self) -> None:
        return None

    @property
    def rights(self) -> Rights | None:
        if self._rights is None or self._rights.connection.is_closed or time.monotonic() >= self._ends_s:
            return None
        return self._rights

    async def answer(self, context: RequestContext, request: Any) -> LoginAnswer | None:
        self._rights = None
        try:
            if context.api_key == SASL_HANDSHAKE.key:
                return await self._begun(context, request.mechanism)
            if self._stream is not None and self._mechanism:
                return await self._next(context, self._stream, request.auth_bytes)
        except (OSError, ValueError) as fault:
            _log.warning("a login from %s cannot be relayed to the cluster: %s", context.client_host, fault)
            return None
        return illegal_answer(context)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def _begun(self, context: RequestContext, mechanism: str) -> LoginAnswer:
        if self._stream is None:
            self._stream = await self.logins.connect()
        answer = await self._stream.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        error = answer.error_code
        if not error and mechanism not in _LAST_WORDS:
            error = WireError.unsupported_sasl_mechanism
        self._mechanism = "" if error else mechanism
        offered = [one for one in answer.mechanisms if one in _LAST_WORDS]
        return LoginAnswer(handshake_answer(context, error, offered), is_last=bool(error))

    async def _next(self, context: RequestContext, stream: BrokerStream, said: bytes) -> LoginAnswer:
        answer = await stream.ask(SaslAuthenticateRequest(auth_bytes=said), SaslAuthenticateResponse)
        lifetime = answer.session_lifetime
        if answer.error_code:
            _log.info("a login from %s is refused by the cluster", context.client_host)
        elif _is_last_word(self._mechanism, answer.auth_bytes):
            self._mechanism, self._rights = "", ClusterRights(stream)
            self._ends_s = time.monotonic() + lifetime.total_seconds() if lifetime else math.inf
        given_on = authenticate_answer(
            context, answer.error_code, answer.error_message, answer.auth_bytes, session_lifetime=lifetime
        )
        return LoginAnswer(given_on, is_last=bool(answer.error_code))


def _is_last_word(mechanism: str, answer: bytes) -> bool:
    last = _LAST_WORDS[mechanism]
    return answer.startswith(last) if last else not answer
