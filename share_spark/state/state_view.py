"""The state of share-partitions as a DataFrame for users: exact, folded from the log when it is read.

The same rows fill the status table ``share_partition_state``. Reads run in the reader's session and do not slow down
the engine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.model.ids import BatchStamp, SharePartitionKey
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.partition import SharePartition, highest_delivery_count, next_deadline_ms, offsets_by_state, waiting
from share_spark.partition.columns import Columns, is_columns
from share_spark.spark import functions as F
from share_spark.spark.python_worker import begin_task
from share_spark.state.commits import CommitListing
from share_spark.state.fold import fold_rows
from share_spark.state.live_state import LiveState
from share_spark.state.record_rows import SHARE_KINDS
from share_spark.state.segments import LogTail, tail_of
from share_spark.state.tables import STATE_COLUMNS, check_location, log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


STATE_BUCKETS = 16
"""Partitions of the state table per group: only those with a changed share-partition are rewritten."""

_BUCKET_SQL = f"CAST((crc32(CAST(topic_id AS BINARY)) + partition) % {STATE_BUCKETS} AS INT)"
"""``state_bucket`` of a log row."""

_KEY_COLUMNS = ("topic_id", "partition")
_PLACES = {
    DeliveryState.AVAILABLE: "available",
    DeliveryState.ACQUIRED: "acquired",
    DeliveryState.ACKNOWLEDGED: "acknowledged",
    DeliveryState.ARCHIVED: "archived",
}


def read_state(spark: SparkSession, location: str | Location, group_id: str | None = None) -> DataFrame:
    """Return the live state, one row per share-partition (``tables.STATE_COLUMNS``), exact as of the last commit.

    ``start_offset`` is the SPSO, ``end_offset`` the SPEO (exclusive); ``available`` ... ``archived`` count the offsets
    of the window in each state, ``delayed`` those of the available ones that are not acquired before a time, the first
    of which is ``next_available``; ``in_flight`` lists its ranges; ``as_of_batch`` is the group's last micro-batch.
    Raises StateError if there is no state of ours at ``location``.
    """
    place = Location.parse(location) if isinstance(location, str) else location
    check_location(spark, place)
    commits = CommitListing.of(spark, log_table(place).directory(spark))
    version = commits.latest_version()
    groups = [group_id] if group_id is not None else _groups(spark, place, version)
    frames = [state_of_group(spark, tail_of(spark, place, group, commits, version), group) for group in groups]
    empty = spark.createDataFrame([], STATE_COLUMNS)
    return reduce(lambda left, right: left.unionByName(right), frames, empty)


def state_of_group(spark: SparkSession, tail: LogTail, group_id: str) -> DataFrame:
    """Return STATE_COLUMNS for one group, from its log."""
    rows = tail.rows(spark).where(F.col("kind").isin(*SHARE_KINDS)).withColumn("bucket", F.expr(_BUCKET_SQL))
    grouped = rows.groupBy("bucket").applyInArrow(_status_function(group_id), STATE_COLUMNS)
    return grouped.withColumn("as_of_batch", F.lit(tail.last.batch_id).cast("bigint"))


def state_of_live(spark: SparkSession, live: LiveState, buckets: Collection[int] | None) -> DataFrame:
    """Return STATE_COLUMNS and ``bucket`` of the live state of an engine, of the buckets named (None: all)."""
    return spark.createDataFrame(_live_rows(live, buckets), f"{STATE_COLUMNS}, bucket int").coalesce(1)


def status_rows(live: LiveState, buckets: Collection[int] | None) -> Mapping[int, pa.Table]:
    """Return the same by bucket, without the group."""
    rows = _live_rows(live, buckets)
    found: set[Any] = set(rows.column("bucket").to_pylist())
    return {bucket: rows.filter(pc.field("bucket") == bucket).drop(["bucket", "group_id"]) for bucket in found}


def state_bucket(key: SharePartitionKey) -> int:
    """Return the partition of the state table that has a share-partition's row."""
    return (zlib.crc32(key.topic_id.encode()) + key.partition) % STATE_BUCKETS


def _live_rows(live: LiveState, buckets: Collection[int] | None) -> pa.Table:
    entries = [
        (topic, found) for topic, found in live.states.values() if buckets is None or state_bucket(found.key) in buckets
    ]
    stamp = {"writer_epoch": live.writer_epoch, "as_of_batch": live.batch_id}
    rows = [
        _row(topic, found, live.at_ms * 1_000) | stamp | {"bucket": state_bucket(found.key)} for topic, found in entries
    ]
    schema = _STATE_SCHEMA.append(pa.field("bucket", pa.int32()))
    return pa.Table.from_batches([_with_windows(rows, [found for _, found in entries], schema)])


def _groups(spark: SparkSession, location: Location, version: int) -> list[str]:
    rows = log_table(location).load(spark, version).select("group_id").distinct().collect()
    return sorted(row.group_id for row in rows)


def _status_function(group_id: str) -> Callable[[pa.Table], pa.Table]:
    def status_rows(rows: pa.Table) -> pa.Table:
        begin_task()
        written = _last_written(rows)
        last_batch = pc.max(rows.column("batch_id")).as_py()
        epoch = pc.max(rows.column("writer_epoch")).as_py()
        states = fold_rows(rows, group_id).values()
        entries = [
            _row(topic, found, written[found.key.topic_id, found.key.partition])
            | {"writer_epoch": epoch, "as_of_batch": last_batch}
            for topic, found in states
        ]
        return pa.Table.from_batches([_with_windows(entries, [found for _, found in states], _STATE_SCHEMA)])

    return status_rows


