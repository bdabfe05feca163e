"""The first words between the driver and a task that is about to start a companion, over TCP: both show that they know
a secret, which does not travel here, and only then anything is unpickled.

    driver                                               task
      32 random bytes, A                    ->
                                            <-             32 random bytes, B; HMAC(secret, "companion" A B)
      HMAC(secret, "driver" A B)            ->
                                            <-             Hello
      one byte                              ->

The kernels of both machines then watch the connection: if one of them is gone without a word, the other one ends it.
"""

from __future__ import annotations

import hmac
import secrets
import socket

from share_spark.companion.messages import exactly

_BYTES = 32
_PATIENCE_S = 10.0

_QUIET_S, _EVERY_S, _PROBES = 5, 5, 3
"""The connection is probed after so many seconds without data, and ends after so many probes without an answer."""

_KEEPALIVE = {"TCP_KEEPIDLE": _QUIET_S, "TCP_KEEPINTVL": _EVERY_S, "TCP_KEEPCNT": _PROBES}
_UNSENT_MS = 1_000 * (_QUIET_S + _EVERY_S * _PROBES)
"""The time for which data may stay without an acknowledgement, while which there are no probes."""


WELCOME = b"\1"
"""The driver's answer to ``Hello``: it has noted the companion."""


class StrangerError(ConnectionError):
    """The other end does not know the secret."""


def admit(connection: socket.socket, secret: bytes) -> None:
    """Do the driver's part. Raises StrangerError, EOFError, OSError."""
    _watch(connection)
    connection.settimeout(_PATIENCE_S)
    ours = secrets.token_bytes(_BYTES)
    connection.sendall(ours)
    theirs, proof = exactly(connection, _BYTES), exactly(connection, _BYTES)
    _check(proof, _proof(secret, b"companion", ours + theirs))
    connection.sendall(_proof(secret, b"driver", ours + theirs))
    connection.settimeout(None)


def introduced(address: tuple[str, int], secret: bytes) -> socket.socket:
    """Do the task's part, over a new connection. Raises StrangerError, EOFError, OSError."""
    connection = socket.create_connection(address, _PATIENCE_S)
    try:
        _watch(connection)
        theirs, ours = exactly(connection, _BYTES), secrets.token_bytes(_BYTES)
        connection.sendall(ours + _proof(secret, b"companion", theirs + ours))
        _check(exactly(connection, _BYTES), _proof(secret, b"driver", theirs + ours))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def _proof(secret: bytes, whose: bytes, challenges: bytes | bytearray) -> bytes:
    return hmac.digest(secret, whose + challenges, "sha256")


def _check(proof: bytes | bytearray, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise StrangerError("the other end does not know the secret")


def _watch(connection: socket.socket) -> None:
    """Let the kernel end the connection once nobody is there. Small messages are sent at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system, and executors run on Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
