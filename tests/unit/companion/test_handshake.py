"""The first words between a driver and the task that starts a companion: both have to know the secret."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from share_spark.companion.handshake import StrangerError, admit, introduced

SECRET = b"0123456789"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def beside(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """What the function returns or raises, in a thread."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(function(*arguments))
        except BaseException as fault:  # noqa: BLE001
            found.set_exception(fault)

    threading.Thread(target=run).start()
    return found


def accepted(listener: socket.socket, secret: bytes) -> socket.socket:
    connection, _ = listener.accept()
    try:
        admit(connection, secret)
    except StrangerError:
        connection.close()
        raise
    return connection


def test_who_knows_the_secret_is_admitted_and_both_ends_are_watched(listener: socket.socket) -> None:
    driver = beside(accepted, listener, SECRET)
    with introduced(listener.getsockname(), SECRET) as task, driver.result(10) as ours:
        task.sendall(b"hello")
        assert ours.recv(5) == b"hello"
        for one in (task, ours):
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            assert one.gettimeout() is None


def test_a_task_that_does_not_know_it_is_not_admitted(listener: socket.socket) -> None:
    driver = beside(accepted, listener, SECRET)
    with pytest.raises((StrangerError, EOFError)):
        introduced(listener.getsockname(), b"guessed")
    assert isinstance(driver.exception(10), StrangerError)


def test_a_driver_that_does_not_know_it_gets_no_companion(listener: socket.socket) -> None:
    """One that sends back what it got as its own proof does not know it either."""

    def mirror() -> socket.socket:
        connection, _ = listener.accept()
        connection.sendall(b"x" * 32)
        got = connection.recv(64, socket.MSG_WAITALL)
        connection.sendall(got[32:])
        return connection

    driver = beside(mirror)
    with pytest.raises(StrangerError):
        introduced(listener.getsockname(), SECRET)
    driver.result(10).close()


VANISHES = """
import socket, subprocess, sys, threading, time
from share_spark.companion.handshake import admit, introduced
listener = socket.create_server(("127.0.0.1", 0))
def drive():
    connection, _ = listener.accept()
    admit(connection, b"s")
    ours.append(connection)
ours = []
thread = threading.Thread(target=drive)
thread.start()
task = introduced(listener.getsockname(), b"s")
thread.join()
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
began = time.monotonic()
ours[0].sendall(b"is not acknowledged")
for one in (task, ours[0]):
    try:
        print(one.recv(1))
    except OSError as fault:
        print(type(fault).__name__)
print(round(time.monotonic() - began))
"""


@pytest.mark.slow
def test_both_ends_notice_that_the_other_machine_is_gone() -> None:
    """In a network of its own, which goes away."""
    alone = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$0" -c "$1"']
    if subprocess.run([*alone[:4], "-c", "ip link set lo up"], capture_output=True, check=False).returncode:
        pytest.skip("no network of its own can be made here")
    done = subprocess.run([*alone, sys.executable, VANISHES], capture_output=True, text=True, check=False, timeout=120)
    *faults, seconds = done.stdout.split()
    assert faults == ["TimeoutError", "TimeoutError"], done.stderr
    assert int(seconds) <= 40
