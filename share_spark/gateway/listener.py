"""Accepts connections, and takes each through the TLS handshake, beside the others and within a time.

The event loop's own server does not tell of handshakes that go on or have failed, so nobody could count them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from ssl import SSLContext

from share_spark.kafka.broker_connection import Address

_log = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""The time until the next try, where there were too many open files."""


class Listener:
    """The listening sockets of a server. ``begin`` takes each connection, and never raises an Exception."""

    def __init__(self, begin: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Do not listen yet."""
        self._begin = begin
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, place: Address) -> Address:
        """Listen, and return the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*place, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                one = socket.create_server(address[:2], family=family, backlog=1_000)
                one.setblocking(False)
                self._sockets.append(one)
        except OSError:
            await self.stop()
            raise
        for one in self._sockets:
            self._run(self._accept(one))
        return Address(*self._sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        """Listen no more, and end the handshakes that go on."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as fault:
                _log.warning("no connection is accepted for %g s: %s", _PAUSE_S, fault.strerror)
                await asyncio.sleep(_PAUSE_S)
            else:
                self._run(self._begin(accepted))

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def take(accepted: socket.socket, protocol: asyncio.Protocol, tls: SSLContext | None, handshake_s: float) -> None:
    """Give a connection to its protocol, after the TLS handshake if there is one. If that fails it is closed."""
    loop = asyncio.get_running_loop()
    limit_s = None if tls is None else handshake_s
    try:
        await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=limit_s)
    except OSError as fault:  # as are those of TLS, and that of the time
        _log.debug("a connection ends in its TLS handshake: %s", fault)
