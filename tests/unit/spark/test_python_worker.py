"""What keeps a Python worker quick between its tasks."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from share_spark.spark import python_worker
from share_spark.spark.python_worker import acknowledge_at_once, forget_garbage_so_far


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            yield near, far
    for one in python_worker._connections():
        one.close()
    python_worker._connections.cache_clear()


def files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connections_are_found_once_and_nothing_else_is_kept_open(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = socket.socketpair()
    python_worker._connections.cache_clear()
    before = files()
    acknowledge_at_once()
    acknowledge_at_once()
    found = python_worker._connections()
    assert files() == before + len(found)
    assert {os.fstat(one.fileno()).st_ino for one in found} >= {os.fstat(one.fileno()).st_ino for one in connection}
    assert not {os.fstat(one.fileno()).st_ino for one in found} & {os.fstat(ours.fileno()).st_ino}
    ours.close()
    theirs.close()


def test_records_come_through_and_a_closed_connection_is_no_fault(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    near, far = connection
    acknowledge_at_once()
    near.sendall(b"command")
    assert far.recv(100) == b"command"
    far.close()
    near.close()
    acknowledge_at_once()


def test_what_is_there_is_not_collected_again() -> None:
    before = gc.get_freeze_count()
    forget_garbage_so_far()
    try:
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
