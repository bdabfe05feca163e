"""The service that all systems call, on the loopback interface. It notes each call and its answer.

It lives in a thread of the judge, so what it has noted outlives the callers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.scoreboard.judge import Call
from tests.scoreboard.records import FAILED, latency_s, status_of
from tests.support.served import served


@dataclass(slots=True)
class CountingService:
    """``arrivals``: the calls as (number, delivery count), in their order; ``statuses``: the answers, by the place of
    the call. ``last_call``: when the last one came, by ``time.monotonic``. ``lives``: of the callers, until now."""

    port: int = 0
    last_call: float = 0.0
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    lives: int = 0
    _failures: Counter[int] = field(default_factory=Counter)

    @property
    def calls(self) -> list[Call]:
        """All calls until now."""
        told = enumerate(list(self.arrivals))
        return [Call(number=number, told=count, status=self.statuses.get(place)) for place, (number, count) in told]

    def callers_died(self) -> None:
        """Note that all callers were killed: nobody gets the answers of open calls. The system closes the connections
        of a killed process only some hundredths of a second later."""
        self.lives += 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one call: ``GET /NUMBER/COUNT``."""
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            number, count = map(int, path.split("/")[1:])
            place, life = len(self.arrivals), self.lives
            self.arrivals.append((number, count))
            self.last_call = time.monotonic()
            await asyncio.sleep(latency_s(number))
            if life != self.lives:
                return
            status = status_of(number, self._failures[number])
            self._failures[number] += status == FAILED
            self.statuses[place] = status
            writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@contextmanager
def counting_service() -> Iterator[CountingService]:
    """Yield a service that answers until the end of the block."""
    service = CountingService()
    with served(service.serve, "counting service") as service.port:
        yield service
