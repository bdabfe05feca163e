"""The login of other gateways, which pass on requests of their clients: a mechanism of its own beside those of users.

What the other one shows is the secret in the register: whoever can read that can read all state as well. It also tells
which user the requests are of, and what he may do, again when that has changed: the gateway to which he has logged in
knows.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any

from kio.schema.errors import ErrorCode as WireError

from share_spark.gateway.access import Rights, Rules
from share_spark.gateway.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.login import Login, LoginAnswer, authenticate_answer, handshake_answer

MECHANISM = "SHARE-SPARK-GATEWAY"


def credentials(secret: str, node_id: int, rules: Rules) -> bytes:
    """Return what the gateway ``node_id`` shows to another one, for requests of a user with these rules."""
    return json.dumps({"secret": secret, "node_id": node_id, "rules": asdict(rules)}).encode()


@dataclass(slots=True)
class NodeLogin:
    """The Login of a connection: ``users`` is that of clients. ``secret``: of this node. ``via``: the node that passes
    on requests by this connection, None if it is a client's."""

    secret: str
    users: Login
    via: int | None = None
    _rules: Rules | None = None
    _is_begun: bool = False

    @property
    def rights(self) -> Rights | None:
        """See ``Login``."""
        return self._rules if self._is_begun else self.users.rights

    def close(self) -> None:
        """See ``Login``."""
        self.users.close()

    async def answer(self, context: RequestContext, request: Any) -> LoginAnswer | None:
        """See ``Login``."""
        if context.api_key == SASL_HANDSHAKE.key and request.mechanism == MECHANISM:
            self._is_begun = True
            return LoginAnswer(handshake_answer(context, WireError.none, (MECHANISM,)))
        if context.api_key == SASL_AUTHENTICATE.key and self._is_begun:
            return self._authenticated(context, request.auth_bytes)
        return await self.users.answer(context, request)

    def _authenticated(self, context: RequestContext, said: bytes) -> LoginAnswer:
        try:
            shown = json.loads(said)
            if not hmac.compare_digest(str(shown["secret"]).encode(), self.secret.encode()):
                raise ValueError("the secret is another one")
            self._rules, self.via = _rules_of(shown["rules"]), int(shown["node_id"])
        except (ValueError, KeyError, TypeError):
            text = "Authentication failed: this is no gateway of the register"
            return LoginAnswer(authenticate_answer(context, WireError.sasl_authentication_failed, text), is_last=True)
        return LoginAnswer(authenticate_answer(context, WireError.none, None))


def _rules_of(said: Any) -> Rules:
    return Rules(
        groups=tuple(said["groups"]),
        topics=tuple(said["topics"]),
        administers=bool(said["administers"]),
        acts_as_broker=bool(said["acts_as_broker"]),
    )
