"""Records in order of their keys that workers read themselves: which task gets which, and in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_spark.delivery.keyed_input import KeyShare, TaskInputs, key_shares, keyed_input
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges
from share_spark.model.ids import TopicPartition

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.binary()),
    ]
)

Keys = Mapping[TopicPartition, list[bytes | None]]
"""Of the records of each topic-partition, by offset."""


@dataclass(frozen=True)
class All:
    """All records of some topic-partitions, three in a batch, those of several in turns."""

    keys: Keys

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        assert task == 0
        rows = [(offset, *at, key) for at, keys in self.keys.items() for offset, key in enumerate(keys)]
        rows.sort(key=lambda row: row[:3])
        for begin in range(0, len(rows), 3):
            offsets, topics, partitions, keys = zip(*rows[begin : begin + 3], strict=True)
            columns = {"topic": topics, "partition": partitions, "offset": offsets, "key": keys}
            yield pa.RecordBatch.from_pydict(columns, SCHEMA).select(schema.names)


def spans(keys: Keys) -> list[AcquiredSpan]:
    return [AcquiredSpan(at, AcquiredRanges(np.array([[0, len(some) - 1, 1]]))) for at, some in keys.items()]


places = st.builds(TopicPartition, st.sampled_from(["orders", "returns"]), st.integers(0, 2))
keys_of = st.lists(st.none() | st.binary(max_size=2), min_size=1, max_size=30)


@given(st.dictionaries(places, keys_of, min_size=1), st.integers(1, 7), st.booleans())
def test_records_of_a_key_come_to_one_task_in_order(keys: Keys, tasks: int, names_topics: bool) -> None:
    """``names_topics``: False where all records are of one topic; then batches have no column for it."""
    keys = keys if names_topics else {at: some for at, some in keys.items() if at.topic == next(iter(keys)).topic}
    schema = SCHEMA if names_topics else pa.schema([field for field in SCHEMA if field.name != "topic"])

    def inputs_of(places: Collection[TopicPartition]) -> TaskInputs:
        return (All({at: some for at, some in keys.items() if at in places}),)

    found = keyed_input(spans(keys), tasks, inputs_of)
    assert found is not None
    taken = [[row for batch in found.batches(task, schema) for row in batch.to_pylist()] for task in range(tasks + 1)]
    assert not taken[tasks], "a task that there is no piece for"
    only = next(iter(keys)).topic
    rows = [(task, (row.get("topic", only), row["partition"]), row) for task, some in enumerate(taken) for row in some]
    seen = sorted((place, row["offset"], row["key"]) for _, place, row in rows)
    assert seen == sorted((tuple(at), offset, key) for at, some in keys.items() for offset, key in enumerate(some))
    tasks_of, offsets_of = defaultdict(set), defaultdict(list)
    for task, place, row in rows:
        if row["key"] is not None:
            tasks_of[place, row["key"]].add(task)
            offsets_of[place, row["key"]].append(row["offset"])
    assert all(len(some) == 1 for some in tasks_of.values())
    assert all(some == sorted(some) for some in offsets_of.values())


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 9))
def test_the_shares_of_a_topic_partition_are_all_of_it(sizes: list[int], tasks: int) -> None:
    shares = key_shares(sizes, tasks)
    assert 1 <= len(shares) <= tasks
    for number in range(len(sizes)):
        own = [share for some in shares for share in some if share.number == number]
        assert [own[0].low, *(share.high for share in own)] == [*(share.low for share in own), 1 << 32]
        assert own == [KeyShare(number, 0, 1 << 32)] or not any(share.is_whole for share in own)
    assert sum(len(some) for some in shares) <= len(sizes) + tasks - 1, "how often topic-partitions are read"


@pytest.mark.parametrize(("offsets", "tasks", "is_read"), [(10_000, 8, True), (100_000, 8, False), (100_000, 4, True)])
def test_where_too_much_would_be_read_more_than_once_spark_reads(offsets: int, tasks: int, is_read: bool) -> None:
    span = AcquiredSpan(TopicPartition("orders", 0), AcquiredRanges(np.array([[0, offsets - 1, 1]])))
    found = keyed_input([span], tasks, lambda _: (All({}),))
    assert (found is not None) == is_read
