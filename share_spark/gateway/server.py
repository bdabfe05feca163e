"""The server: it listens, and hands each request to its handler."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from itertools import count
from ssl import SSLContext

from share_spark.gateway.connection import Connection, ConnectionLimits
from share_spark.gateway.handler import Handler
from share_spark.kafka.broker_connection import Address

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of the server. ``connections``: at a time, and so also requests at a time, as a connection has one; a
    consumer has three or more."""

    connections: int = 10_000
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
        ssl: SSLContext | None = None,
    ) -> None:
        """Do not listen yet. ``port``: 0 for any that is free. ``ssl``: for TLS."""
        self._place = Address(host, port)
        self._handler = handler
        self._limits = limits or ServerLimits()
        self._ssl = ssl
        self._ids = count(1)
        self._connections: set[Connection] = set()
        self._none_left = asyncio.Event()
        self._listener: asyncio.Server | None = None

    async def start(self) -> Address:
        """Listen, and return the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._new_connection, *self._place, ssl=self._ssl)
        return Address(*self._listener.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        """Stop listening, and disconnect all clients: requests that are being answered are cancelled, and the handler
        is told of each connection that is closed. Only after ``start``, once."""
        assert self._listener is not None
        self._listener.close()
        self._limits = replace(self._limits, connections=0)
        for connection in self._connections:
            connection.close("the server stops")
        if self._connections:
            await self._none_left.wait()

    def _new_connection(self) -> Connection:
        return Connection(next(self._ids), self._handler, self._limits.connection, self)

    def began(self, connection: Connection) -> None:
        """Keep a connection, or close it at once."""
        if len(self._connections) >= self._limits.connections:
            connection.close("there are too many connections")
        else:
            self._connections.add(connection)

    def ended(self, connection: Connection) -> None:
        """Forget a connection that has ended, and tell the handler."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        if not self._connections:
            self._none_left.set()
        try:
            self._handler.closed(connection.id)
        except Exception:  # noqa: BLE001 - a fault of the handler must not end the server
            _log.exception("the end of connection %d could not be handled", connection.id)
