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
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.model.ids import SharePartitionKey
from share_spark.partition import SharePartition
from share_spark.spark.frames import keys_of_tasks
from share_spark.spark.python_worker import begin_task, cycles_ignored
from share_spark.state.advancing import Advanced, StepTerms, advanced, begun
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


@dataclass(frozen=True, slots=True)
class Advance:
    """One micro-batch over the buckets of one task, for ``mapInArrow``. ``partition_inputs``: bucket -> inputs by
    share-partition."""

    partition_inputs: Mapping[int, Mapping[SharePartitionKey, PartitionInput]]
    terms: StepTerms

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        with cycles_ignored():
            yield from self._advanced(batches)

    def _advanced(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: dict[int, dict[SharePartitionKey, PartitionInput]] = {}
        written = Written()
        for batch in batches:
            for bucket in _headers_in(batch):
                waiting[bucket] = dict(self.partition_inputs.get(bucket, {}))
            touched = {key_text(key): key for bucket in waiting for key in waiting[bucket]}
            # A bucket can come in several Arrow batches, so an input waits until its state has come, or the last batch.
            untouched, states = self._split(batch, touched)
            yield untouched
            found = (
                (bucket, advanced(topic, state, waiting.get(bucket, {}).pop(state.key, None), self.terms))
                for bucket, topic, state in states
            )
            for bucket, some in _portions(found):
                written = written.plus(some)
                yield from _result(bucket, some)
        # What still waits has no state yet: new share-partitions.
        new = (
            (bucket, begun(key, partition_input, self.terms))
            for bucket, partition_inputs in waiting.items()
            for key, partition_input in partition_inputs.items()
        )
        for bucket, some in _portions(new):
            written = written.plus(some)
            yield from _result(bucket, some)
        yield frame_rows(0, OUTCOME, [""], [pickle.dumps(written, protocol=5)])

    def _split(
        self, batch: pa.RecordBatch, touched: Mapping[str, SharePartitionKey]
    ) -> tuple[pa.RecordBatch, Iterator[tuple[int, str, SharePartition]]]:
        # Only states with an input are unpickled: an idle share-partition costs no Python.
        is_state = _rows_of_kind(batch, STATE)
        wanted = is_state
        if not self.terms.snapshot_all:
            wanted = pc.and_(is_state, pc.is_in(batch.column("key"), pa.array(list(touched), pa.string())))
        chosen = batch.filter(wanted)
        payloads: list[Any] = chosen.column("payload").to_pylist()
        found = (
            (bucket, *pickle.loads(payload))
            for bucket, payload in zip(chosen.column("bucket").to_pylist(), payloads, strict=True)
        )
        return _whole(batch.filter(pc.invert(wanted))), found


class Written(NamedTuple):
    """How many records a task, or all tasks, return, and the ranges in them; ``touched``: ranges of the states that had
    an input."""

    records: int = 0
    ranges: int = 0
    touched: int = 0

    def plus(self, some: Sequence[Advanced]) -> Written:
        """With the records of these."""
        records = [one.record for one in some if one.record is not None]
        ranges = sum(len(record.batches) for record in records)
        touched = sum(len(one.state.in_flight) for one in some if one.outcome is not None)
        return Written(self.records + len(records), self.ranges + ranges, self.touched + touched)


_RANGES_AT_ONCE = 50_000
"""Ranges of share-partitions that go to the JVM in one Arrow batch: a batch costs as much as some hundred ranges."""


def _portions(found: Iterable[tuple[int, Advanced]]) -> Iterator[tuple[int, list[Advanced]]]:
    """Share-partitions of one bucket, with ``_RANGES_AT_ONCE`` ranges or a few more."""
    bucket, some, size = -1, list[Advanced](), 0
    for number, one in found:
        if some and (number != bucket or size >= _RANGES_AT_ONCE):
            yield bucket, some
            some, size = [], 0
        bucket = number
        some.append(one)
        size += 1 + len(one.state.in_flight)
    if some:
        yield bucket, some


class FoldEnd(NamedTuple):
    """What ``Fold`` leaves at the end of a bucket: the last micro-batch that it saw rows of, -1 if none, and the ranges
    of its states."""

    batch_id: int
    ranges: int


def summaries_in(payloads: Iterable[bytes]) -> tuple[dict[SharePartitionKey, PartitionSummary], FoldEnd]:
    """Summaries that ``Fold`` left as outcome rows, and the end of the whole group."""
    found = [pickle.loads(payload) for payload in payloads]
    ends = [end for key, end in found if key is None]
    last = max((end.batch_id for end in ends), default=-1)
    return {key: summary for key, summary in found if key is not None}, FoldEnd(last, sum(end.ranges for end in ends))


def outcomes_in(payloads: Iterable[bytes]) -> tuple[list[PartitionOutcome], Written]:
    """Outcomes that ``Advance`` left, and how much it has written."""
    found = [pickle.loads(payload) for payload in payloads]
    outcomes = [value for value in found if isinstance(value, PartitionOutcome)]
    written = [value for value in found if isinstance(value, Written)]
    return outcomes, Written(*map(sum, zip(*written, strict=True)))


def _result(bucket: int, some: Sequence[Advanced]) -> Iterator[pa.RecordBatch]:
    states = [pickle.dumps((one.topic, one.state), protocol=5) for one in some]
    yield frame_rows(bucket, STATE, [key_text(one.state.key) for one in some], states)
    outcomes = [one.outcome for one in some if one.outcome is not None]
    if outcomes:
        keys = [key_text(outcome.key) for outcome in outcomes]
        yield frame_rows(bucket, OUTCOME, keys, [pickle.dumps(outcome, protocol=5) for outcome in outcomes])
    records = [(one.topic, one.record) for one in some if one.record is not None]
    if records:
        ended = [one.ended for one in some if one.record is not None]
        keys = [key_text(record.key) for _, record in records]
        yield frame_rows(bucket, RECORD, keys, [None] * len(keys), record_array(records, ended))


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
