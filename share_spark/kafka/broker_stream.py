"""A connection to a broker for the thread of an event loop, in which thousands of them may wait."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TypeVar

from kio.static.protocol import RequestPayload, ResponsePayload

from share_spark.kafka.broker_connection import Address, answer_size, decoded_answer, encoded_request

_Answer = TypeVar("_Answer", bound=ResponsePayload)


@dataclass(frozen=True, slots=True)
class BrokerStream:
    """An open connection, for one request at a time. ``timeout_s``: for each step."""

    broker: Address
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    timeout_s: float

    @classmethod
    async def open(cls, broker: Address, tls: ssl.SSLContext | None, timeout_s: float) -> BrokerStream:
        """Connect. Raises OSError."""
        host = broker.host if tls else None
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(*broker, ssl=tls, server_hostname=host)
        except TimeoutError:
            raise _late(timeout_s) from None
        return cls(broker, reader, writer, timeout_s)

    async def ask(self, request: RequestPayload, answer: type[_Answer]) -> _Answer:
        """Send a request, and return the answer. ``answer``: its type, of the version of the request. Raises OSError,
        and ValueError for an answer that no Kafka broker sends; then, and if it is cancelled, the connection is
        closed: an answer that comes late must not be taken for one to the next request."""
        try:
            return decoded_answer(await self._answered(encoded_request(request)), answer)
        except BaseException:
            self.close()
            raise

    async def _answered(self, message: bytes) -> bytes:
        if self.is_closed:
            raise ConnectionError("the connection is closed")
        try:
            async with asyncio.timeout(self.timeout_s):
                self._writer.write(len(message).to_bytes(4) + message)
                await self._writer.drain()
                size = answer_size(await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
        except TimeoutError:
            raise _late(self.timeout_s) from None
        except EOFError:
            raise ConnectionError("it has closed the connection") from None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed here."""
        return self._writer.is_closing()

    def close(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


def _late(timeout_s: float) -> TimeoutError:
    return TimeoutError(f"no answer in {timeout_s:g} s")
