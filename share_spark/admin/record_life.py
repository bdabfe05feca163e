"""The history of one record, from the files of the state log: as ``audit.history``, without Spark and JVM.

Of a long log only the newest segments are read. That does not change their content: each begins with a snapshot of
every share-partition, and older ones may be gone as well (``history.retention``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.admin.kept_segments import AppendStamp, late_stamps, newest_segments, stamps_in, with_microseconds
from share_spark.admin.state_reader import StateReader
from share_spark.audit.record_events import (
    ACQUIRED,
    FINISHED,
    GONE,
    AttemptEnd,
    Life,
    LogExtent,
    RecordHistory,
    RecordRow,
    RecordState,
    Written,
    history_of,
    settled_state,
)
from share_spark.delta.table_log import UnknownTableError
from share_spark.model.errors import ConfigError, StateError
from share_spark.state.direct_rows import tables_of
from share_spark.state.log_rows import LOG_SCHEMA
from share_spark.state.record_rows import SHARE_KINDS, SNAPSHOT

MOST_FILES, MOST_BYTES = 1_500, 64 << 20
"""The most files and bytes of a group's log that are read: a few seconds."""

_UNUSED = ("group_records", "doubts", "excused", "leader_epoch", "query_id", "at_ms")
_COLUMNS = pa.schema([column for column in LOG_SCHEMA if column.name not in _UNUSED])


def read_record_history(
    reader: StateReader, *, group_id: str, topic: str, partition: int, offset: int
) -> RecordHistory:
    """Return the history; see ``audit.history.record_history``. Raises ConfigError for a topic or partition that the
    group's log does not have, StateError (no such group, or only Spark can read its log)."""
    if offset < 0:
        raise ConfigError(f"offset {offset} is below 0")
    reader.require(group_id)
    found = _Found(topic, partition, offset)
    try:
        segments, is_cut = newest_segments(reader.log.row_files, group_id, MOST_FILES, MOST_BYTES)
        for segment, paths in segments.items():
            found.add(segment, pa.concat_tables(tables_of(reader.log, paths, _COLUMNS)))
    except UnknownTableError as reason:
        raise StateError(f"the history of group {group_id!r} cannot be read without Spark: {reason}") from reason
    extent = found.extent(is_cut=is_cut)
    extent.check(reader.directory, group_id, topic, partition)
    late = late_stamps(reader, group_id, found.stamps)
    counted = [row for row in _record_rows(found.rows) if row.written.stamp not in late]
    return history_of(counted, extent, group_id=group_id, topic=topic, partition=partition, offset=offset)


class _Row(NamedTuple):
    """A row of the record's share-partition. ``state`` None: it does not say where the record is."""

    written: Written
    ended: Sequence[AttemptEnd]
    state: RecordState | None
    topic_id: str
    snapshot_epoch: int
    state_epoch: int | None


@dataclass(slots=True)
class _Found:
    """The rows of the segments, added one after the other, in any order."""

    topic: str
    partition: int
    offset: int
    stamps: set[AppendStamp] = field(default_factory=set)
    rows: list[_Row] = field(default_factory=list)
    has_topic: bool = False

    def add(self, segment: int, rows: pa.Table) -> None:
        """Add the rows of a segment, in any order."""
        rows = with_microseconds(rows)
        self.stamps |= stamps_in(segment, rows)
        of_topic = rows.filter((pc.field("topic") == self.topic) & pc.field("kind").isin(SHARE_KINDS))
        self.has_topic = self.has_topic or of_topic.num_rows > 0
        self.rows += _rows_in(of_topic.filter(pc.field("partition") == self.partition), self.offset)

    def extent(self, *, is_cut: bool) -> LogExtent:
        """Return the extent of all that was added."""
        first = min((one.segment for one in self.stamps if one.batch_id is not None), default=None)
        since = min((row.written.written_at_us for row in self.rows), default=None)
        return LogExtent(first, self.has_topic, since, is_cut)


_SCALARS = (
    *("writer_epoch", "batch_id", "run_id", "written_at", "kind", "start_offset"),
    *("topic_id", "snapshot_epoch", "state_epoch"),
)


def _rows_in(rows: pa.Table, offset: int) -> Iterator[_Row]:
    ended, errors, acquired, settled, delays = (
        _containing(rows.column(name), offset) for name in ("ended", "errors", "acquired", "state_batches", "delays")
    )
    scalars = zip(*(rows.column(name).to_pylist() for name in _SCALARS), strict=True)
    for at, (epoch, batch_id, run_id, at_us, kind, start, *life) in enumerate(scalars):
        texts = {one["first_offset"]: one["error"] for one in errors.get(at, ())}
        attempts = [
            AttemptEnd(one["delivery_count"], one["outcome"], texts.get(one["first_offset"]))
            for one in ended.get(at, ())
        ]
        place = _place(kind, start, offset)
        state = _state(acquired.get(at, ()), settled.get(at, ()), delays.get(at, ()), place)
        yield _Row(Written(epoch, batch_id, run_id, at_us), attempts, state, *life)


def _containing(column: Any, offset: int) -> dict[int, list[dict[str, Any]]]:
    """Return, by row, those of its ranges that contain the offset."""
    ranges: Any = column.combine_chunks()
    flat, owners = pc.list_flatten(ranges), pc.list_parent_indices(ranges)
    first, last = (pc.struct_field(flat, name) for name in ("first_offset", "last_offset"))
    at = pa.scalar(offset, pa.int64())
    hit: Any = pc.and_(pc.less_equal(first, at), pc.greater_equal(last, at))
    found: dict[int, list[dict[str, Any]]] = {}
    for row, one in zip(owners.filter(hit).to_pylist(), flat.filter(hit).to_pylist(), strict=True):
        found.setdefault(row, []).append(one)
    return found


def _state(
    acquired: Sequence[Mapping[str, Any]],
    settled: Sequence[Mapping[str, Any]],
    delays: Sequence[Mapping[str, Any]],
    place: str | None,
) -> RecordState | None:
    for one in acquired:
        return RecordState(ACQUIRED, one["delivery_count"], one["member_id"], one["lock_deadline_ms"])
    for one in settled:
        until_ms = next((delay["lock_deadline_ms"] for delay in delays), None)
        return settled_state(one["delivery_state"], one["delivery_count"], until_ms)
    return None if place is None else RecordState(place)


def _place(kind: str, start_offset: int, offset: int) -> str | None:
    """Return where a row that names no range of the record has it. An update has only changes, so only a snapshot can
    show that a record is gone."""
    if start_offset > offset:
        return FINISHED
    return GONE if kind == SNAPSHOT and start_offset >= 0 else None


def _record_rows(rows: Iterable[_Row]) -> Iterator[RecordRow]:
    """Yield the rows about the record, in order. Only a snapshot has the state epoch."""
    epochs: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: row.written.stamp):
        if row.state_epoch is not None:
            epochs[row.written.writer_epoch] = row.state_epoch
        if row.ended or row.state is not None:
            life = Life(row.topic_id, epochs.get(row.written.writer_epoch, 0), row.snapshot_epoch)
            yield RecordRow(row.written, row.ended, row.state, life)