def _last_written(rows: pa.Table) -> dict[tuple[str, int], int]:
    grouped: Any = rows.group_by(list(_KEY_COLUMNS)).aggregate([("written_at", "max")])
    topic_ids, partitions = (grouped.column(name).to_pylist() for name in _KEY_COLUMNS)
    times = grouped.column("written_at_max").cast(pa.int64()).to_pylist()
    return dict(zip(zip(topic_ids, partitions, strict=True), times, strict=True))


def _row(topic: str, found: SharePartition, updated_at_us: int) -> dict[str, Any]:
    """Return STATE_COLUMNS without ``in_flight`` and the stamps of the writer."""
    deadline_ms, delayed = next_deadline_ms(found), waiting(found).delayed
    return {
        "group_id": found.key.group_id,
        "topic": topic,
        "topic_id": found.key.topic_id,
        "partition": found.key.partition,
        "start_offset": found.start_offset,
        "end_offset": found.end_offset,
        **{_PLACES[state]: offsets for state, offsets in offsets_by_state(found).items()},
        "delayed": sum(offsets for _, offsets in delayed),
        "max_delivery_count": highest_delivery_count(found),
        "next_lock_deadline": deadline_ms * 1_000 if deadline_ms is not None else None,
        "next_available": delayed[0][0] * 1_000 if delayed else None,
        "state_epoch": found.state_epoch,
        "snapshot_epoch": found.snapshot_epoch,
        "updated_at": updated_at_us,
    }


def _with_windows(
    rows: Sequence[dict[str, Any]], states: Sequence[SharePartition], schema: pa.Schema
) -> pa.RecordBatch:
    """Return ``rows``, one for each of ``states``, with ``in_flight``."""
    index = schema.get_field_index("in_flight")
    found = pa.RecordBatch.from_pylist(list(rows), schema=schema.remove(index))
    columns: list[Any] = found.columns
    return pa.RecordBatch.from_arrays([*columns[:index], _windows(states), *columns[index:]], schema=schema)


def _windows(states: Iterable[SharePartition]) -> pa.ListArray[Any]:
    """Return the ranges of each state. Many are arrays already; those of small windows are converted together."""
    parts, small, ends = [pa.array([], _RANGE)], list[dict[str, Any]](), [0]
    for state in states:
        runs = state.in_flight
        ends.append(ends[-1] + len(runs))
        if is_columns(runs):
            parts += [pa.array(small, _RANGE), _ranges(runs)]
            small = []
        else:
            small += map(_range, runs)
    parts.append(pa.array(small, _RANGE))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.concat_arrays(parts))


def _ranges(runs: Columns[InFlightBatch]) -> pa.StructArray:
    of_kinds: Any = pa.array([_range(run) for run in runs.samples], _RANGE)
    fields: list[Any] = of_kinds.take(pa.array(runs.kind)).flatten()
    return pa.StructArray.from_arrays([pa.array(runs.first), pa.array(runs.last), *fields[2:]], fields=list(_RANGE))


def _range(run: Any) -> dict[str, Any]:
    return {
        "first_offset": run.first_offset,
        "last_offset": run.last_offset,
        "state": run.delivery_state.name.capitalize(),
        "delivery_count": run.delivery_count,
        "member_id": run.member_id,
        "lock_deadline": run.lock_deadline_ms * 1_000 if run.lock_deadline_ms is not None else None,
    }


_MICROS = pa.timestamp("us", "UTC")
_RANGE = pa.struct(
    [
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("state", pa.string()),
        ("delivery_count", pa.int16()),
        ("member_id", pa.string()),
        ("lock_deadline", _MICROS),
    ]
)
_STATE_FIELDS: list[Any] = [
    ("group_id", pa.string()),
    ("topic", pa.string()),
    ("topic_id", pa.string()),
    ("partition", pa.int32()),
    ("start_offset", pa.int64()),
    ("end_offset", pa.int64()),
    ("available", pa.int64()),
    ("acquired", pa.int64()),
    ("acknowledged", pa.int64()),
    ("archived", pa.int64()),
    ("delayed", pa.int64()),
    ("max_delivery_count", pa.int32()),
    ("next_lock_deadline", _MICROS),
    ("next_available", _MICROS),
    ("in_flight", pa.list_(_RANGE)),
    ("state_epoch", pa.int32()),
    ("snapshot_epoch", pa.int32()),
    ("writer_epoch", pa.int64()),
    ("as_of_batch", pa.int64()),
    ("updated_at", _MICROS),
]
_STATE_SCHEMA = pa.schema(_STATE_FIELDS)


def status_app_id(group_id: str, log_id: str) -> str:
    """Return the id that numbers the group's rows: an older writer cannot overwrite those of a newer one. ``log_id``:
    of the state log."""
    return f"share_spark/state/{group_id}@{log_id}"


def replace_status(
    appends: DirectAppends, live: LiveState, group_id: str, app_id: str, buckets: Collection[int] | None
) -> None:
    """Write the rows of ``live`` in place of those of the ``buckets`` (None: all). Nothing is written where a newer
    writer has.

    Raises NotImplementedError (only Spark can), and the errors of the storage.
    """
    number = BatchStamp(live.writer_epoch, live.batch_id).number
    if appends.log.transactions.get(app_id, number - 1) >= number:
        return
    rows = status_rows(live, buckets)
    files = [appends.write(some, {"group_id": group_id, "bucket": str(bucket)}) for bucket, some in rows.items()]
    replaced = rows.keys() if buckets is None else buckets
    appends.commit(
        files,
        transactions={app_id: number},
        replaced=lambda _, values: values["group_id"] == group_id and int(values["bucket"]) in replaced,
    )
