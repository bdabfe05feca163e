"""The streams of a state log: the records of one share-partition in one segment, replayed one by one.

    a segment's files  ->  as many share-partitions at a time as fit into memory  ->  ``streams_in``  ->  ``Stream``

A row that cannot be read as a record is a fault of its stream (``LogEntry``): ``record_rows.records_in`` is for readers
that trust the log, and here is checked whether it can be trusted.

Read from the files of the log, segment by segment in this process, or on Spark's executors, if there is a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.audit.stream_check import LogRecord, first_fault
from share_spark.coordinator import state_partition_of
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.ids import BatchStamp, SharePartitionKey
from share_spark.model.records import DeliveryState, ShareRecord, ShareSnapshot
from share_spark.spark import functions as F
from share_spark.spark.python_worker import begin_task
from share_spark.state.direct_rows import in_columns, most_values
from share_spark.state.log_rows import LOG_SCHEMA
from share_spark.state.record_rows import RECORD_TYPE, SNAPSHOT, UPDATE, records_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEEDED = ("topic_id", "partition", "batch_id", "snapshot_epoch", "leader_epoch", "start_offset")
_WRITTEN_STATES = (DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


class LogEntry(NamedTuple):
    """A log row. ``record`` is None if it cannot be read; ``unreadable`` is then the reason."""

    key: SharePartitionKey
    topic: str
    batch_id: int
    record: ShareRecord | None
    unreadable: str | None


def entries_by_key(rows: pa.Table, group_id: str) -> dict[SharePartitionKey, list[LogEntry]]:
    """Return the entries of each share-partition, in row order. ``rows``: snapshots and updates of one group."""
    found: dict[SharePartitionKey, list[LogEntry]] = {}
    for entry in _entries(rows, group_id):
        found.setdefault(entry.key, []).append(entry)
    return found


def _entries(rows: pa.Table, group_id: str) -> Iterator[LogEntry]:
    faults = dict(_unreadable(rows))
    readable = pa.array([row not in faults for row in range(rows.num_rows)], pa.bool_())
    records = records_in(rows.filter(readable), group_id)
    columns = [rows.column(name).to_pylist() for name in ("topic", "topic_id", "partition", "batch_id")]
    for row, (topic, topic_id, partition, batch_id) in enumerate(zip(*columns, strict=True)):
        _, record = (None, None) if row in faults else next(records)
        yield LogEntry(SharePartitionKey(group_id, topic_id, partition), topic, batch_id, record, faults.get(row))


def _unreadable(rows: pa.Table) -> Iterator[tuple[int, str]]:
    """Yield (row, reason): a field is missing, or there is a state that is never written (R8)."""
    for name in _NEEDED:
        yield from ((row, f"{name} is missing") for row in _nulls(rows, name))
    kinds: list[Any] = rows.column("kind").to_pylist()
    yield from ((row, "state_epoch is missing") for row in _nulls(rows, "state_epoch") if kinds[row] == SNAPSHOT)
    batches = rows.column("state_batches").combine_chunks()
    states: list[Any] = pc.struct_field(pc.list_flatten(batches), "delivery_state").to_pylist()
    owners: list[Any] = pc.list_parent_indices(batches).to_pylist()
    for row, state in zip(owners, states, strict=True):
        if state not in _WRITTEN_STATES:
            yield row, f"unknown delivery state {state}"


def _nulls(rows: pa.Table, name: str) -> list[int]:
    found: Any = pc.indices_nonzero(pc.is_null(rows.column(name)))
    return [int(row) for row in found.to_pylist()]


VALUES_AT_ONCE = 100_000
"""The number of rows, or ranges in them, that are in memory at a time: some 200 MB. No share-partition is divided."""


class Stream(NamedTuple):
    """The summary of one share-partition in one segment; the micro-batches and epochs that it begins and ends with,
    None where no record has them."""

    topic: str
    topic_id: str
    partition: int
    segment: int
    writer_epoch: int
    rows: int
    fault: str | None
    first_batch: int
    last_batch: int
    first_state_epoch: int | None
    last_state_epoch: int | None
    first_leader_epoch: int | None
    last_leader_epoch: int | None


_COLUMNS = (
    "topic string, topic_id string, partition int, segment int, writer_epoch bigint, rows bigint, fault string, "
    "first_batch bigint, last_batch bigint, first_state_epoch int, last_state_epoch int, "
    "first_leader_epoch int, last_leader_epoch int"
)

Place = tuple[int, int]
"""The writer epoch and the number of a segment: they were begun in this order."""


def streams_in(rows: pa.Table, place: Place, group_id: str, bucket: int | None) -> list[Stream]:
    """Return the streams of one segment's ``rows``: all share-partitions, or only those of state partition
    ``bucket``."""
    return [
        _stream(entries, place)
        for key, entries in entries_by_key(rows.sort_by("batch_id"), group_id).items()
        if bucket is None or state_partition_of(key) == bucket
    ]


def _stream(entries: Sequence[LogEntry], place: Place) -> Stream:
    first, (writer_epoch, segment) = entries[0], place
    stream = [LogRecord(entry.batch_id, entry.record) for entry in entries if entry.record is not None]
    faults = (f"micro-batch {entry.batch_id}: {entry.unreadable}" for entry in entries if entry.unreadable)
    state_epochs = [record.state_epoch for _, record in stream if isinstance(record, ShareSnapshot)]
    leader_epochs = [record.leader_epoch for _, record in stream]
    return Stream(
        topic=first.topic,
        topic_id=first.key.topic_id,
        partition=first.key.partition,
        segment=segment,
        writer_epoch=writer_epoch,
        rows=len(entries),
        fault=next(faults, None) or first_fault(stream),
        first_batch=first.batch_id,
        last_batch=entries[-1].batch_id,
        first_state_epoch=next(iter(state_epochs), None),
        last_state_epoch=next(reversed(state_epochs), None),
        first_leader_epoch=next(iter(leader_epochs), None),
        last_leader_epoch=next(reversed(leader_epochs), None),
    )


class GroupStreams(NamedTuple):
    """The streams of one group. ``places``: its segments, in order. ``streams``: in the order of their segments; read
    lazily."""

    places: Sequence[Place]
    streams: Iterator[Stream]


# ------------------------------------------------------------------------------------------- from files


class _Segment(NamedTuple):
    """A segment's files. ``values``: the most values in a column of each file, summed up."""

    paths: Sequence[str]
    rows: int
    values: int


