"""State from log rows, record by record: what a restart needs is the states and a few rows at a time, however long the
segment. Pure: Arrow in, Arrow out, no Spark.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_spark.engine.step import front_of
from share_spark.model.ids import SharePartitionKey
from share_spark.partition import SharePartition, evolve
from share_spark.spark.python_worker import begin_task, cycles_ignored
from share_spark.state.buckets import HEADER, OUTCOME, STATE, FoldEnd, frame_rows, key_text
from share_spark.state.record_rows import records_in

_RANGES_AT_ONCE = 50_000
"""Ranges of rows that are Python objects at a time, beside the states: some 200 bytes each."""

FoldedStates = dict[SharePartitionKey, tuple[str, SharePartition]]
"""(topic name, state) per share-partition."""


@dataclass(slots=True)
class StateFold:
    """The states after all rows that were added, in the order in which they were written (R74, R85)."""

    group_id: str
    states: FoldedStates = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Rows of records, no claims."""
        for some in _portions(rows):
            for topic, record in records_in(some, self.group_id):
                _, known = self.states.get(record.key, ("", None))
                self.states[record.key] = topic, evolve(known, record)


def fold_rows(rows: pa.Table, group_id: str) -> FoldedStates:
    """(topic, state) per share-partition from rows of one segment, in any order."""
    folded = StateFold(group_id)
    with cycles_ignored():
        folded.add(rows.sort_by("batch_id"))
    return folded.states


def _portions(rows: pa.Table) -> Iterator[pa.Table]:
    """Slices of at most ``_RANGES_AT_ONCE`` ranges, or of one row that has more. Rows are never cut: a slice ends
    before the row that would exceed the limit. With a limit of 50k:

        ranges per row      20k    20k    20k    70k    10k
        running total       20k    40k    60k   130k   140k
        slices             [----------]  [---]  [----] [----]
    """
    if rows.num_rows == 0:
        return
    ends = np.cumsum(_ranges_of_rows(rows))
    begin = 0
    while begin < len(ends):
        passed = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, passed + _RANGES_AT_ONCE, side="right")))
        yield rows.slice(begin, end - begin)
        begin = end


def _ranges_of_rows(rows: pa.Table) -> Any:
    lengths = [pc.fill_null(pc.list_value_length(rows.column(name)), 0) for name in ("state_batches", "acquired")]
    return np.asarray(pc.add(*lengths), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Fold:
    """For ``mapInArrow``, over rows sorted by bucket and micro-batch: header, states and their summaries of each
    bucket, and the last micro-batch that it has rows of. A bucket without rows has its header row alone."""

    group_id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        with cycles_ignored():
            yield from self._folded(batches)

    def _folded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        bucket, folded, last_batch_id = -1, StateFold(self.group_id), -1
        for number, rows in _by_bucket(batches):
            if number != bucket and bucket >= 0:
                yield from _result(bucket, folded.states, last_batch_id)
                folded, last_batch_id = StateFold(self.group_id), -1
            bucket = number
            folded.add(rows)
            if rows.num_rows:
                last_batch_id = _batch_of_last(rows)
        if bucket >= 0:
            yield from _result(bucket, folded.states, last_batch_id)


def _batch_of_last(rows: pa.Table) -> int:
    found: int = rows.column("batch_id")[-1].as_py()
    return found


def _by_bucket(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The records of each bucket of each batch, in order. Its header sorts before them: it has no micro-batch."""
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        begins = {bucket: at for at, bucket in reversed(list(enumerate(rows.column("bucket").to_pylist())))}
        cuts = [*sorted(begins.values()), rows.num_rows]
        for begin, end in pairwise(cuts):
            own = rows.slice(begin, end - begin)
            headers = own.column("kind").null_count
            yield own.column("bucket")[0].as_py(), own.slice(headers)


def _result(bucket: int, states: FoldedStates, last_batch_id: int) -> Iterator[pa.RecordBatch]:
    ranges = sum(len(state.in_flight) for _, state in states.values())
    yield frame_rows(bucket, HEADER, [""], [None])
    for some in _entries(states):
        keys = [key_text(state.key) for _, state in some]
        summaries = [(state.key, front_of(topic, state)) for topic, state in some]
        yield frame_rows(bucket, STATE, keys, [pickle.dumps(entry, protocol=5) for entry in some])
        yield frame_rows(bucket, OUTCOME, keys, [pickle.dumps(summary, protocol=5) for summary in summaries])
    yield frame_rows(bucket, OUTCOME, [""], [pickle.dumps((None, FoldEnd(last_batch_id, ranges)), protocol=5)])


def _entries(states: FoldedStates) -> Iterator[list[tuple[str, SharePartition]]]:
    """Some at a time, and removed from ``states`` when they are given out: pickled they take as much memory again."""
    some: list[tuple[str, SharePartition]] = []
    size = 0
    for key in list(states):
        topic, state = states.pop(key)
        some.append((topic, state))
        size += 1 + len(state.in_flight)
        if size >= _RANGES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some
