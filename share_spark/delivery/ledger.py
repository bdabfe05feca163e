"""The ledger of a task's calls: the record in the handler and the finished ones, in a file that outlives the worker.

A worker can end in the middle of a call. Spark then runs the task again, and only from this file do the repeat, and the
next engine, know which record was in the handler, which ones were finished, and which had not been entered. It is
written before and after each call and read only after a worker was lost, so writing is a store into mapped memory: the
kernel keeps it when the process is gone. Up to four files; all but the first exist only if there is something to write:

    <task>          blocks, one a batch:  header | offset[n] | partition[n] | count[n] | topic[n] | status[n]
    <task>.notes    lines of JSON: names of topics, errors and delays of records
    <task>.rows     output rows of accepted records, in chunks of Arrow
    <task>.stuck    what the watchdog wrote before it ended a worker that did not react (``time_limit``)

One attempt of a task at a time has the files: it holds a lock that ends with its process. A second one, a repeat or a
speculative copy, waits for that. (The lock is on a file of its own: locks of this kind, which children of the process
do not inherit, are lost when any handle of their file is closed.)
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.error_texts import error_text
from share_spark.model.errors import StateError
from share_spark.model.requests import Loss

LedgerColumn = npt.NDArray[Any]
"""A column of ``LedgerEntries``: integers."""

_HEADER = struct.Struct("<QQQ")  # magic, records, bytes of the block
_CHUNK = struct.Struct("<QQ")  # bytes of the chunk, records of the task that it is complete for
_MAGIC = int.from_bytes(b"\xfeshledg\x01")
_PER_RECORD = 8 + 4 + 4 + 4 + 1
_LOCK_WAIT_S = 0.05


class CallStatus(IntEnum):
    """One byte a record. ``ACCEPTED_WITH_ROWS``: its rows are only in the worker until a chunk of them is written. A
    later attempt notes the next two: the whole batch was in the handler when the worker died; the record was accepted,
    and its rows were lost with the worker. ``THROTTLED``: the record was given back, as if its handler had not been
    entered."""

    NOT_ENTERED = 0
    IN_HANDLER = 1
    ACCEPTED = 2
    RELEASED = 3
    REJECTED = 4
    ACCEPTED_WITH_ROWS = 5
    DIED_AMONG_OTHERS = 6
    ROWS_LOST = 7
    THROTTLED = 9


STATUS_OF: Mapping[int, CallStatus] = {
    int(Ack.ACCEPT): CallStatus.ACCEPTED,
    int(Ack.RELEASE): CallStatus.RELEASED,
    int(Ack.REJECT): CallStatus.REJECTED,
    int(Loss.THROTTLED): CallStatus.THROTTLED,
}
"""The status of a record by the answer of its handler; of one that was accepted, if it has no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntries:
    """The content of a ledger, one row per record in the order of the task. ``topic``: index into ``topics``.
    ``errors``, ``delays`` (ms): by row. ``rows_written``: of that many records the output rows are in ``chunks``."""

    topics: Sequence[str]
    topic: LedgerColumn
    partition: LedgerColumn
    offset: LedgerColumn
    count: LedgerColumn
    status: LedgerColumn
    errors: dict[int, str] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    rows_written: int = 0
    chunks: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.offset)


def read_entries(path: Path) -> LedgerEntries:
    """Return the entries at ``path``, perhaps none. A worker may still write: an entry has its status before its rows
    are written, and its error before its status. So rows are read first, and errors last."""
    chunks, rows_written = _chunks(path)
    content = path.read_bytes() if path.exists() else b""
    columns = [list(_columns(content, at, rows)) for at, rows, _ in _blocks(content)]
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    offset, partition, count, topic, status = joined or [np.zeros(0, kind) for kind in _TYPES]
    topics, errors, delays = _notes(path)
    return LedgerEntries(
        topics=topics,
        topic=topic,
        partition=partition,
        offset=offset,
        count=count,
        status=status,
        errors=errors,
        delays=delays,
        rows_written=rows_written,
        chunks=chunks,
    )


