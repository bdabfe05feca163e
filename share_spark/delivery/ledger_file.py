"""The form of a ledger in files (``ledger``), and how it is written: blocks, notes, output rows, under one lock."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.handlers.error_texts import error_text
from share_spark.model.errors import StateError

LedgerColumn = npt.NDArray[Any]
"""A column of a ledger: integers."""

CHUNK = struct.Struct("<QQ")
"""The head of a chunk of output rows: their bytes, their number."""

OWNER = np.dtype("<i4")
"""The position in the ledger of the record that a row is of. Behind the head there is one for each row, then the rows
as an Arrow stream."""

TYPES: tuple[np.dtype[Any], ...] = tuple(map(np.dtype, ("<i8", "<i4", "<i4", "<i4", "u1")))
"""The types of the columns of a block; the last one is the status."""

LISTED: np.dtype[Any] = np.dtype("<i4")
"""The type of a position in the list of a call."""

_HEADER = struct.Struct("<QIIQ")  # magic, records, number of the hand-over, bytes of the block
_MAGIC = int.from_bytes(b"\xfeshledg\x01")
_COLUMNS = ("offset", "partition", "delivery_count")
_PER_RECORD = sum(kind.itemsize for kind in TYPES)
_LOCK_WAIT_S = 0.05


class BlockPlace(NamedTuple):
    """A block in the bytes of a file. ``columns``: where they begin; ``size``: of the block, in bytes. ``number``: of
    its hand-over to a companion; 0 in a task of Spark's."""

    columns: int
    records: int
    number: int
    size: int


class LedgerBlock:
    """A block in mapped memory. ``first``: the position of its first record in the ledger. ``status``: one byte a
    record."""

    __slots__ = ("_memory", "first", "status")

    def __init__(self, file: int, at: int, size: int, first: int, rows: int) -> None:
        self._memory = mmap.mmap(file, size, offset=at)
        start = _HEADER.size + rows * (_PER_RECORD - 1)
        self.first, self.status = first, memoryview(self._memory)[start : start + rows]

    def release(self) -> None:
        """Give up the memory; what was stored there is in the file."""
        self.status.release()
        self._memory.close()


