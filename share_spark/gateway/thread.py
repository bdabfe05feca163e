"""Runs a server in a thread of its own, with an event loop of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Thread

from share_spark.gateway.server import Server
from share_spark.kafka.broker_connection import Address


class GatewayThread:
    """A server in a thread. All that it calls is called in that thread."""

    def __init__(self, server: Server) -> None:
        """Do not start yet."""
        self._server = server
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="share_spark gateway", daemon=True)
        self._address: Future[Address] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def start(self) -> Address:
        """Start, and return the address once the server listens. Raises OSError."""
        self._thread.start()
        return self._address.result()

    @property
    def address(self) -> Address:
        """The address, after ``start``."""
        return self._address.result()

    def stop(self) -> None:
        """Disconnect all clients, and end the thread. From another thread; after ``start``, also twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            address = await self._server.start()
        except OSError as error:
            self._address.set_exception(error)
            return
        self._address.set_result(address)
        await self._stop.wait()
        await self._server.stop()
