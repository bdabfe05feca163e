"""The server: it listens, and hands each request to its handler."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from ssl import SSLContext

from share_spark.gateway.connection import Connection, ConnectionLimits
from share_spark.gateway.handler import Handler
from share_spark.gateway.listener import Listener, take
from share_spark.gateway.login import Login, NoLogin
from share_spark.kafka.broker_connection import Address

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of the server. ``connections``: at a time, and so also requests at a time, as a connection has one; a
    consumer has three or more. ``strangers``: those of them that are in the TLS handshake, or have not logged in."""

    connections: int = 10_000
    strangers: int = 1_000
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class Server:
    """A server for clients of Kafka, in the event loop in which it is started."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        limits: ServerLimits | None = None,
        *,
        tls: SSLContext | None = None,
        logins: Callable[[], Login] = NoLogin,
    ) -> None:
        """Do not listen yet. ``port``: 0 for any that is free. ``logins``: makes the login of a connection."""
        self._place = Address(host, port)
        self._handler = handler
        self._limits = limits or ServerLimits()
        self._tls, self._logins = tls, logins
        self._ids = count(1)
        self._beginning: set[Connection] = set()
        self._strangers: set[Connection] = set()
        self._connections: set[Connection] = set()
        self._none_left = asyncio.Event()
        self._listener = Listener(self._begin)

    async def start(self) -> Address:
        """Listen, and return the address. Raises OSError."""
        return await self._listener.start(self._place)

    async def stop(self) -> None:
        """Stop listening, and disconnect all clients: requests that are being answered are cancelled, and the handler
        is told of each connection that is closed. Only after ``start``, once."""
        await self._listener.stop()
        for connection in self._connections:
            connection.close("the server stops")
        if self._connections:
            await self._none_left.wait()

    async def _begin(self, accepted: socket.socket) -> None:
        """Make a connection of what was accepted, or close it at once."""
        limits = self._limits
        if not self._has_room:
            _log.debug("a connection is closed: there are too many")
            accepted.close()
            return
        connection = Connection(next(self._ids), self._handler, limits.connection, self, self._logins())
        self._beginning.add(connection)
        try:
            await take(accepted, connection, self._tls, limits.connection.login_s)
        finally:
            self._beginning.discard(connection)

    @property
    def _has_room(self) -> bool:
        beginning = len(self._beginning)
        return (
            len(self._connections) + beginning < self._limits.connections
            and len(self._strangers) + beginning < self._limits.strangers
        )

    def began(self, connection: Connection) -> None:
        """Keep a connection."""
        self._beginning.discard(connection)
        self._connections.add(connection)
        self._strangers.add(connection)

    def logged_in(self, connection: Connection) -> None:
        """Count a connection among the known ones."""
        self._strangers.discard(connection)

    def ended(self, connection: Connection) -> None:
        """Forget a connection that has ended, and tell the handler."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._strangers.discard(connection)
        if not self._connections:
            self._none_left.set()
        try:
            self._handler.closed(connection.id)
        except Exception:  # noqa: BLE001 - a fault of the handler must not end the server
            _log.exception("the end of connection %d could not be handled", connection.id)
