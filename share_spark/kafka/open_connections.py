"""Connections to brokers that stay open from one request to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.kafka.broker_connection import Address, BrokerConnection, connected, known_versions
from share_spark.kafka.broker_login import BrokerLogin


class OpenConnection(NamedTuple):
    """A connection, the ``versions`` of requests that its broker knows, by API key, and what closes it."""

    broker: BrokerConnection
    versions: Mapping[int, range]
    closing: ExitStack


@dataclass(slots=True)
class OpenConnections:
    """Connections for several threads: as many to a broker as have requests at the same time. ``timeout_s``: for each
    step of a request."""

    login: BrokerLogin = field(repr=False)
    timeout_s: float
    _idle: dict[Address, list[OpenConnection]] = field(default_factory=dict)

    @contextmanager
    def to(self, broker: Address) -> Iterator[OpenConnection]:
        """Give a connection that nobody else uses meanwhile. After an error no connection to the broker is used again:
        it may have restarted. Raises OSError, ValueError."""
        found = self._taken(broker)
        try:
            yield found
        except BaseException:
            found.closing.close()
            self._close(self._idle.pop(broker, []))
            raise
        self._idle.setdefault(broker, []).append(found)

    def close(self) -> None:
        """Close all connections that nobody uses now."""
        while self._idle:
            self._close(self._idle.popitem()[1])

    def _taken(self, broker: Address) -> OpenConnection:
        try:
            return self._idle.get(broker, []).pop()
        except IndexError:
            return self._opened(broker)

    def _opened(self, broker: Address) -> OpenConnection:
        with ExitStack() as if_it_fails:
            connection = if_it_fails.enter_context(connected(broker, self.login, self.timeout_s))
            versions = known_versions(connection)
            return OpenConnection(connection, versions, if_it_fails.pop_all())

    def _close(self, connections: list[OpenConnection]) -> None:
        for one in connections:
            one.closing.close()
