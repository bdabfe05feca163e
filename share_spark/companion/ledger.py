"""The ledger of a companion: the files of ``delivery.ledger``, for calls that run at the same time.

A hand-over has a block for each batch that was read, and all of them stay mapped until it is forgotten: its calls end
in any order. Beside each file is its **cell**, eight bytes: position and number of the records whose call's code runs
at this moment (``cell_of``), and 0 while none does. One thread runs all calls, so when the process dies, the cell names
the one; all others in the handler were only waiting, and are read as ``CallStatus.WAITED``. Where each call has a
thread of its own, nobody can say which one has ended the process: the cell has all records, always.

    <directory>/0   0.notes   0.output   0.cell   0.lock     full, and has hand-overs that are not forgotten
    <directory>/1                        1.cell   1.lock     where the next block goes

A file that is full is followed by another one, and removed with the last of its hand-overs.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from share_spark.delivery.ledger import EVERY_RECORD, cell_of
from share_spark.delivery.ledger_file import LedgerBlock, LedgerFile
from share_spark.model.errors import StateError

MOST_BYTES = 8 << 20
"""The size from which on a file gets no more blocks."""

_CELL_BYTES = 8


class CallBlock(NamedTuple):
    """The records of a batch in the ledger. ``status``: one byte a record. ``cell``: one number, for the records that
    ``cell_value`` gives."""

    file: LedgerFile
    block: LedgerBlock
    status: memoryview
    cell: memoryview

    def place(self, position: int) -> int:
        """Return the position in the file of the record at ``position`` of the batch."""
        return self.block.first + position

    def cell_value(self, position: int) -> int:
        """Return what the cell holds while the call of the record at ``position`` runs."""
        return cell_of(self.block.first + position)

    def note(self, position: int, error: str | None, delay_ms: int | None) -> None:
        """Note error and delay, before the status: without them it would be another answer. Raises StateError."""
        if error is not None:
            self.file.note_errors({self.block.first + position: error})
        if delay_ms is not None:
            self.file.note_delays({self.block.first + position: delay_ms})


def cell_value_of_list(records: Sequence[tuple[CallBlock, int]]) -> int:
    """Note a call with a list of records, each a block and its position there, all in one file. Return what the cell
    holds while it runs. Raises StateError."""
    file = records[0][0].file
    before = file.listed
    file.list_call([block.place(position) for block, position in records])
    return cell_of(before, len(records))


class CompanionLedger:
    """The ledgers of one companion, the first of them at ``first``, which is ``<directory>/<number>``. ``in_threads``:
    each call has a thread of its own. Raises StateError: there is one already."""

    def __init__(self, first: Path, most_bytes: int = MOST_BYTES, *, in_threads: bool = False) -> None:
        self._directory, self._number, self._most_bytes = first.parent, int(first.name), most_bytes
        self._in_threads = in_threads
        self._files: list[_CellFile] = []
        self._blocks: dict[int, list[tuple[_CellFile, LedgerBlock]]] = {}
        self._present = self._next_file()

    def begin(self, number: int, batch: pa.RecordBatch) -> CallBlock:
        """Return the block of a batch (topic, partition, offset, delivery_count) of hand-over ``number``, its statuses
        0. Raises StateError: there is no space for it."""
        if self._present.file.size + self._present.file.output_size >= self._most_bytes:
            self._present = self._next_file()
        at = self._present
        block = at.file.add(batch, number=number)
        at.numbers.add(number)
        self._blocks.setdefault(number, []).append((at, block))
        return CallBlock(at.file, block, block.status, at.cell)

    def forget(self, number: int) -> None:
        """Drop the blocks of a hand-over; nothing may be written to them any more."""
        for at, block in self._blocks.pop(number, ()):
            block.release()
            at.numbers.discard(number)
        for at in [file for file in self._files if not file.numbers]:
            self._drop(at)

    def close(self) -> None:
        """Release the files and their locks."""
        for blocks in self._blocks.values():
            for _, block in blocks:
                block.release()
        for at in self._files:
            at.file.close()

    def _next_file(self) -> _CellFile:
        path = self._directory / str(self._number)
        if path.exists():
            raise StateError(f"the ledger {path} is there already")
        self._number += 1
        self._files.append(_CellFile(path, in_threads=self._in_threads))
        return self._files[-1]

    def _drop(self, at: _CellFile) -> None:
        """Remove a file of which nothing is of interest any more; the one for the next block becomes empty."""
        if at is not self._present:
            self._files.remove(at)
            at.file.remove()
            at.file.beside("cell").unlink()
        elif at.file.size:
            at.file.empty()


class _CellFile:
    """A ledger with its cell. ``numbers``: the hand-overs that it has. The cell's memory stays as long as a call has
    it: also one that was cancelled, and goes on. Calls in threads get another one, which nobody reads."""

    __slots__ = ("cell", "file", "numbers")

    def __init__(self, path: Path, *, in_threads: bool) -> None:
        self.file = LedgerFile(path)
        self.cell = _new_cell(self.file.beside("cell"))
        if in_threads:
            self.cell[0] = cell_of(0, EVERY_RECORD)
            self.cell = memoryview(bytearray(_CELL_BYTES)).cast("Q")
        self.numbers: set[int] = set()


def _new_cell(path: Path) -> memoryview:
    cell = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(cell, 0, _CELL_BYTES)
        return memoryview(mmap.mmap(cell, _CELL_BYTES)).cast("Q")
    finally:
        os.close(cell)