class CallLedger:
    """The ledger of one task, for the present attempt. ``entries``: what earlier attempts have left. ``topic``: all
    records are of this one; None: batches have a column of that name."""

    def __init__(self, path: Path, topic: str | None = None) -> None:
        self._path, self._topic = path, topic
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        _wait_for_lock(self._lock)
        # Opened and read under the lock only: until then the attempt before may still write.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.entries = read_entries(path)
        self._end = _aligned(os.fstat(self._file).st_size)
        self._topic_ids = {name: index for index, name in enumerate(self.entries.topics)}
        self._first, self._records = 0, len(self.entries)
        self._notes: int | None = None
        self._rows: int | None = None
        self._block: mmap.mmap | None = None
        self._status: memoryview | None = None

    def begin(self, batch: pa.RecordBatch) -> memoryview:
        """Return a byte for the status of each record of ``batch`` (partition, offset, delivery_count), 0 at first.
        Raises StateError: there is no space for them."""
        rows = batch.num_rows
        size = _aligned(_HEADER.size + rows * _PER_RECORD)
        columns = [*(batch.column(name).to_numpy(zero_copy_only=False) for name in _COLUMNS), self._ids(batch)]
        with _naming(self._path):
            # On a full disk the first access to a page without space would kill the worker.
            os.posix_fallocate(self._file, self._end, size)
            # The header last: a block whose header is zeros was not finished, and is skipped by ``_blocks``.
            os.pwrite(self._file, _as_bytes(columns), self._end + _HEADER.size)
            os.pwrite(self._file, _HEADER.pack(_MAGIC, rows, size), self._end)
            self._release_block()
            self._block = mmap.mmap(self._file, size, offset=self._end)
        self._end += size
        self._first, self._records = self._records, self._records + rows
        start = _HEADER.size + rows * (_PER_RECORD - 1)
        self._status = memoryview(self._block)[start : start + rows]
        return self._status

    def settle(self, lost_error: str) -> LedgerEntries:
        """Make the entries final, and return them. A record that was in the handler when the worker was lost has failed
        with ``lost_error``, or, if it was not alone there, was lost with its whole batch; rows that were not written
        are lost."""
        if not len(self.entries):
            return self.entries
        status = self.entries.status.copy()
        in_handler = np.flatnonzero(status == CallStatus.IN_HANDLER)
        if len(in_handler) == 1:
            self._note({"errors": [(int(in_handler[0]), lost_error)]})
        status[in_handler] = CallStatus.RELEASED if len(in_handler) == 1 else CallStatus.DIED_AMONG_OTHERS
        late = np.arange(len(status)) >= self.entries.rows_written
        status[late & (status == CallStatus.ACCEPTED_WITH_ROWS)] = CallStatus.ROWS_LOST
        # Noted in the file before anything is reported, so that a third attempt reports the same.
        at = 0
        for begin, rows, _ in list(_blocks(self._path.read_bytes())):
            os.pwrite(self._file, status[at : at + rows].tobytes(), begin + rows * (_PER_RECORD - 1))
            at += rows
        self.entries = read_entries(self._path)
        return self.entries

    def note_errors(self, errors: dict[int, str]) -> None:
        """Note errors by position in the batch that ``begin`` was called with."""
        if errors:
            self._note({"errors": [(self._first + position, error_text(text)) for position, text in errors.items()]})

    def note_delays(self, delays: dict[int, int]) -> None:
        """Note delays by position in the batch that ``begin`` was called with."""
        if delays:
            self._note({"delays": [(self._first + position, delay_ms) for position, delay_ms in delays.items()]})

    def write_rows(self, rows: pa.Table, complete: int) -> None:
        """Write output rows of accepted records: afterwards the file has those of the first ``complete`` records of the
        batch."""
        content = _as_stream(rows) if rows.num_rows else b""
        if self._rows is None:
            self._rows = os.open(f"{self._path}.rows", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._append(self._rows, _CHUNK.pack(len(content), self._first + complete) + content)

    def beside(self, purpose: str) -> Path:
        """Return the path of another file of the same task."""
        return Path(f"{self._path}.{purpose}")

    def close(self) -> None:
        """Release the files and the lock."""
        self._release_block()
        for file in (self._notes, self._rows, self._file, self._lock):
            if file is not None:
                os.close(file)

    def _ids(self, batch: pa.RecordBatch) -> LedgerColumn:
        if self._topic is not None:
            return np.full(batch.num_rows, self._id_of(self._topic), np.int32)
        encoded: Any = batch.column("topic").dictionary_encode()
        ids = np.array([self._id_of(name) for name in encoded.dictionary.to_pylist()], np.int32)
        found: LedgerColumn = ids[encoded.indices.to_numpy()]
        return found

    def _id_of(self, topic: str) -> int:
        if topic not in self._topic_ids:
            self._topic_ids[topic] = len(self._topic_ids)
            self._note({"topic": topic})
        return self._topic_ids[topic]

    def _note(self, what: dict[str, Any]) -> None:
        if self._notes is None:
            self._notes = os.open(f"{self._path}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._append(self._notes, json.dumps(what).encode() + b"\n")

    def _append(self, file: int, content: bytes) -> None:
        """Write all of ``content``: an almost full disk takes a part, and then nothing."""
        with _naming(self._path):
            while content:
                content = content[os.write(file, content) :]

    def _release_block(self) -> None:
        if self._status is not None:
            self._status.release()
        if self._block is not None:
            self._block.close()
        self._status = self._block = None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise StateError for OSError."""
    try:
        yield
    except OSError as fault:
        raise StateError(f"the ledger {path} cannot be written: {fault.strerror}") from fault


_COLUMNS = ("offset", "partition", "delivery_count")
_TYPES: tuple[np.dtype[Any], ...] = tuple(map(np.dtype, ("<i8", "<i4", "<i4", "<i4", "u1")))


def _as_bytes(columns: Sequence[Any]) -> bytes:
    """Return the bytes to write. Stores into mapped memory are slower: the first to a page costs a hundred records."""
    return b"".join(np.ascontiguousarray(column, kind).data for column, kind in zip(columns, _TYPES, strict=False))


def _blocks(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (position of the columns, records, bytes) of each whole block; one that an attempt did not finish has a
    header of zeros."""
    at = 0
    while at + _HEADER.size <= len(content):
        magic, rows, size = _HEADER.unpack_from(content, at)
        if magic == _MAGIC:
            yield at + _HEADER.size, rows, size
        at += size if magic == _MAGIC else mmap.ALLOCATIONGRANULARITY


def _columns(content: bytes, at: int, rows: int) -> Iterator[LedgerColumn]:
    for kind in _TYPES:
        yield np.frombuffer(content, kind, rows, at)
        at += rows * kind.itemsize


def _notes(path: Path) -> tuple[list[str], dict[int, str], dict[int, int]]:
    file = Path(f"{path}.notes")
    topics: list[str] = []
    errors: dict[int, str] = {}
    delays: dict[int, int] = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            note = json.loads(line)
        except ValueError:  # the last line, which the worker did not finish
            continue
        topics += [note["topic"]] if "topic" in note else []
        errors.update((position, error_text(text)) for position, text in note.get("errors", ()))
        delays.update((position, delay_ms) for position, delay_ms in note.get("delays", ()))
    return topics, errors, delays


def _as_stream(rows: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(stream.getvalue())


def _chunks(path: Path) -> tuple[list[bytes], int]:
    file = Path(f"{path}.rows")
    content = file.read_bytes() if file.exists() else b""
    chunks, complete, at = [], 0, 0
    while at + _CHUNK.size <= len(content):
        size, records = _CHUNK.unpack_from(content, at)
        at += _CHUNK.size
        if at + size > len(content):  # the last chunk, which the worker did not finish
            break
        if size:
            chunks.append(content[at : at + size])
        complete, at = records, at + size
    return chunks, complete


def _aligned(size: int) -> int:
    """Round up to a page boundary, where mapped memory begins."""
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _wait_for_lock(file: int) -> None:
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):
            time.sleep(_LOCK_WAIT_S)
