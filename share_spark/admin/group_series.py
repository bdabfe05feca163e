"""The activity of a group, micro-batch by micro-batch, from the kept rows of its log. No Spark.

Each file is read once: a repeated look adds the new files, and keeps the results of files that retention has dropped
meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.admin.kept_segments import AppendStamp, late_stamps, newest_segments, stamps_in, with_microseconds
from share_spark.admin.state_reader import StateReader
from share_spark.delta.table_log import UnknownTableError
from share_spark.model.errors import StateError
from share_spark.model.ids import NO_STAMP, BatchStamp, SharePartitionKey
from share_spark.model.records import DeliveryState, ShareRecord
from share_spark.partition import SharePartition, evolve, offsets_by_state
from share_spark.state.direct_rows import tables_of
from share_spark.state.log_rows import LOG_SCHEMA
from share_spark.state.record_rows import SHARE_KINDS, UPDATE, records_in

MOST_FILES, MOST_BYTES = 600, 16 << 20
"""The limits of the first look, which reads the newest segments."""

MOST_ROWS = 100_000
"""The most rows of a segment: one for each share-partition that a micro-batch has changed. Takes a few seconds."""

MOST_MICRO_BATCHES = 5_000
"""The most micro-batches that are kept."""

_COLUMNS = pa.schema([column for column in LOG_SCHEMA if column.name not in ("errors", "group_records")])

_BACK_AGAIN = ("released", "lost")
_NOT_COUNTED = ("not entered", "throttled", "truncated")


class MicroBatchTotals(NamedTuple):
    """One micro-batch of a group, all numbers in offsets. ``at_ms``: when it was decided; ``took_ms``: from the one
    before to this one, None if the engine was idle between them or is another one. ``finished``: accepted or archived
    since the one before; ``again``: acquired, and not for the first time. ``accepted``, ``released``, ``archived``: how
    attempts ended; all 0 where history is not kept. ``available``, ``acquired``: in the windows, after it."""

    at_ms: int
    took_ms: int | None
    finished: int
    again: int
    accepted: int
    released: int
    archived: int
    available: int
    acquired: int


class _Window(NamedTuple):
    finished: int = 0
    available: int = 0
    acquired: int = 0


@dataclass(slots=True)
class GroupSeries:
    """The micro-batches of one group of one state log, up to the last ``read``."""

    group_id: str
    micro_batches: deque[MicroBatchTotals] = field(default_factory=lambda: deque(maxlen=MOST_MICRO_BATCHES))
    _paths: set[str] = field(default_factory=set)
    _stamps: set[AppendStamp] = field(default_factory=set)
    _last: BatchStamp = NO_STAMP
    _segment: int = -1
    _states: dict[SharePartitionKey, SharePartition] = field(default_factory=dict)
    _windows: dict[SharePartitionKey, _Window] = field(default_factory=dict)

    def read(self, reader: StateReader) -> Sequence[MicroBatchTotals]:
        """Return the micro-batches, ascending. Raises StateError: only Spark can, or should, read the log."""
        files = reader.log.row_files
        try:
            segments, _ = newest_segments(files, self.group_id, MOST_FILES, MOST_BYTES)
            new = {segment: [path for path in segments[segment] if path not in self._paths] for segment in segments}
            tables = {segment: self._rows_in(reader, segment, paths) for segment, paths in new.items() if paths}
        except UnknownTableError as reason:
            raise StateError(f"the log of group {self.group_id!r} is not read here: {reason}") from reason
        if tables:
            self._stamps = {stamp for stamp in self._stamps if stamp.segment in segments}
            late = late_stamps(reader, self.group_id, self._stamps)
            for segment in sorted(tables):
                self._add(segment, tables[segment], late)
            self._paths = {path for paths in segments.values() for path in paths}
        return list(self.micro_batches)

    def _rows_in(self, reader: StateReader, segment: int, paths: Sequence[str]) -> pa.Table:
        """Return the record rows, in the order of the micro-batches; note the times of all rows, claims too."""
        rows = with_microseconds(pa.concat_tables(tables_of(reader.log, paths, _COLUMNS)))
        if rows.num_rows > MOST_ROWS:
            raise UnknownTableError("it has many rows")
        self._stamps |= stamps_in(segment, rows)
        return rows.filter(pc.field("kind").isin(SHARE_KINDS)).sort_by(
            [("writer_epoch", "ascending"), ("batch_id", "ascending")]
        )

    def _add(self, segment: int, rows: pa.Table, late: Container[BatchStamp]) -> None:
        """Add the rows. Where files were rewritten, only what comes after the last micro-batch is new."""
        for stamp, some in groupby(_changes(rows, self.group_id), key=lambda change: change.stamp):
            if stamp > self._last and stamp not in late:
                self._take(stamp, list(some), begins=segment != self._segment)
                self._segment = segment

    def _take(self, stamp: BatchStamp, changes: Sequence[_Change], *, begins: bool) -> None:
        if begins:  # with a snapshot of every remaining share-partition
            live = {change.record.key for change in changes}
            self._windows = {key: window for key, window in self._windows.items() if key in live}
        finished = sum(map(self._finished_by, changes))
        at_ms = changes[0].at_ms
        follows = stamp == self._last._replace(batch_id=self._last.batch_id + 1) and bool(self.micro_batches)
        ended = [(outcome, offsets) for change in changes for outcome, offsets in change.ended.items()]
        self.micro_batches.append(
            MicroBatchTotals(
                at_ms=at_ms,
                took_ms=at_ms - self.micro_batches[-1].at_ms if follows else None,
                finished=finished,
                again=sum(change.again for change in changes),
                accepted=sum(offsets for outcome, offsets in ended if outcome == "accepted"),
                released=sum(offsets for outcome, offsets in ended if outcome in _BACK_AGAIN),
                archived=sum(
                    offsets for outcome, offsets in ended if outcome not in ("accepted", *_BACK_AGAIN, *_NOT_COUNTED)
                ),
                available=sum(window.available for window in self._windows.values()),
                acquired=sum(window.acquired for window in self._windows.values()),
            )
        )
        self._last = stamp

    def _finished_by(self, change: _Change) -> int:
        key = change.record.key
        state = self._states[key] = evolve(self._states.get(key), change.record)
        counts = offsets_by_state(state)
        final = counts[DeliveryState.ACKNOWLEDGED] + counts[DeliveryState.ARCHIVED]
        before = self._windows.get(key)
        now = _Window(
            max(0, state.start_offset) + final, counts[DeliveryState.AVAILABLE], counts[DeliveryState.ACQUIRED]
        )
        self._windows[key] = now
        return 0 if before is None else max(0, now.finished - before.finished)


class _Change(NamedTuple):
    """A row. ``ended``: offsets by outcome; ``again``: acquired again."""

    stamp: BatchStamp
    at_ms: int
    record: ShareRecord
    ended: Mapping[str, int]
    again: int


def _changes(rows: pa.Table, group_id: str) -> Iterator[_Change]:
    ended = _offsets_by(rows, "ended", "outcome")
    acquired = _offsets_by(rows, "acquired", "delivery_count")
    stamps = zip(*(rows.column(name).to_pylist() for name in _STAMP), strict=True)
    records = (record for _, record in records_in(rows, group_id))
    for at, ((epoch, batch_id, at_ms, kind), record) in enumerate(zip(stamps, records, strict=True)):
        counts = acquired.get(at, {}) if kind == UPDATE else {}  # a snapshot repeats what was acquired before
        again = sum(offsets for count, offsets in counts.items() if count > 1)
        yield _Change(BatchStamp(epoch, batch_id), at_ms or 0, record, ended.get(at, {}), again)


_STAMP = ("writer_epoch", "batch_id", "at_ms", "kind")


def _offsets_by(rows: pa.Table, ranges: str, name: str) -> dict[int, dict[Any, int]]:
    """Return, by row, how many offsets of its ranges have which value of the field ``name``."""
    column: Any = rows.column(ranges).combine_chunks()
    flat, owners = pc.list_flatten(column), pc.list_parent_indices(column)
    first, last, values = (pc.struct_field(flat, field_name) for field_name in ("first_offset", "last_offset", name))
    offsets = pc.add(pc.subtract(last, first), pa.scalar(1, pa.int64()))
    table = pa.table({"row": owners, "value": values, "offsets": offsets})
    found: dict[int, dict[Any, int]] = {}
    for one in table.group_by(["row", "value"]).aggregate([("offsets", "sum")]).to_pylist():
        found.setdefault(one["row"], {})[one["value"]] = one["offsets_sum"]
    return found
