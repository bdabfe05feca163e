"""The port of the driver at which tasks on executors introduce the companions that they are about to start."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from share_spark.companion.handshake import WELCOME, StrangerError, admit
from share_spark.companion.messages import Hello, received

_log = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """A companion that waits for its ``Begin``."""

    connection: socket.socket
    hello: Hello


class Arrivals:
    """The companions that have arrived. ``host``: of the driver, as executors reach it; ``bound``: the address of its
    own at which it listens. ``heard`` is notified of each. Raises OSError: it cannot listen there."""

    def __init__(self, host: str, bound: str, heard: threading.Condition) -> None:
        self._heard = heard
        self._listener = socket.create_server((bound, 0), family=socket.AF_INET6 if ":" in bound else socket.AF_INET)
        self.address = (host, int(self._listener.getsockname()[1]))
        self.secret = secrets.token_bytes(32)
        self._arrived: deque[Arrival] = deque()
        threading.Thread(target=self._accept, name="share-spark-companions", daemon=True).start()

    def take(self) -> list[Arrival]:
        """Return those that have arrived since the last call."""
        with self._heard:
            found = list(self._arrived)
            self._arrived.clear()
            return found

    def close(self) -> None:
        """Let nobody arrive any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for connection, _ in self.take():
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._admit, args=[connection], daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        try:
            admit(connection, self.secret)
            arrival = Arrival(connection, received(connection))
        except (OSError, EOFError) as fault:
            if isinstance(fault, StrangerError):
                _log.warning("a connection from %s did not know the secret", connection.getpeername()[0])
            connection.close()
            return
        with self._heard, suppress(OSError):
            connection.sendall(WELCOME)  # with the lock, so that ``Begin`` comes after it
            self._arrived.append(arrival)
            self._heard.notify_all()
