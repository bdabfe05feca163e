"""A client of the gateway that sends frames as a test wants them."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from share_spark.kafka.broker_connection import Address

CORRELATION = 4711
_GIVE_UP_S = 30.0


class GatewayClient:
    """A connection. What is read after the gateway has closed it is empty."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=_GIVE_UP_S)

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next frame; empty if the gateway has closed the connection."""
        length = self._received(4)
        return self._received(*struct.unpack(">i", length)) if length else b""

    def _received(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                some = self.socket.recv(size - len(found))
            except ConnectionError:
                some = b""
            if not some:
                return b""
            found += some
        return bytes(found)

    def answer(self, key: int, version: int) -> Any:
        """The next frame as an answer to a request of this API and version."""
        frame = self.receive()
        kind = load_response_schema(key, version)
        begin = 5 if kind.__header_schema__.__flexible__ else 4
        answer, size = entity_reader(kind)(frame, begin)
        assert begin + size == len(frame)
        return answer

    def ask(self, host: str) -> str:
        """Send ``coordinator_request(host)``; return the host in the answer, which an echo repeats."""
        self.send(coordinator_request(host))
        return self.answer(10, 0).host

    def is_closed(self) -> bool:
        """Wait for the next bytes; whether there are none."""
        return self.receive() == b""


def head(key: int, version: int, client_id: str = "test") -> bytes:
    return struct.pack(">hhih", key, version, CORRELATION, len(client_id)) + client_id.encode()


def coordinator_request(key: str) -> bytes:
    """FindCoordinator v0, the smallest request with a text."""
    return head(10, 0) + struct.pack(">h", len(key)) + key.encode()
