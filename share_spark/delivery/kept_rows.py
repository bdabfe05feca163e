"""Records that are not accepted stay with the workers: a task writes those that its handler released or rejected, or
that were throttled, to a file, in order of keys also those that were held back. The delivery that acquires them again,
and their dead letters, take them from there and need not read through the topic log.

    delivery 1   acquired   [0 ........................................ 999,999]     read from the topic log
                 released       [7]      [30]          [81][82]                      each task writes a file of them
    delivery 2   acquired       [7]      [30]          [81][82]  [1,000,000 ...]
                 kept           [7]      [30]          [81][82]                      from the files
                 rest                                            [1,000,000 ...]     from the topic log

A file is an optimization, never the only place: the driver checks that all files exist before it plans with them, and
otherwise reads the log. They are kept only where all workers and the driver see the same directory (``LedgerPlace``),
up to ``MOST_BYTES``. They are removed when the engine ends, and when the log was truncated.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.kept_input import KeptInput, KeptPart, Wanted, batches_in, rows_of
from share_spark.delivery.marked_rows import waits_ms_of
from share_spark.engine.delivery_port import AcknowledgedSpan, AcquiredSpan
from share_spark.engine.ranges import (
    DELIVERY_COUNT,
    FIRST,
    LAST,
    AcquiredRanges,
    Offsets,
    Ranges,
    ascending,
    each_between,
    look_up,
)
from share_spark.engine.record_reader import in_schema
from share_spark.handlers.acknowledgement import Ack, Answers
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AnsweredRange, Loss
from share_spark.partition.columns import as_columns
from share_spark.partition.runs import chosen
from share_spark.spark.threads import TASK_COLUMN

MOST_BYTES = 256 << 20
"""The most bytes in all files of one delivery."""

MOST_DELIVERIES = 8
"""The most deliveries whose files are kept while some of their records have not been acquired again."""

_WRITTEN_BYTES = 1 << 20
"""A task writes when so much waits: a reader works per batch."""

OF_ONE_DELIVERY = ("delivery_count", TASK_COLUMN)
"""Columns of a record that change when it is delivered again."""


_HEADER: list[Any] = [("key", pa.string()), ("value", pa.binary())]
_RECORD: list[Any] = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.struct(_HEADER))),
]
RECORD_SCHEMA = pa.schema(_RECORD)
"""``ports.RECORD_COLUMNS`` as Python gets them."""


Earlier = Mapping[TopicPartition, Offsets]
"""Offsets that are not finished, and not acquired."""


class KeptFile(NamedTuple):
    """A file of a task with ``rows`` records."""

    path: str
    rows: int


# ------------------------------------------------------------------------------------------------------- in a worker


class KeptPlace(NamedTuple):
    """The place where a task may keep records, and how many bytes. ``answers``: those whose records it keeps."""

    directory: str
    most_bytes: int
    answers: tuple[int, ...]


@dataclass(slots=True)
class KeptWriter:
    """The file of one run of a task; made with its first record. Beyond ``most_bytes``, and if the disk refuses it,
    nothing is kept."""

    place: KeptPlace
    _path: Path | None = None
    _writer: Any = None
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_bytes: int = 0
    _rows: int = 0
    _bytes: int = 0
    _is_over: bool = False

    def add(self, batch: pa.RecordBatch, answers: Answers) -> None:
        """Add the records of ``batch`` that have the right answers."""
        rows = np.flatnonzero(answers.codes != Ack.ACCEPT)  # usually none; this takes a tenth of the time of ``isin``
        rows = rows[np.isin(answers.codes[rows], self.place.answers)] if len(rows) else rows
        if len(rows):
            self.add_all(batch.take(rows))

    def add_all(self, batch: pa.RecordBatch) -> None:
        """Add all records of ``batch``."""
        if self._is_over or not batch.num_rows:
            return
        kept = batch.select([name for name in batch.schema.names if name not in OF_ONE_DELIVERY])
        self._rows += kept.num_rows
        self._bytes += kept.nbytes
        self._waiting.append(kept)
        self._waiting_bytes += kept.nbytes
        if self._bytes > self.place.most_bytes:
            self.discard()
        elif self._waiting_bytes >= _WRITTEN_BYTES:
            self._write()

    def _write(self) -> None:
        """Write the waiting records as one batch."""
        try:
            rows = pa.Table.from_batches(self._waiting).combine_chunks()
            if self._writer is None:
                Path(self.place.directory).mkdir(parents=True, exist_ok=True)
                self._path = Path(self.place.directory) / f"{uuid.uuid4().hex}.arrow"
                self._writer = pa.ipc.new_file(str(self._path), rows.schema)
            self._writer.write_table(rows)
        except OSError:
            self.discard()
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> KeptFile | None:
        """Return the file, None if nothing is kept."""
        if self._waiting and not self._is_over:
            self._write()
        if self._writer is None or self._path is None or self._is_over:
            return None
        try:
            self._writer.close()
        except OSError:
            self.discard()
            return None
        return KeptFile(str(self._path), self._rows)

    def discard(self) -> None:
        """Remove the file: the task has failed, or has released too much."""
        self._is_over, self._waiting = True, []
        with suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------------ on the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDelivery:
    """Files of one delivery. ``held``: the offsets in them; ``waiting``: those that have not been acquired again since
    they were released."""

    files: tuple[str, ...]
    topic: str | None
    held: Mapping[TopicPartition, Offsets]
    waiting: Mapping[TopicPartition, Offsets]

    def exists(self) -> bool:
        """Return whether all files exist."""
        return all(Path(file).exists() for file in self.files)

    def remove(self) -> None:
        """Remove the files: the records are read from the log from now on."""
        for file in self.files:
            Path(file).unlink(missing_ok=True)


@dataclass(slots=True)
class KeptRows:
    """The files that workers keep for the engine. ``ordered``: also records that were held back, not reached, or not
    even acquired, as a delivery in order of keys needs all that is not finished."""

    ordered: bool = False
    _deliveries: list[KeptDelivery] = field(default_factory=list)

    @property
    def answers(self) -> tuple[int, ...]:
        """The answers whose records are kept: for another delivery, and for dead letters."""
        return *self._again, int(Ack.REJECT)

    @property
    def _again(self) -> tuple[int, ...]:
        given_back = int(Ack.RELEASE), int(Loss.THROTTLED)
        return (*given_back, int(Loss.NOT_ENTERED)) if self.ordered else given_back

    def add(
        self, files: Sequence[KeptFile], topic: str | None, answers: Iterable[AcknowledgedSpan], earlier: Earlier
    ) -> None:
        """Add the files of a delivery. They are used only if they are complete. ``earlier``: records that it had to
        know of but not to deliver; the newest files have these as well."""
        said = list(answers)
        waiting, held = (_both(_offsets_by(said, some), earlier) for some in (self._again, self.answers))
        kept = KeptDelivery(files=tuple(file.path for file in files), topic=topic, held=held, waiting=waiting)
        if sum(file.rows for file in files) != sum(map(len, held.values())):
            kept.remove()
        elif files:
            before = [replace(one, waiting=_without(one.waiting, earlier)) for one in self._deliveries]
            self._deliveries = [*before, kept]
            self._drop(self._deliveries[:-MOST_DELIVERIES])

    def take(
        self, acquired: Sequence[AcquiredSpan], tasks: int, most_rows: int
    ) -> tuple[list[AcquiredSpan], KeptInput | None]:
        """Return what to read of ``acquired`` from the topic log, and what ``tasks`` tasks take from files.

        Records that are not delivered, only known to be unfinished, have a delivery count below 0; they stay."""
        self._drop([one for one in self._deliveries if not one.exists()])
        rest, parts, left = list(acquired), list[KeptPart](), list[KeptDelivery]()
        for one in self._deliveries:
            rest, wanted = _parted(rest, one.waiting)
            if wanted:
                parts.append(KeptPart(one.files, one.topic, wanted))
            left.append(replace(one, waiting=_without(one.waiting, _delivered(wanted))))
        if not parts or (self.ordered and not _come_first(parts, rest)):
            return list(acquired), None
        self._deliveries = left
        return rest, KeptInput(parts=tuple(parts), tasks=tasks, most_rows=most_rows, in_order=self.ordered)

    def drop_used(self) -> None:
        """Remove files that no record waits for any more: the delivery of their records is over."""
        self._drop([one for one in self._deliveries if not one.waiting])

    def records(self, wanted: Wanted) -> pa.Table | None:
        """Return all of ``wanted`` (RECORD_COLUMNS and ``number``), in any order; None if one is missing."""
        found, missing = list[pa.RecordBatch](), dict(wanted)
        for one in reversed(self._deliveries):
            here = _present(missing, one.held) if one.exists() else {}
            if here:
                found += _numbered_records(KeptPart(one.files, one.topic, here))
                missing = _absent(missing, one.held)
        is_complete = not missing and all(RECORD_SCHEMA.names == batch.schema.names[:-1] for batch in found)
        return pa.Table.from_batches(found) if found and is_complete else None

    def clear(self) -> None:
        """Remove all files."""
        self._drop(list(self._deliveries))

    def _drop(self, dropped: Sequence[KeptDelivery]) -> None:
        for one in dropped:
            self._deliveries.remove(one)
            one.remove()


def _parted(
    acquired: Iterable[AcquiredSpan], waiting: Mapping[TopicPartition, Offsets]
) -> tuple[list[AcquiredSpan], dict[TopicPartition, tuple[Offsets, npt.NDArray[np.int32]]]]:
    """Return (the part of ``acquired`` that does not wait, the waiting part with its delivery counts)."""
    rest, wanted = [], {}
    for span in acquired:
        if span.partition not in waiting or not len(span.ranges):
            rest.append(span)
            continue
        ranges, offsets = ascending(span.ranges), waiting[span.partition]
        at, is_wanted = look_up(ranges[:, FIRST], ranges[:, LAST], offsets)
        if is_wanted.any():
            wanted[span.partition] = offsets[is_wanted], ranges[at[is_wanted], DELIVERY_COUNT].astype(np.int32)
        left = _cut_out(ranges, offsets[is_wanted])
        if len(left):
            rest.append(AcquiredSpan(span.partition, left))
    return rest, wanted


def _cut_out(ranges: Ranges, offsets: Offsets) -> AcquiredRanges:
    """Remove ``offsets`` from ``ranges``, which hold them; both ascending.

    ranges    [10 ............. 20]        [30 .... 35]
    offsets        [13]  [14]                       [35]
    firsts    10    14    15               30        36
    lasts     12    13          20             34    35
    left      [10-12]     [15 - 20]        [30-34]           where first <= last
    """
    if not len(offsets):
        return AcquiredRanges(ranges)
    firsts = np.sort(np.concatenate([ranges[:, FIRST], offsets + 1]))
    lasts = np.sort(np.concatenate([ranges[:, LAST], offsets - 1]))
    of_range = np.searchsorted(ranges[:, FIRST], firsts, side="right") - 1
    left = np.column_stack([firsts, lasts, ranges[of_range, DELIVERY_COUNT]])
    return AcquiredRanges(left[firsts <= lasts])


def _without(
    waiting: Mapping[TopicPartition, Offsets], taken: Mapping[TopicPartition, Offsets]
) -> Mapping[TopicPartition, Offsets]:
    if not taken:
        return waiting
    left = {at: np.setdiff1d(offsets, taken[at]) if at in taken else offsets for at, offsets in waiting.items()}
    return {at: offsets for at, offsets in left.items() if len(offsets)}


def _both(some: Mapping[TopicPartition, Offsets], others: Earlier) -> Mapping[TopicPartition, Offsets]:
    """Join two sets of offsets that have none in common."""
    return {**some, **{at: np.sort(np.concatenate([some.get(at, _NONE), more])) for at, more in others.items()}}


def earlier_offsets(acquired: Iterable[AcquiredSpan]) -> Earlier:
    """Return the offsets before acquired records that are not finished."""
    return {one.partition: _offsets(one.earlier) for one in acquired if len(one.earlier)}


def _delivered(wanted: Wanted) -> dict[TopicPartition, Offsets]:
    return {at: offsets[waits_ms_of(counts) < 0] for at, (offsets, counts) in wanted.items()}


def _come_first(parts: Iterable[KeptPart], rest: Iterable[AcquiredSpan]) -> bool:
    """Return whether the records in files come before those in the topic log. Only then they can be taken first."""
    begins = {one.partition: int(one.ranges[:, FIRST].min()) for one in rest}
    ends = ((at, int(offsets[-1])) for part in parts for at, (offsets, _) in part.wanted.items())
    return all(at not in begins or end < begins[at] for at, end in ends)


def _offsets_by(said: Sequence[AcknowledgedSpan], answers: Sequence[int]) -> dict[TopicPartition, Offsets]:
    """Return the offsets with one of these answers, for topic-partitions that have any."""
    found = {one.partition: chosen(one.ranges, lambda answered: answered.answer in answers) for one in said}
    return {at: _offsets_in(ranges) for at, ranges in found.items() if ranges}


def _offsets_in(ranges: Sequence[AnsweredRange]) -> Offsets:
    columns = as_columns(ranges)
    return each_between(columns.first, columns.last)[0]


def _present(wanted: Wanted, held: Mapping[TopicPartition, Offsets]) -> Wanted:
    return _chosen(wanted, {at: np.isin(offsets, held.get(at, _NONE)) for at, (offsets, _) in wanted.items()})


def _absent(wanted: Wanted, held: Mapping[TopicPartition, Offsets]) -> dict[TopicPartition, Any]:
    return _chosen(wanted, {at: ~np.isin(offsets, held.get(at, _NONE)) for at, (offsets, _) in wanted.items()})


def _chosen(wanted: Wanted, masks: Mapping[TopicPartition, npt.NDArray[np.bool_]]) -> dict[TopicPartition, Any]:
    return {at: (wanted[at][0][mask], wanted[at][1][mask]) for at, mask in masks.items() if mask.any()}


def _numbered_records(part: KeptPart) -> Iterator[pa.RecordBatch]:
    for batch in (batch for file in part.files for batch in batches_in(file)):
        rows, numbers = rows_of(batch, part)
        if len(rows):
            schema = pa.schema([field for field in RECORD_SCHEMA if field.name in (*batch.schema.names, "topic")])
            yield in_schema(batch.take(rows), part.topic, schema).append_column("number", pa.array(numbers))


def _offsets(ranges: Ranges) -> Offsets:
    """Return each offset of the ranges, ascending."""
    ordered = ascending(ranges)
    return each_between(ordered[:, FIRST], ordered[:, LAST])[0]


_NONE = np.empty(0, np.int64)