def streams_in_files(log: TableLog, group_id: str, last: BatchStamp, bucket: int | None) -> GroupStreams:
    """Return the streams from the log's files. ``last``: the last micro-batch that counts. Raises UnknownTableError:
    only Spark can read them."""
    paths: dict[int, list[str]] = {}
    for path, file in log.row_files.items():
        if file.values["group_id"] == group_id:
            paths.setdefault(int(file.values["segment"]), []).append(path)
            if not file.is_whole:
                raise UnknownTableError("rows of its files are deleted")
    found: dict[Place, _Segment] = {}
    for segment, names in paths.items():
        found |= {(epoch, segment): size for epoch, size in _measured(log, names, last).items()}
    places = sorted(found)
    read = (_streams_of(log, place, found[place], group_id, last, bucket) for place in places)
    return GroupStreams(places, (stream for streams in read for stream in streams))


def _measured(log: TableLog, paths: Sequence[str], last: BatchStamp) -> dict[int, _Segment]:
    """Return the size by writer epoch: one, unless a fenced engine has begun a segment with its successor's number."""
    rows = values = 0
    epochs: set[int] = set()
    for path in paths:
        file = log.data_file(path)
        rows, values = rows + file.metadata.num_rows, values + most_values(file.metadata, LOG_SCHEMA.names)
        stamps = pa.Table.from_batches(file.iter_batches(columns=["kind", "writer_epoch", "batch_id"]))
        found: list[Any] = _counting(stamps, last).column("writer_epoch").to_pylist()
        epochs |= set(found)
    return dict.fromkeys(epochs, _Segment(paths, rows, values))


def _streams_of(
    log: TableLog, place: Place, segment: _Segment, group_id: str, last: BatchStamp, bucket: int | None
) -> Iterator[Stream]:
    for keys in _shares(log, segment):
        rows = _rows(log, place, segment, last, keys)
        if rows.num_rows:
            yield from streams_in(rows, place, group_id, bucket)


