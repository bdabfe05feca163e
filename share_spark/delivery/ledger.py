"""The ledger of a task's calls: the record in the handler and the finished ones, in a file that outlives the worker.

A worker can end in the middle of a call. Spark then runs the task again, and only from this file do the repeat, and the
next engine, know which record was in the handler, which ones were finished, and which had not been entered. It is
written before and after each call and read only after a worker was lost, so writing is a store into mapped memory: the
kernel keeps it when the process is gone. Up to six files; all but the first exist only if there is something to write:

    <task>          blocks, one a batch:  header | offset[n] | partition[n] | count[n] | topic[n] | status[n]
    <task>.notes    lines of JSON: names of topics, errors and delays of records
    <task>.output   output rows of accepted records, in chunks of Arrow, each row with its record
    <task>.cell     where many calls wait at a time: the records whose call runs now (``cell_of``), 0 for none
    <task>.lists    where each of them has a list of records: their positions, list after list; the cell names a list
    <task>.stuck    what the watchdog wrote before it ended a worker that did not react (``time_limit``)

One attempt of a task at a time has the files: it holds a lock that ends with its process. A second one, a repeat or a
speculative copy, waits for that. (The lock is on a file of its own: locks of this kind, which children of the process
do not inherit, are lost when any handle of their file is closed.)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.arrow_stream import stream_of, table_in
from share_spark.delivery.ledger_file import (
    CHUNK,
    LISTED,
    OWNER,
    TYPES,
    LedgerBlock,
    LedgerColumn,
    LedgerFile,
    blocks_in,
)
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.error_texts import error_text
from share_spark.model.requests import Loss


class CallStatus(IntEnum):
    """One byte a record. ``ACCEPTED_WITH_ROWS``: its rows are only in the process until a chunk of them is written. A
    later attempt notes the next two: the whole batch was in the handler when the worker died; the record was accepted,
    and its rows were lost with the worker. ``WAITED`` is never written: where many calls wait and one runs, a record
    that is in the handler, and not in the cell, is read as this. ``THROTTLED``: the record was given back, as
    if its handler had not been entered."""

    NOT_ENTERED = 0
    IN_HANDLER = 1
    ACCEPTED = 2
    RELEASED = 3
    REJECTED = 4
    ACCEPTED_WITH_ROWS = 5
    DIED_AMONG_OTHERS = 6
    ROWS_LOST = 7
    WAITED = 8
    THROTTLED = 9


STATUS_OF: Mapping[int, CallStatus] = {
    int(Ack.ACCEPT): CallStatus.ACCEPTED,
    int(Ack.RELEASE): CallStatus.RELEASED,
    int(Ack.REJECT): CallStatus.REJECTED,
    int(Loss.THROTTLED): CallStatus.THROTTLED,
}
"""The status of a record by the answer of its handler; of one that was accepted, if it has no rows."""


class OutputChunk(NamedTuple):
    """Output rows as an Arrow stream. ``owners``: of each row the number of its entry."""

    owners: LedgerColumn
    stream: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntries:
    """The content of a ledger, one entry per record in the order of the task. ``topic``: index into ``topics``.
    ``number``: as in ``BlockPlace``. ``errors``, ``delays`` (ms): by number of the entry. ``output``: the output rows
    that were written."""

    topics: Sequence[str]
    topic: LedgerColumn
    partition: LedgerColumn
    offset: LedgerColumn
    count: LedgerColumn
    number: LedgerColumn
    status: LedgerColumn
    errors: dict[int, str] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    output: Sequence[OutputChunk] = ()

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def have_rows(self) -> npt.NDArray[np.bool_]:
        """Whether they were accepted with output rows that were written, entry by entry."""
        found = np.zeros(len(self), bool)
        for chunk in self.output:
            found[chunk.owners] = True
        found &= self.status == CallStatus.ACCEPTED_WITH_ROWS
        return found

    def rows_of(self, wanted: npt.NDArray[np.bool_]) -> Iterator[pa.Table]:
        """Yield the output rows of the entries that are ``wanted``."""
        for chunk in self.output:
            chosen = wanted[chunk.owners]
            if chosen.any():
                yield table_in(chunk.stream).filter(pa.array(chosen))


EVERY_RECORD = 1 << 32
"""The number of records for a cell that cannot say which calls run: all that were entered may."""


def cell_of(position: int, records: int = 1) -> int:
    """Return the content of a cell for ``records`` from this position on, in the ledger or in its lists: below, the
    position of the first, counted from 1; in the upper half, how many follow it."""
    return (records - 1) << 32 | position + 1


def read_entries(path: Path) -> LedgerEntries:
    """Return the entries at ``path``, perhaps none. A worker may still write: an entry has its status before its rows
    are written, and its error before its status. So rows are read first, and errors last."""
    output = list(_output(path))
    content = path.read_bytes() if path.exists() else b""
    blocks = list(blocks_in(content))
    columns = [list(_columns(content, block.columns, block.records)) for block in blocks]
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    offset, partition, count, topic, status = joined or [np.zeros(0, kind) for kind in TYPES]
    topics, errors, delays = _notes(path)
    return LedgerEntries(
        topics=topics,
        topic=topic,
        partition=partition,
        offset=offset,
        count=count,
        number=np.repeat(np.array([block.number for block in blocks], np.int64), [block.records for block in blocks]),
        status=_with_waiting(path, status),
        errors=errors,
        delays=delays,
        # A ledger that was being emptied has lost its blocks first.
        output=[chunk for chunk in output if chunk.owners.max() < len(status)],
    )


class CallLedger:
    """The ledger of one task, for the present attempt. ``entries``: what earlier attempts have left. ``topic``: all
    records are of this one; None: batches have a column of that name."""

    def __init__(self, path: Path, topic: str | None = None) -> None:
        self._topic, self._file = topic, LedgerFile(path)
        # Read under the lock only: until then the attempt before may still write.
        self.entries = read_entries(path)
        self._file.follow(self.entries.topics, len(self.entries))
        self._block: LedgerBlock | None = None

    def begin(self, batch: pa.RecordBatch) -> memoryview:
        """Return a byte for the status of each record of ``batch`` (partition, offset, delivery_count), 0 at first.
        Raises StateError: there is no space for them."""
        block = self._file.add(batch, self._topic)
        self._release_block()
        self._block = block
        return block.status

    def settle(self, lost_error: str) -> LedgerEntries:
        """Make the entries final, and return them. A record that was in the handler when the worker was lost has failed
        with ``lost_error``, or, if it was not alone there, was lost with its whole batch; rows that were not written
        are lost."""
        if not len(self.entries):
            return self.entries
        status = self.entries.status.copy()
        in_handler = np.flatnonzero(status == CallStatus.IN_HANDLER)
        if len(in_handler) == 1:
            self._file.note_errors({int(in_handler[0]): lost_error})
        status[in_handler] = CallStatus.RELEASED if len(in_handler) == 1 else CallStatus.DIED_AMONG_OTHERS
        status[(status == CallStatus.ACCEPTED_WITH_ROWS) & ~self.entries.have_rows] = CallStatus.ROWS_LOST
        # Noted in the file before anything is reported, so that a third attempt reports the same.
        self._file.write_statuses(status)
        self.entries = read_entries(self._file.path)
        return self.entries

    def note_errors(self, errors: dict[int, str]) -> None:
        """Note errors by position in the batch that ``begin`` was called with."""
        self._file.note_errors({self._first + position: text for position, text in errors.items()})

    def note_delays(self, delays: dict[int, int]) -> None:
        """Note delays by position in the batch that ``begin`` was called with."""
        self._file.note_delays({self._first + position: delay_ms for position, delay_ms in delays.items()})

    def write_rows(self, rows: pa.Table, owners: Sequence[int] | LedgerColumn) -> None:
        """Write output rows of accepted records. ``owners``: of each row the position of its record in the batch that
        ``begin`` was called with."""
        if rows.num_rows:
            self._file.write_rows(stream_of(rows), np.asarray(owners) + self._first)

    @property
    def path(self) -> Path:
        """The path of the first file."""
        return self._file.path

    def beside(self, purpose: str) -> Path:
        """Return the path of another file of the same task."""
        return self._file.beside(purpose)

    def close(self) -> None:
        """Release the files and the lock."""
        self._release_block()
        self._file.close()

    @property
    def _first(self) -> int:
        return self._block.first if self._block is not None else 0

    def _release_block(self) -> None:
        if self._block is not None:
            self._block.release()
            self._block = None


def _with_waiting(path: Path, status: LedgerColumn) -> LedgerColumn:
    """Return the statuses with WAITED: the cell names the records of the only call that ran."""
    cell = Path(f"{path}.cell")
    if not cell.exists():
        return status
    running = int.from_bytes(cell.read_bytes(), sys.byteorder)
    more, first = divmod(running, 1 << 32)
    waits = status == CallStatus.IN_HANDLER
    named = np.arange(len(status))
    if (lists := Path(f"{path}.lists")).exists():
        named = np.fromfile(lists, LISTED)
    named = named[max(first - 1, 0) : first + more]
    waits[named[named < len(status)]] = False  # a machine that has crashed may have kept more of one file
    return np.where(waits, np.uint8(CallStatus.WAITED), status)


def _columns(content: bytes, at: int, rows: int) -> Iterator[LedgerColumn]:
    for kind in TYPES:
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


def _output(path: Path) -> Iterator[OutputChunk]:
    """Yield the chunks of output rows; the last one may not be whole."""
    file = Path(f"{path}.output")
    content = file.read_bytes() if file.exists() else b""
    at = 0
    while at + CHUNK.size <= len(content):
        size, rows = CHUNK.unpack_from(content, at)
        owners, stream = at + CHUNK.size, at + CHUNK.size + rows * OWNER.itemsize
        at = stream + size
        if at <= len(content):
            yield OutputChunk(np.frombuffer(content, OWNER, rows, owners), content[stream:at])
