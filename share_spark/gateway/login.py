"""The login of a connection: SaslHandshake, then SaslAuthenticate until the exchange has ended."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.gateway.access import EVERYTHING, Rights
from share_spark.gateway.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.scram import Exchange, ExchangeError, PlainExchange, Said, ScramExchange
from share_spark.gateway.users import UsersFile
from share_spark.kafka.sasl_exchange import SCRAM_HASHES

_log = logging.getLogger(__name__)

_REFUSAL_S = 0.1
"""The least time until a refusal (Kafka: ``connection.failed.authentication.delay.ms``)."""

_PLAIN = "PLAIN"


class LoginAnswer(NamedTuple):
    """An answer. ``is_last``: the connection is closed once it is sent."""

    answer: ResponsePayload
    is_last: bool = False


class Login(Protocol):
    """The login of one connection, for the thread of the event loop. ``via``: the node that passes on requests of its
    clients by this connection; None: it is a client's own."""

    @property
    def via(self) -> int | None:
        """See above."""
        ...

    @property
    def rights(self) -> Rights | None:
        """The rights of the user; None: the client has not logged in, or its user is no longer there."""
        ...

    async def answer(self, context: RequestContext, request: Any) -> LoginAnswer | None:
        """Return the answer to a SaslHandshake or a SaslAuthenticate; None closes the connection."""
        ...

    def close(self) -> None:
        """End what was begun for the connection, which is closed."""
        ...


class NoLogin:
    """The Login of a gateway that asks for none."""

    rights: Rights = EVERYTHING
    via = None

    async def answer(self, context: RequestContext, request: Any) -> LoginAnswer:  # noqa: ARG002
        """See ``Login``: a broker refuses it too, where it asks for none."""
        return illegal_answer(context)

    def close(self) -> None:
        """See ``Login``."""


@dataclass(slots=True)
class SaslLogins:
    """Makes the logins of connections. ``mechanisms``: that clients may choose from."""

    file: UsersFile
    mechanisms: Sequence[str]
    _one_at_a_time: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    @classmethod
    def of(cls, file: UsersFile, *, is_encrypted: bool) -> SaslLogins:
        """Return the logins of the users in a file. PLAIN sends the password, so it takes encryption."""
        return cls(file, (*SCRAM_HASHES, _PLAIN) if is_encrypted else tuple(SCRAM_HASHES))

    def __call__(self) -> Login:
        """Return the login of a new connection."""
        return _SaslLogin(self)

    def begin(self, mechanism: str) -> Exchange:
        """Begin an exchange, with the users as they are now."""
        keys_of = self.file.users.keys_of
        return (
            PlainExchange(keys_of)
            if mechanism == _PLAIN
            else ScramExchange(mechanism, keys_of, secrets.token_urlsafe(24))
        )

    async def step(self, exchange: Exchange, said: bytes) -> Said:
        """Return the answer of an exchange. That of PLAIN takes a hundredth of a second: all logins together get one
        thread for it, and those by SCRAM do not wait for it. Raises ExchangeError."""
        if isinstance(exchange, ScramExchange):
            return exchange.answer(said)
        async with self._one_at_a_time:
            return await asyncio.to_thread(exchange.answer, said)


@dataclass(slots=True)
class _SaslLogin:
    logins: SaslLogins
    _mechanism: str = ""
    _exchange: Exchange | None = None
    _user: str | None = None

    @property
    def via(self) -> None:
        return None

    @property
    def rights(self) -> Rights | None:
        user = None if self._user is None else self.logins.file.users.by_name.get(self._user)
        return None if user is None else user.rules

    async def answer(self, context: RequestContext, request: Any) -> LoginAnswer:
        if context.api_key == SASL_HANDSHAKE.key and not self._mechanism:
            return self._begun(context, request.mechanism)
        if context.api_key == SASL_AUTHENTICATE.key and self._exchange is not None:
            return await self._next(context, self._exchange, request.auth_bytes)
        return illegal_answer(context)

    def _begun(self, context: RequestContext, mechanism: str) -> LoginAnswer:
        is_known = mechanism in self.logins.mechanisms
        if is_known:
            self._mechanism, self._exchange = mechanism, self.logins.begin(mechanism)
        error = WireError.none if is_known else WireError.unsupported_sasl_mechanism
        return LoginAnswer(handshake_answer(context, error, self.logins.mechanisms), is_last=not is_known)

    async def _next(self, context: RequestContext, exchange: Exchange, said: bytes) -> LoginAnswer:
        refused_at = asyncio.get_running_loop().time() + _REFUSAL_S
        try:
            answer, self._user = await self.logins.step(exchange, said)
        except ExchangeError:
            self._exchange = None
            _log.info("a login from %s is refused", context.client_host)
            await asyncio.sleep(refused_at - asyncio.get_running_loop().time())
            return LoginAnswer(_refusal(context, self._mechanism), is_last=True)
        if self._user is not None:
            self._exchange = None
        return LoginAnswer(authenticate_answer(context, WireError.none, None, answer))

    def close(self) -> None:
        pass


def illegal_answer(context: RequestContext) -> LoginAnswer:
    """Return the answer to a part of a login that has no place at this point."""
    error = WireError.illegal_sasl_state
    if context.api_key == SASL_HANDSHAKE.key:
        return LoginAnswer(handshake_answer(context, error, ()), is_last=True)
    return LoginAnswer(authenticate_answer(context, error, "There is no login at this point."), is_last=True)


def _refusal(context: RequestContext, mechanism: str) -> ResponsePayload:
    """Return the refusal, in Kafka's words; it does not tell whether there is such a user."""
    text = (
        "Authentication failed: Invalid username or password"
        if mechanism == _PLAIN
        else f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )
    return authenticate_answer(context, WireError.sasl_authentication_failed, text)


def handshake_answer(context: RequestContext, error: WireError, mechanisms: Sequence[str]) -> ResponsePayload:
    """Return the answer to a SaslHandshake."""
    values = {"error_code": error, "mechanisms": tuple(mechanisms)}
    return make_message(load_response_schema(SASL_HANDSHAKE.key, context.api_version), values)


def authenticate_answer(
    context: RequestContext,
    error: WireError,
    text: str | None,
    answer: bytes = b"",
    *,
    session_lifetime: timedelta = timedelta(),
) -> ResponsePayload:
    """Return the answer to a SaslAuthenticate."""
    values = {"error_code": error, "error_message": text, "auth_bytes": answer, "session_lifetime": session_lifetime}
    return make_message(load_response_schema(SASL_AUTHENTICATE.key, context.api_version), values)
