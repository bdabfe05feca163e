"""A way to a broker that a test can disturb: the bytes of a real one, and what a test says in place of some answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread

from share_spark.kafka.broker_connection import Address

Disturb = Callable[[int, bytes], bytes | None]
"""What is sent in place of an answer, whose number on its connection begins at 1: bytes, or None: the connection is
closed. An answer comes with its length before it."""


def as_it_is(_: int, answer: bytes) -> bytes:
    """The Disturb that does not."""
    return answer


class TcpProxy:
    """``connections``: how many are open. ``refuses``: each is closed as soon as it is made."""

    def __init__(self, broker: Address) -> None:
        self.broker = broker
        self.disturb: Disturb = as_it_is
        self.refuses = False
        self.connections = 0
        self.address: Address
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="tests: proxy")
        self._started: Future[Callable[[], object]] = Future()

    def start(self) -> None:
        self._thread.start()
        self._end = self._started.result()

    def stop(self) -> None:
        self._end()
        self._thread.join()

    async def _run(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.address = Address(*server.sockets[0].getsockname())
        self._started.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        server.close()  # what is passed on still ends with the loop

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if not self.refuses:
                await self._pass_on(reader, writer)
        finally:
            writer.transport.abort()
            self.connections -= 1

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one of both has closed."""
        from_broker, to_broker = await asyncio.open_connection(*self.broker)
        ways = {
            asyncio.ensure_future(_requests(reader, to_broker)),
            asyncio.ensure_future(self._answers(from_broker, writer)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in ways:
                one.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_broker.transport.abort()

    async def _answers(self, from_broker: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while True:
            number += 1
            length = await from_broker.readexactly(4)
            sent = self.disturb(number, length + await from_broker.readexactly(int.from_bytes(length)))
            if sent is None:
                return
            writer.write(sent)
            await writer.drain()


async def _requests(reader: asyncio.StreamReader, to_broker: asyncio.StreamWriter) -> None:
    while some := await reader.read(1 << 16):
        to_broker.write(some)
        await to_broker.drain()


@contextmanager
def proxy_to(broker: Address) -> Iterator[TcpProxy]:
    proxy = TcpProxy(broker)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
