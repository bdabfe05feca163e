"""A service on the loopback interface that answers late, with errors, and with 429; it counts the calls of each record.

It lives in a thread of the test, so its counts outlive whoever calls: a call counts once its request has arrived,
whatever becomes of its caller. The last part of a path is the value of the record: what the service is to do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.support.served import served

Attempt = tuple[int, int, int]
"""Partition, offset, delivery count."""

LONGEST_S = 0.4
"""The longest time that an answer takes."""

RETRY_AFTER_S = 0.2


@dataclass(slots=True)
class LateService:
    """``calls``: how often each attempt has arrived and was not throttled; ``throttled``: and was. ``at_a_time``: how
    many calls were open at the same time, at most."""

    port: int = 0
    calls: Counter[Attempt] = field(default_factory=Counter)
    throttled: Counter[Attempt] = field(default_factory=Counter)
    at_a_time: int = 0
    _open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One call. It is open as long as its caller waits for it."""
        self._open += 1
        self.at_a_time = max(self.at_a_time, self._open)
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            _, partition, offset, count, value = path.split("/")
            attempt = int(partition), int(offset), int(count)
            status = self._status(attempt, unquote(value))
            if status != 429:
                with suppress(TimeoutError):  # its caller is gone
                    await asyncio.wait_for(reader.read(1), LONGEST_S * ((attempt[1] * 7) % 10) / 10)
            more = f"Retry-After: {RETRY_AFTER_S}\r\n" if status == 429 else ""
            writer.write(f"HTTP/1.1 {status} -\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self._open -= 1
            writer.close()

    def _status(self, attempt: Attempt, value: str) -> int:
        """Every fifth record is throttled the first time that it is asked for."""
        if attempt[1] % 5 == 2 and attempt[2] == 1 and not self.throttled[attempt]:
            self.throttled[attempt] += 1
            return 429
        self.calls[attempt] += 1
        if value == "reject":
            return 422
        return 503 if value == "always fail" or (value == "release once" and attempt[2] == 1) else 200


@contextmanager
def running_service() -> Iterator[LateService]:
    """A service that answers until the end of the block."""
    service = LateService()
    with served(service.serve, "late service") as service.port:
        yield service
