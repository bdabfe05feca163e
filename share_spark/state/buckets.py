"""The live state on the executors: one frame, one bucket of share-partitions per task, one Python call per bucket.

A frame row is a header (one per bucket, so that an empty bucket is still a bucket), a state, or, in the frame that
``Advance`` returns, a record to append or an outcome for the driver. States travel as pickled values that only this
frame ever holds; share-partitions without a partition input pass through as Arrow, untouched.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.engine.step import (
    Answered,
    EndedAttempt,
    PartitionInput,
    PartitionOutcome,
    PartitionSummary,
    ended_attempts,
    step,
    with_snapshot,
)
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import ShareRecord
from share_spark.partition import PartitionLimits, SharePartition
from share_spark.spark.frames import keys_of_tasks
from share_spark.spark.python_worker import cycles_ignored, drop_zip_importers
from share_spark.state.record_rows import RECORD_TYPE, record_array
from share_spark.state.tables import RECORD_COLUMNS

HEADER, STATE, RECORD, OUTCOME = range(4)

_RECORD_FIELDS = ",".join(column.replace(" ", ":", 1) for column in RECORD_COLUMNS.split(", "))
FRAME_COLUMNS = f"bucket int, row tinyint, key string, payload binary, record struct<{_RECORD_FIELDS}>"
"""``payload``: a pickled (topic, SharePartition), PartitionOutcome, or nothing; ``record``: the log row to append."""

LIVE_COLUMNS = ("bucket", "row", "key", "payload")
"""What ``Advance`` gets: headers and states carry no record."""

_FRAME_FIELDS: list[Any] = [
    ("bucket", pa.int32()),
    ("row", pa.int8()),
    ("key", pa.string()),
    ("payload", pa.binary()),
    ("record", RECORD_TYPE),
]
_FRAME_SCHEMA = pa.schema(_FRAME_FIELDS)


KEY_HASH_SQL = "(crc32(CAST(topic_id AS BINARY)) + partition)"
"""``key_hash`` of a log row."""


def key_hash(key: SharePartitionKey) -> int:
    """Spreads the share-partitions of a group over buckets, here and (KEY_HASH_SQL) in the JVM.

    Those of one topic in turn: a checksum of topic and number would put the first four of any topic into one of two.
    """
    return zlib.crc32(key.topic_id.encode()) + key.partition


def bucket_of(key: SharePartitionKey, buckets: Sequence[int]) -> int:
    """The bucket that owns a share-partition; stable for a given number of buckets."""
    return buckets[key_hash(key) % len(buckets)]


def bucket_numbers(count: int) -> tuple[int, ...]:
    """``count`` bucket numbers that Spark's hash partitioning sends to ``count`` different tasks.

    Numbered 0, 1, 2 … several buckets would share a task and other tasks would have none.
    """
    return tuple(keys_of_tasks(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """One micro-batch over the buckets of one task, for ``mapInArrow``.

    ``partition_inputs``: bucket -> inputs by share-partition. ``snapshot_all``: a segment begins, so every live
    share-partition writes a snapshot, idle ones included. ``audit``: rows say which attempts ended, and how.
    """

    partition_inputs: Mapping[int, Mapping[SharePartitionKey, PartitionInput]]
    group_id: str
    limits: PartitionLimits
    member_id: str
    now_ms: int
    snapshot_all: bool
    audit: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        drop_zip_importers()
        with cycles_ignored():
            yield from self._advanced(batches)

    def _advanced(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: dict[int, dict[SharePartitionKey, PartitionInput]] = {}
        written = _Written()
        for batch in batches:
            for bucket in _headers_in(batch):
                waiting[bucket] = dict(self.partition_inputs.get(bucket, {}))
            touched = {key_text(key): key for bucket in waiting for key in waiting[bucket]}
            # A bucket can come in several Arrow batches, so an input waits until its state has come, or the last batch.
            untouched, states = self._split(batch, touched)
            yield untouched
            for bucket, topic, state in states:
                partition_input = waiting.get(bucket, {}).pop(state.key, None)
                yield from self._advance(bucket, topic, state, partition_input, written)
        # What still waits has no state yet: new share-partitions.
        for bucket, partition_inputs in waiting.items():
            for key, partition_input in partition_inputs.items():
                yield from self._begin(bucket, key, partition_input, written)
        yield frame_rows(0, OUTCOME, [""], [pickle.dumps(written.ranges, protocol=5)])

    def _split(
        self, batch: pa.RecordBatch, touched: Mapping[str, SharePartitionKey]
    ) -> tuple[pa.RecordBatch, Iterator[tuple[int, str, SharePartition]]]:
        # Only states with an input are unpickled: an idle share-partition costs no Python.
        is_state = _rows_of_kind(batch, STATE)
        wanted = is_state
        if not self.snapshot_all:
            wanted = pc.and_(is_state, pc.is_in(batch.column("key"), pa.array(list(touched), pa.string())))
        chosen = batch.filter(wanted)
        payloads: list[Any] = chosen.column("payload").to_pylist()
        found = (
            (bucket, *pickle.loads(payload))
            for bucket, payload in zip(chosen.column("bucket").to_pylist(), payloads, strict=True)
        )
        return _whole(batch.filter(pc.invert(wanted))), found

    def _advance(
        self, bucket: int, topic: str, state: SharePartition, partition_input: PartitionInput | None, written: _Written
    ) -> Iterator[pa.RecordBatch]:
        outcome: PartitionOutcome | None = None
        record: ShareRecord | None = None
        answered: Answered = ()
        if partition_input is not None:
            state, record, outcome, answered = step(
                state.key, state, partition_input, limits=self.limits, member_id=self.member_id, now_ms=self.now_ms
            )
        if self.snapshot_all:
            state, record = with_snapshot(state)
        written.add(record)
        yield from _result(bucket, topic, state, record, outcome, ended_attempts(answered) if self.audit else ())

    def _begin(
        self, bucket: int, key: SharePartitionKey, partition_input: PartitionInput, written: _Written
    ) -> Iterator[pa.RecordBatch]:
        state, record, outcome, _ = step(
            key, None, partition_input, limits=self.limits, member_id=self.member_id, now_ms=self.now_ms
        )
        written.add(record)
        yield from _result(bucket, partition_input.topic, state, record, outcome)


@dataclass(slots=True)
class _Written:
    """Ranges in the records that a task returns."""

    ranges: int = 0

    def add(self, record: ShareRecord | None) -> None:
        """Count those of one more."""
        if record is not None:
            self.ranges += len(record.batches)


def summaries_in(payloads: Iterable[bytes]) -> tuple[dict[SharePartitionKey, PartitionSummary], int]:
    """Fronts that ``Fold`` left as outcome rows, and the last micro-batch that it saw rows of, -1 if none."""
    found = [pickle.loads(payload) for payload in payloads]
    last = max((batch_id for key, batch_id in found if key is None), default=-1)
    return {key: summary for key, summary in found if key is not None}, last


def outcomes_in(payloads: Iterable[bytes]) -> tuple[list[PartitionOutcome], int]:
    """Outcomes that ``Advance`` left, and how many ranges its records have."""
    found = [pickle.loads(payload) for payload in payloads]
    outcomes = [value for value in found if isinstance(value, PartitionOutcome)]
    return outcomes, sum(value for value in found if isinstance(value, int))


def _result(
    bucket: int,
    topic: str,
    state: SharePartition,
    record: ShareRecord | None,
    outcome: PartitionOutcome | None,
    ended: Sequence[EndedAttempt] = (),
) -> Iterator[pa.RecordBatch]:
    key = key_text(state.key)
    yield frame_rows(bucket, STATE, [key], [pickle.dumps((topic, state), protocol=5)])
    if outcome is not None:
        yield frame_rows(bucket, OUTCOME, [key], [pickle.dumps(outcome, protocol=5)])
    if record is not None:
        yield frame_rows(bucket, RECORD, [key], [None], record_array([(topic, record)], [ended]))


def frame_rows(
    bucket: int,
    row: int,
    keys: Sequence[str],
    payloads: Sequence[bytes | None],
    records: pa.StructArray | None = None,
) -> pa.RecordBatch:
    """Rows of one kind."""
    size = len(keys)
    columns: list[Any] = [
        pa.array([bucket] * size, pa.int32()),
        pa.array([row] * size, pa.int8()),
        pa.array(keys, pa.string()),
        pa.array(payloads, pa.binary()),
        pa.nulls(size, RECORD_TYPE) if records is None else records,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_FRAME_SCHEMA)


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that pass through untouched, in the schema of all the others."""
    columns = [batch.column(name) for name in LIVE_COLUMNS]
    return pa.RecordBatch.from_arrays([*columns, pa.nulls(batch.num_rows, RECORD_TYPE)], schema=_FRAME_SCHEMA)


def _headers_in(batch: pa.RecordBatch) -> list[int]:
    buckets: list[Any] = batch.filter(_rows_of_kind(batch, HEADER)).column("bucket").to_pylist()
    return buckets


def _rows_of_kind(batch: pa.RecordBatch, row: int) -> Any:
    return pc.equal(batch.column("row"), pa.scalar(row, pa.int8()))


def key_text(key: SharePartitionKey) -> str:
    """In the column ``key``."""
    return f"{key.topic_id}:{key.partition}"