class LedgerFile:
    """A ledger to be written, for which no other process has the lock: this waits for that. ``path``: the blocks.
    ``size``: their bytes; ``output_size``: those of the output rows that were written here. ``listed``: the
    records of all calls with lists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        _wait_for_lock(self._lock)
        # Opened under the lock only: until then the attempt before may still write.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.size = _aligned(os.fstat(self._file).st_size)
        self.records = self.output_size = self.listed = 0
        self._topic_ids: dict[str, int] = {}
        self._beside: dict[str, int] = {}

    def follow(self, topics: Sequence[str], records: int) -> None:
        """Go on behind what an earlier attempt has written."""
        self._topic_ids = {name: index for index, name in enumerate(topics)}
        self.records = records

    def add(self, batch: pa.RecordBatch, topic: str | None = None, number: int = 0) -> LedgerBlock:
        """Write a block for the records of ``batch`` (partition, offset, delivery_count), statuses 0. ``topic``: of all
        of them; None: there is a column of that name. ``number``: as in ``BlockPlace``. Raises StateError: there is no
        space."""
        rows = batch.num_rows
        size = _aligned(_HEADER.size + rows * _PER_RECORD)
        columns = [*(batch.column(name).to_numpy(zero_copy_only=False) for name in _COLUMNS), self._ids(batch, topic)]
        with _naming(self.path):
            # On a full disk the first access to a page without space would kill the worker.
            os.posix_fallocate(self._file, self.size, size)
            # The header last: a block whose header is zeros was not finished, and is skipped by ``blocks_in``.
            os.pwrite(self._file, _as_bytes(columns), self.size + _HEADER.size)
            os.pwrite(self._file, _HEADER.pack(_MAGIC, rows, number, size), self.size)
            block = LedgerBlock(self._file, self.size, size, self.records, rows)
        self.size += size
        self.records += rows
        return block

    def write_statuses(self, status: LedgerColumn) -> None:
        """Write the statuses of all records that the file has."""
        at = 0
        for begin, rows, *_ in list(blocks_in(self.path.read_bytes())):
            os.pwrite(self._file, status[at : at + rows].tobytes(), begin + rows * (_PER_RECORD - 1))
            at += rows

    def note_errors(self, errors: dict[int, str]) -> None:
        """Note errors by position in the file."""
        if errors:
            self._note({"errors": [(position, error_text(text)) for position, text in errors.items()]})

    def note_delays(self, delays: dict[int, int]) -> None:
        """Note delays by position in the file."""
        if delays:
            self._note({"delays": list(delays.items())})

    def list_call(self, positions: Sequence[int]) -> None:
        """Write which records a call with a list has, by position in the file."""
        self._append("lists", np.array(positions, LISTED).tobytes())
        self.listed += len(positions)

    def write_rows(self, stream: bytes, owners: Sequence[int] | LedgerColumn) -> None:
        """Write output rows of accepted records, as an Arrow stream. ``owners``: of each row the position of its record
        in the file. Raises StateError; then it has none of them."""
        content = CHUNK.pack(len(stream), len(owners)) + np.asarray(owners, OWNER).tobytes() + stream
        self._append("output", content)
        self.output_size += len(content)

    def beside(self, purpose: str) -> Path:
        """Return the path of another file of the same ledger."""
        return Path(f"{self.path}.{purpose}")

    def empty(self) -> None:
        """Remove all records, none of whose blocks may be in use. The blocks first: what is left without them has no
        meaning."""
        for file in (self._file, *self._beside.values()):
            os.ftruncate(file, 0)
        self.size = self.records = self.output_size = self.listed = 0
        self._topic_ids.clear()

    def remove(self) -> None:
        """Remove the files, in the same order, and close them."""
        self.path.unlink()
        for purpose in (*self._beside, "lock"):
            self.beside(purpose).unlink()
        self.close()

    def close(self) -> None:
        """Release the files and the lock."""
        for file in (*self._beside.values(), self._file, self._lock):
            os.close(file)

    def _ids(self, batch: pa.RecordBatch, topic: str | None) -> LedgerColumn:
        if topic is not None:
            return np.full(batch.num_rows, self._id_of(topic), np.int32)
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
        self._append("notes", json.dumps(what).encode() + b"\n")

    def _append(self, purpose: str, content: bytes) -> None:
        """Write all of ``content``, or nothing: an almost full disk takes a part of it first, behind which whatever
        follows could not be read."""
        if purpose not in self._beside:
            self._beside[purpose] = os.open(self.beside(purpose), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        file, left = self._beside[purpose], memoryview(content)
        with _naming(self.path):
            try:
                while left:
                    left = left[os.write(file, left) :]
            except OSError:
                os.ftruncate(file, os.fstat(file).st_size - (len(content) - len(left)))
                raise


def is_written(path: Path) -> bool:
    """Return whether a process has the lock of the ledger at ``path``: it may still write there."""
    if not Path(f"{path}.lock").exists():
        return False
    lock = os.open(f"{path}.lock", os.O_RDWR)
    try:
        return not _locked(lock)
    finally:
        os.close(lock)


def blocks_in(content: bytes) -> Iterator[BlockPlace]:
    """Yield the place of each whole block; one that an attempt did not finish has a header of zeros."""
    at = 0
    while at + _HEADER.size <= len(content):
        magic, rows, number, size = _HEADER.unpack_from(content, at)
        if magic == _MAGIC:
            yield BlockPlace(at + _HEADER.size, rows, number, size)
        at += size if magic == _MAGIC else mmap.ALLOCATIONGRANULARITY


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise StateError for OSError."""
    try:
        yield
    except OSError as fault:
        raise StateError(f"the ledger {path} cannot be written: {fault.strerror}") from fault


def _as_bytes(columns: Sequence[Any]) -> bytes:
    """Return the bytes to write. Stores into mapped memory are slower: the first to a page costs a hundred records."""
    return b"".join(np.ascontiguousarray(column, kind).data for column, kind in zip(columns, TYPES, strict=False))


def _aligned(size: int) -> int:
    """Round up to a page boundary, where mapped memory begins."""
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _wait_for_lock(file: int) -> None:
    while not _locked(file):
        time.sleep(_LOCK_WAIT_S)


def _locked(file: int) -> bool:
    """Take the lock if nobody has it; return whether we have it now."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
