"""The driver's end of the connection to a companion, wherever that runs."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from share_spark.companion.messages import CallsNow, FromCompanion, FromDriver, packed_message, received


class Ending(NamedTuple):
    """The end of a companion. ``how``: for people. ``has_left_ledger``: its ledgers say what was called, and are
    complete; if not, nothing is known."""

    how: str
    has_left_ledger: bool = True


class Link(ABC):
    """A companion, as far as a connection goes. Messages are sent and taken by one thread; all companions of a delivery
    notify the same ``heard``, whose lock guards what has come."""

    def __init__(self, connection: socket.socket, heard: threading.Condition) -> None:
        self._connection, self._heard = connection, heard
        self._inbox: deque[FromCompanion] = deque()
        self._has_ended = False
        self._fault: OSError | None = None
        self._calls_now: CallsNow | None = None
        self._reader = threading.Thread(target=self._read, name="share-spark-companion", daemon=True)
        self._reader.start()

    @property
    def calls_now(self) -> CallsNow | None:
        """The last that it said of its running calls; None before the first."""
        return self._calls_now

    @property
    def has_news(self) -> bool:
        """Whether there is something to take. To be asked with the lock of ``heard``."""
        return bool(self._inbox) or self._has_ended

    def send(self, message: FromDriver) -> None:
        """Send a message. Nothing happens if the connection has ended: ``take`` says so."""
        with suppress(OSError):
            self._connection.sendall(packed_message(message))

    def take(self) -> tuple[list[FromCompanion], bool]:
        """Return (the messages that have come since the last call, whether no more will come)."""
        with self._heard:
            found = list(self._inbox)
            self._inbox.clear()
            return found, self._has_ended

    def end(self) -> None:
        """End the connection: the companion begins no more calls, and ends."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    @abstractmethod
    def ending(self) -> Ending | None:
        """Return how it has ended, None if that is not known yet. Its connection has ended before."""

    def _close(self) -> None:
        """Free the connection, which has ended."""
        self._reader.join()
        self._connection.close()

    def _read(self) -> None:
        try:
            with suppress(EOFError):
                while True:
                    self._note(received(self._connection))
        except OSError as fault:
            self._fault = fault
        finally:
            with self._heard:
                self._has_ended = True
                self._heard.notify_all()

    def _note(self, message: FromCompanion) -> None:
        if isinstance(message, CallsNow):  # twice a second, and nobody waits for it
            self._calls_now = message
            return
        with self._heard:
            self._inbox.append(message)
            self._heard.notify_all()
