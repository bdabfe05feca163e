"""The side that knows what a request means, as the server calls it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kio.static.protocol import RequestPayload

from share_spark.gateway.access import EVERYTHING, Grant, Rights
from share_spark.gateway.frames import Answer


class RequestContext(NamedTuple):
    """The origin of a request, and its kind. ``client_id``: as the client calls itself, None if it does not.
    ``rights``: of the user who has logged in. ``via``: the node that has passed the request on, None if the client has
    sent it here. ``frame``: the request as it has come."""

    connection_id: int
    client_id: str | None
    client_host: str
    api_key: int
    api_version: int
    rights: Rights = EVERYTHING
    via: int | None = None
    frame: bytes = b""

    @property
    def grant(self) -> Grant:
        """The groups and topics that the request may be about."""
        return Grant.of(self.rights, self.api_key)


class Handler(Protocol):
    """The side that answers requests. All its methods are called in the server's event loop."""

    async def answer(self, context: RequestContext, request: RequestPayload) -> Answer | None:
        """Return the answer, of the version of the request; None closes the connection.

        A connection has one request at a time. If it closes meanwhile, the call is cancelled: what it has handed on
        stays so. An exception is logged as a fault of the handler, and closes the connection.
        """
        ...

    def closed(self, connection_id: int) -> None:
        """End what belongs to a connection that is closed. No request of it is being answered any more."""
        ...
