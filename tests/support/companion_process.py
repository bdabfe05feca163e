"""A companion process, with the test as its driver."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from share_spark.companion.messages import (
    LENGTH,
    Answered,
    Begin,
    CallsNow,
    FromCompanion,
    FromDriver,
    HandOver,
    Limits,
    RecordAnswer,
    packed_message,
)
from share_spark.delivery.ledger import CallStatus, LedgerEntries, read_entries
from share_spark.delivery.packed_handler import packed
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.handlers.handler import HANDLER_COLUMNS, as_handler
from share_spark.model.ids import TopicPartition

AT = TopicPartition("orders", 0)
ROOT = Path(__file__).parents[2]
DEADLINE_S = 20.0


def spans(first: int, last: int, count: int = 1) -> list[AcquiredSpan]:
    return [AcquiredSpan(AT, np.array([[first, last, count]]))]


def record_stream(
    offsets: Sequence[int], counts: Sequence[int] | None = None, keys: Sequence[bytes | None] | None = None
) -> bytes:
    """Records of orders-0, of which the value is the offset; delivered for the first time, without a key."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([AT.topic] * len(offsets), pa.string()),
            "partition": pa.array([AT.partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.nulls(len(offsets), pa.timestamp("us", "UTC")),
            "key": pa.array(keys or [None] * len(offsets), pa.binary()),
            "value": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
            "headers": pa.nulls(len(offsets), headers),
            "delivery_count": pa.array(counts or [1] * len(offsets), pa.int32()),
        }
    )
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(stream.getvalue())


def hand_over(number: int, first: int, last: int, **settings: Any) -> HandOver:
    """All records from ``first`` to ``last``."""
    return HandOver(number, spans(first, last), None, record_stream(range(first, last + 1)), **settings)


class CompanionProcess:
    """A running companion. ``received``: its messages except CallsNow, which are in ``reports``."""

    def __init__(self, directory: Path, function: Callable[..., Any], limits: Limits, **settings: Any) -> None:
        self.directory = directory
        self.received: list[FromCompanion] = []
        self.reports: list[CallsNow] = []
        ours, its = socket.socketpair()
        ours.settimeout(DEADLINE_S)
        self.connection = ours
        command = [sys.executable, "-m", "share_spark.companion.program", str(its.fileno())]
        with its:
            self.process = subprocess.Popen(command, cwd=ROOT, pass_fds=[its.fileno()])
        handler = as_handler(function, **settings)
        ledger = str(directory / "0")
        columns, in_threads = handler.columns or HANDLER_COLUMNS, handler.threads is not None
        self.send(Begin(packed(handler), handler.name, columns, ledger, limits, 1_000, in_threads))

    def send(self, message: FromDriver) -> None:
        self.connection.sendall(packed_message(message))

    def next(self) -> FromCompanion | None:
        """The next message that is no report; None: it has closed the connection."""
        while (message := self._message()) is not None:
            if not isinstance(message, CallsNow):
                self.received.append(message)
                return message
            self.reports.append(message)
        return None

    def report(self) -> CallsNow:
        """The next report."""
        before = len(self.reports)
        while len(self.reports) == before:
            message = self._message()
            assert message is not None, "it has ended"
            (self.reports if isinstance(message, CallsNow) else self.received).append(message)
        return self.reports[-1]

    def answers(self, offsets: int) -> list[RecordAnswer]:
        """The answers as they came, after waiting for those of so many offsets."""
        while sum(one.last_offset - one.first_offset + 1 for one in self.answered) < offsets:
            assert self.next() is not None, "it has ended"
        return self.answered

    @property
    def answered(self) -> list[RecordAnswer]:
        return [one for message in self.received if isinstance(message, Answered) for one in message.answers]

    def rest(self) -> list[FromCompanion]:
        """All messages, after waiting for its end."""
        while self.next() is not None:
            pass
        return self.received

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def leave(self) -> int:
        """Be gone, as a dead driver is; the exit code of the companion."""
        self.connection.close()
        return self.wait()

    def entries(self) -> list[LedgerEntries]:
        found = [file for file in self.directory.iterdir() if file.name.isdigit()] if self.directory.exists() else []
        return [read_entries(file) for file in sorted(found, key=lambda one: int(one.name))]

    def statuses(self) -> dict[int, CallStatus]:
        """By offset, from all ledgers."""
        return {
            offset: CallStatus(status)
            for one in self.entries()
            for offset, status in zip(one.offset.tolist(), one.status.tolist(), strict=True)
        }

    def until_entered(self, offsets: Collection[int]) -> None:
        """Wait until exactly these are in the handler."""
        deadline = time.monotonic() + DEADLINE_S
        while self._in_handler() != set(offsets):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _in_handler(self) -> set[int]:
        entered = (CallStatus.IN_HANDLER, CallStatus.WAITED)
        return {offset for offset, status in self.statuses().items() if status in entered}

    def _message(self) -> FromCompanion | None:
        try:
            size = self._exactly(LENGTH.size)
            return None if size is None else pickle.loads(self._exactly(LENGTH.unpack(size)[0]) or b"")
        except ConnectionError:
            return None

    def _exactly(self, size: int) -> bytes | None:
        content = b""
        while len(content) < size:
            more = self.connection.recv(size - len(content))
            if not more:
                return None
            content += more
        return content


@contextmanager
def companion(
    directory: Path, function: Callable[..., Any], *, most_calls: int = 100, timeout_ms: int = 60_000, **settings: Any
) -> Iterator[CompanionProcess]:
    """A companion that is killed at the end if it still runs."""
    process = CompanionProcess(directory, function, Limits(most_calls, timeout_ms), **settings)
    try:
        yield process
    finally:
        process.connection.close()
        if process.process.poll() is None:
            os.kill(process.process.pid, signal.SIGKILL)
        process.wait()
