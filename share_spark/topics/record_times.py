"""Timestamps of the records of a topic table, read from its files without Spark.

Timestamps may be in any order. So the first record since a time is looked for in the order of offsets, and files that
are too old by their statistics are not opened. Functions raise UnknownTableError: only Spark can read the files, or one
is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.ids import LogEnds, TopicPartition
from share_spark.topics.topic_files import offsets_of, partition_of

_ROUNDED_MS = 1
"""Statistics of timestamps are rounded to milliseconds."""


def offsets_since(log: TableLog, topic: str, timestamp_ms: int, ends: Mapping[int, LogEnds]) -> dict[int, int]:
    """Return, by partition, the first offset with a timestamp at or after ``timestamp_ms`` (milliseconds since the
    epoch), else the end offset. ``ends``: of the topic; records below the log start do not count."""
    found = {}
    for partition, end in ends.items():
        first = _first_record(log, TopicPartition(topic, partition), end.log_start_offset, timestamp_ms)
        found[partition] = end.end_offset if first is None else first[0]
    return found


def time_at(log: TableLog, at: TopicPartition, offset: int) -> int | None:
    """Return the timestamp in milliseconds of the first record at or after ``offset``; None if there is none."""
    first = _first_record(log, at, offset, None)
    return None if first is None else first[1]


def _first_record(log: TableLog, at: TopicPartition, offset: int, since_ms: int | None) -> tuple[int, int] | None:
    """Return (offset, timestamp in ms) of the first record at or after ``offset`` that is not older than ``since_ms``.

    Files whose offsets overlap (after an OPTIMIZE) are all read.
    """
    first: tuple[int, int] | None = None
    for path, least in _files_from(log, at, offset, since_ms):
        if first is not None and least > first[0]:
            break
        if (found := _first_in_file(log, path, offset, since_ms)) is not None:
            first = found if first is None else min(first, found)
    return first


def _first_in_file(log: TableLog, path: str, offset: int, since_ms: int | None) -> tuple[int, int] | None:
    rows = log.data_file(path).read(["offset", "timestamp"])
    times_us = rows.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    rows = rows.set_column(1, "timestamp", times_us)
    wanted = pc.field("offset") >= offset
    if since_ms is not None:
        wanted &= pc.field("timestamp") >= since_ms * 1_000
    for row in rows.filter(wanted).sort_by("offset").slice(0, 1).to_pylist():
        return row["offset"], row["timestamp"] // 1_000
    return None


def _files_from(log: TableLog, at: TopicPartition, offset: int, since_ms: int | None) -> list[tuple[str, int]]:
    """Return (path, its least offset) of the files that may have such a record, by that offset."""
    found = []
    for path, file in log.active.items():
        if partition_of(file) != at:
            continue
        extent = offsets_of(file)
        if extent is None or not file.is_whole:
            raise UnknownTableError("a file has no statistics of its offsets, or rows that are deleted")
        if extent[1] >= offset and not _is_older(file.stats, since_ms):
            found.append((path, extent[0]))
    return sorted(found, key=lambda pair: pair[1])


def _is_older(stats: str | None, since_ms: int | None) -> bool:
    """Return whether all records of a file are older by its statistics; without any they may not be."""
    latest = json.loads(stats or "{}").get("maxValues", {}).get("timestamp")
    if since_ms is None or latest is None:
        return False
    rounded = datetime.fromisoformat(latest) + timedelta(milliseconds=_ROUNDED_MS)
    return rounded.timestamp() * 1_000 < since_ms