def _shares(log: TableLog, segment: _Segment) -> Iterator[pa.Array[Any] | None]:
    """Yield sets of share-partitions that together are all of the segment; None: all of them at once."""
    if segment.values <= VALUES_AT_ONCE:
        yield None
        return
    batches = (batch for path in segment.paths for batch in log.data_file(path).iter_batches(columns=[*_KEY]))
    counts: dict[str, int] = {}
    for batch in batches:
        for found in pc.value_counts(_key_texts(batch)).to_pylist():
            counts[found["values"]] = counts.get(found["values"], 0) + found["counts"]
    most = segment.rows * VALUES_AT_ONCE // segment.values
    share: list[str] = []
    size = 0
    for text, rows in counts.items():
        if share and size + rows > most:
            yield pa.array(share)
            share, size = [], 0
        share.append(text)
        size += rows
    yield pa.array(share)


def _rows(log: TableLog, place: Place, segment: _Segment, last: BatchStamp, keys: pa.Array[Any] | None) -> pa.Table:
    """Return the rows that count, of these share-partitions."""
    names = [*RECORD_TYPE.names, "writer_epoch", "batch_id"]
    schema = pa.schema([LOG_SCHEMA.field(name) for name in names])
    parts = [schema.empty_table()]
    for path in segment.paths:
        for batch in log.data_file(path).iter_batches(columns=names):
            chosen = batch if keys is None else batch.filter(pc.is_in(_key_texts(batch), value_set=keys))
            if chosen.num_rows:
                parts.append(in_columns(pa.Table.from_batches([chosen]), schema))
    rows = _counting(pa.concat_tables(parts), last)
    return rows.filter(pc.field("writer_epoch") == place[0]).combine_chunks()


_KEY = ("topic_id", "partition")


def _key_texts(batch: pa.RecordBatch) -> Any:
    parts: list[Any] = [batch.column(name).cast(pa.string()) for name in _KEY]
    return pc.binary_join_element_wise(*parts, "/", null_handling="replace", null_replacement="")


def _counting(rows: pa.Table, last: BatchStamp) -> pa.Table:
    """Return all records except a stale append of the newest segment's engine, made after it was fenced."""
    batch_id = pc.field("batch_id")
    is_late = (pc.field("writer_epoch") == last.writer_epoch) & batch_id.is_valid() & (batch_id > last.batch_id)
    return rows.filter(pc.field("kind").isin([SNAPSHOT, UPDATE]) & ~is_late)


# ------------------------------------------------------------------------------------------- by Spark

_TASKS_PER_SEGMENT = 16


def streams_by_spark(rows: DataFrame, group_id: str, last: BatchStamp, bucket: int | None) -> GroupStreams:
    """Return the streams of the group's ``rows``. A segment can be the whole log: several tasks share its
    partitions."""
    late = (F.col("writer_epoch") == last.writer_epoch) & (F.col("batch_id") > last.batch_id)
    rows = rows.where(F.col("kind").isin(SNAPSHOT, UPDATE) & ~F.coalesce(late, F.lit(False)))
    places = sorted((row.writer_epoch, row.segment) for row in rows.select(*_PLACE).distinct().collect())
    share = F.expr(f"pmod(hash(topic_id, partition), {_TASKS_PER_SEGMENT})")
    found = rows.groupBy(*_PLACE, share).applyInArrow(_task(group_id, bucket), _COLUMNS).orderBy(*_PLACE)
    return GroupStreams(places, (Stream(**row.asDict()) for row in found.toLocalIterator()))


_PLACE = ("writer_epoch", "segment")


def _task(group_id: str, bucket: int | None) -> Callable[[pa.Table], pa.Table]:
    """Return the function for ``applyInArrow``: one row per share-partition of a segment."""

    def check(rows: pa.Table) -> pa.Table:
        begin_task()
        epoch, segment = (rows.column(name)[0].as_py() for name in _PLACE)
        found = streams_in(rows, (epoch, segment), group_id, bucket)
        return pa.Table.from_pylist([stream._asdict() for stream in found], schema=_SCHEMA)

    return check


_FIELDS: list[Any] = [
    ("topic", pa.string()),
    ("topic_id", pa.string()),
    ("partition", pa.int32()),
    ("segment", pa.int32()),
    ("writer_epoch", pa.int64()),
    ("rows", pa.int64()),
    ("fault", pa.string()),
    ("first_batch", pa.int64()),
    ("last_batch", pa.int64()),
    ("first_state_epoch", pa.int32()),
    ("last_state_epoch", pa.int32()),
    ("first_leader_epoch", pa.int32()),
    ("last_leader_epoch", pa.int32()),
]
_SCHEMA = pa.schema(_FIELDS)
