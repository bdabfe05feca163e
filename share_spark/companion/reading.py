"""The records of hand-overs: read in a thread, turned into ``Record`` there, and what of their offsets has none."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.companion.messages import HandOver
from share_spark.delivery.marked_rows import parted, waits_ms_of
from share_spark.engine.key_order import KeyOrder
from share_spark.engine.ports import RECORD_COLUMNS
from share_spark.engine.ranges import FIRST, LAST, each_between, offsets_in
from share_spark.engine.record_reader import RecordPart, in_schema
from share_spark.handlers.handler import KEY_COLUMNS, Record
from share_spark.handlers.records import records_of
from share_spark.model.ids import TopicPartition
from share_spark.spark.schemas import columns_in

Offsets = npt.NDArray[np.int64]


class OffsetRun(NamedTuple):
    """Consecutive offsets of a topic-partition."""

    at: TopicPartition
    first_offset: int
    last_offset: int


class ReadBatch(NamedTuple):
    """A batch as it was read, in Arrow and as records, and its offsets. ``waits_ms``: of each record, how long its key
    waits (``engine.key_order``); empty if none does."""

    batch: pa.RecordBatch
    records: Sequence[Record]
    offsets: dict[TopicPartition, Offsets]
    waits_ms: Sequence[int] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Handed:
    """A hand-over on its way. ``left``: records that were read and have no answer of a call. ``is_over``: what is still
    read of it is ignored; ``is_forgotten``: and its calls get no answer."""

    message: HandOver
    stopping: threading.Event = field(default_factory=threading.Event)
    left: int = 0
    is_read: bool = False
    is_over: bool = False
    is_forgotten: bool = False
    seen: dict[TopicPartition, list[Offsets]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether all was read, and each record has an answer."""
        return self.is_read and not self.left

    def settle_one(self) -> bool:
        """Count a record that has its answer; return whether it was the last one."""
        self.left -= 1
        return self.is_done

    def note_read(self, offsets: dict[TopicPartition, Offsets]) -> None:
        for at, some in offsets.items():
            self.seen.setdefault(at, []).append(some)
            self.left += len(some)

    def unread(self) -> Iterator[OffsetRun]:
        """Yield the acquired offsets of which no record was read."""
        for span in self.message.acquired:
            if sum(map(len, self.seen.get(span.partition, ()))) == offsets_in(span.ranges):  # usually all
                continue
            acquired, _ = each_between(span.ranges[:, FIRST], span.ranges[:, LAST])
            read = np.concatenate([*self.seen.get(span.partition, ()), np.empty(0, np.int64)])
            yield from offset_runs(span.partition, np.setdiff1d(acquired, read))


def offset_runs(at: TopicPartition, offsets: Offsets) -> Iterator[OffsetRun]:
    """Yield the runs in offsets that ascend."""
    begins = np.flatnonzero(np.diff(offsets, prepend=-2) != 1)
    for some in np.split(offsets, begins[1:]) if len(offsets) else ():
        yield OffsetRun(at, int(some[0]), int(some[-1]))


def record_schema(columns: Sequence[str], *, ordered: bool = False) -> pa.Schema:
    """Return the schema of the records for a handler that asks for ``columns``. ``ordered``: by their keys."""
    known = columns_in(f"{RECORD_COLUMNS}, delivery_count int")
    wanted = {*KEY_COLUMNS, *columns, "delivery_count"} | ({"key"} if ordered else set())
    return pa.schema([column for column in known if column.name in wanted])


def read_batches(handed: Handed, schema: pa.Schema, most_rows: int) -> Iterator[ReadBatch]:
    """Yield the batches of a hand-over that have records. Raises as ``RecordPart.batches``."""
    order = KeyOrder()
    for batch in _batches(handed, schema, most_rows):
        own, marks = parted(batch)
        waits_ms = _waits_ms(batch, order) if marks.num_rows or order else ()
        if own.num_rows:
            yield ReadBatch(own, list(records_of(own)), _offsets(own), waits_ms)


def _waits_ms(batch: pa.RecordBatch, order: KeyOrder) -> list[int]:
    """Return how long the keys of the rows without a mark wait, for the rows with a mark before them."""
    found = []
    counts = batch.column("delivery_count").to_numpy(zero_copy_only=False)
    columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "key"))
    for topic, partition, key, mark_ms in zip(*columns, waits_ms_of(counts).tolist(), strict=True):
        at = TopicPartition(topic, partition)
        if mark_ms < 0:
            found.append(order.wait_ms(at, key))
        else:
            order.hold_back(at, key, mark_ms)
    return found


def _batches(handed: Handed, schema: pa.Schema, most_rows: int) -> Iterator[pa.RecordBatch]:
    message = handed.message
    if message.part is not None:
        part: RecordPart = pickle.loads(message.part)
        yield from part.batches(schema, most_rows, handed.stopping.is_set)
    elif message.records is not None:
        with pa.ipc.open_stream(message.records) as stream:
            yield from (in_schema(batch, None, schema) for batch in stream)


def _offsets(batch: pa.RecordBatch) -> dict[TopicPartition, Offsets]:
    topics: Any = batch.column("topic").dictionary_encode()
    of_topic = topics.indices.to_numpy(zero_copy_only=False)
    partition, offset = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("partition", "offset"))
    return {
        TopicPartition(topic, number): offset[(of_topic == index) & (partition == number)]
        for index, topic in enumerate(topics.dictionary.to_pylist())
        for number in np.unique(partition[of_topic == index]).tolist()
    }
