"""The kept segments of a group's log, for readers of more than the newest: which files, and which rows in them do not
count. No Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from share_spark.admin.state_reader import StateReader
from share_spark.delta.table_log import ActiveFile, UnknownTableError
from share_spark.model.ids import BatchStamp
from share_spark.state.commits import NotedCommit
from share_spark.state.record_rows import CLAIM
from share_spark.state.stale_appends import EpochNotes, EpochRows, late_appends

_MOST_COMMITS = 3_000
"""The most commits that are read to find stale appends. Beyond, the rows are used, as after a log clean-up."""


def newest_segments(
    active: Mapping[str, ActiveFile], group_id: str, most_files: int, most_bytes: int
) -> tuple[dict[int, list[str]], bool]:
    """Return the group's files by segment, the newest first, as many segments as may be read, and whether there are
    more. Raises UnknownTableError."""
    segments: dict[int, list[str]] = {}
    for path, file in active.items():
        if file.values["group_id"] == group_id:
            segments.setdefault(int(file.values["segment"]), []).append(path)
    chosen: dict[int, list[str]] = {}
    files = size = 0
    for segment in sorted(segments, reverse=True):
        files += len(segments[segment])
        size += sum(active[path].size for path in segments[segment])
        if files > most_files or size > most_bytes:
            break
        chosen[segment] = segments[segment]
    if segments and not chosen:
        raise UnknownTableError("its newest segment is large")
    if not all(active[path].is_whole for paths in chosen.values() for path in paths):
        raise UnknownTableError("rows of its files are deleted")
    return chosen, len(chosen) < len(segments)


class AppendStamp(NamedTuple):
    """The stamp of rows that were written together. ``batch_id`` None: a claim."""

    segment: int
    writer_epoch: int
    batch_id: int | None
    written_at_us: int


def with_microseconds(rows: pa.Table) -> pa.Table:
    """Return the rows with ``written_at`` as a number, since the epoch."""
    times = rows.column("written_at").cast(pa.int64())
    return rows.set_column(rows.schema.get_field_index("written_at"), "written_at", times)


def stamps_in(segment: int, rows: pa.Table) -> set[AppendStamp]:
    """Return the stamps in the rows of a segment (``with_microseconds``)."""
    found = rows.group_by(["kind", "writer_epoch", "batch_id"]).aggregate([("written_at", "min")]).to_pylist()
    return {
        AppendStamp(
            segment, one["writer_epoch"], None if one["kind"] == CLAIM else one["batch_id"], one["written_at_min"]
        )
        for one in found
    }


def late_stamps(reader: StateReader, group_id: str, stamps: Iterable[AppendStamp]) -> set[BatchStamp]:
    """Return the stamps whose rows do not count: written after another engine had claimed the group."""
    epochs = _epochs(stamps)
    return set(late_appends(epochs, _notes(reader.commits.back_from(reader.log.version), group_id, epochs)))


def _epochs(stamps: Iterable[AppendStamp]) -> dict[int, EpochRows]:
    by_epoch: dict[int, list[AppendStamp]] = {}
    for one in stamps:
        by_epoch.setdefault(one.writer_epoch, []).append(one)
    return {epoch: _epoch_rows(some) for epoch, some in by_epoch.items()}


def _epoch_rows(stamps: Sequence[AppendStamp]) -> EpochRows:
    segment, began = min(one.segment for one in stamps), min(one.written_at_us for one in stamps)
    batches = [(one.batch_id, one.segment, one.written_at_us) for one in stamps if one.batch_id is not None]
    return EpochRows(segment, began, *max(batches, default=(None, None, None)))


def _notes(commits: Iterator[NotedCommit], group_id: str, epochs: Collection[int]) -> dict[int, EpochNotes]:
    """Return the notes by epoch. ``commits``: newest first, read lazily. Only an engine with a successor is fenced."""
    found: dict[int, EpochNotes] = {}
    if len(epochs) < 2:
        return found
    for version, note in islice(commits, _MOST_COMMITS):
        if note is None or note.group_id != group_id:
            continue
        known = found.get(note.writer_epoch, EpochNotes())
        if note.kind == CLAIM:
            found[note.writer_epoch] = known._replace(claim=version)
            if note.writer_epoch == min(epochs):
                break
        elif known.last_append is None:
            found[note.writer_epoch] = known._replace(last_append=version)
    return found
