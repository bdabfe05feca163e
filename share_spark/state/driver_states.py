"""The live state of a group on the driver, up to what that can hold and decide in time: there the step of a micro-batch
takes a millisecond, and a Spark job over it a tenth of a second."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from share_spark.engine.step import PartitionInput, PartitionOutcome
from share_spark.model.ids import SharePartitionKey
from share_spark.partition import SharePartition
from share_spark.partition.columns import COLUMNS_FROM
from share_spark.spark.python_worker import cycles_ignored
from share_spark.state.advancing import Advanced, StepTerms, advanced, begun
from share_spark.state.buckets import HEADER, STATE, bucket_of, frame_rows, key_text
from share_spark.state.record_rows import record_array

MOST_WEIGHT = 400_000
"""A micro-batch that touches more takes one Python process more than a second or two, and a Spark job less."""

MOST_BYTES = 800 << 20
"""Of a whole state, beside Spark's own limit for what a job returns to the driver (1 GB)."""


class Extent(NamedTuple):
    """How large a state, or what a micro-batch touches of it, is."""

    share_partitions: int
    ranges: int

    @property
    def weight(self) -> int:
        """What its decision takes, in units of five microseconds (``python -m tests.bench window``): 20 for each
        share-partition; one for a range, and an eighth where there are so many that they are columns."""
        return 20 * self.share_partitions + self._most_in_tuples + self.ranges // 8

    @property
    def size_bytes(self) -> int:
        """What it takes in memory at most: 20 for a range in columns, 170 in a tuple, 1,000 beside them."""
        return 1_000 * self.share_partitions + 150 * self._most_in_tuples + 20 * self.ranges

    @property
    def _most_in_tuples(self) -> int:
        return min(self.ranges, COLUMNS_FROM * self.share_partitions)


class DriverCapacity(NamedTuple):
    """Up to where a state is kept on the driver: the weight of what a micro-batch touches, and the size of it all. Idle
    share-partitions cost memory there and no time, on the executors both."""

    weight: int
    size_bytes: int

    @classmethod
    def of_this_machine(cls) -> DriverCapacity:
        """An eighth of the memory that this process may use, and not more than MOST_BYTES."""
        return cls(MOST_WEIGHT, min(MOST_BYTES, memory_bytes() // 8))

    @property
    def to_return(self) -> DriverCapacity:
        """Below this a state comes back: half of the weight, so that one near the limit does not go to and fro."""
        return DriverCapacity(self.weight // 2, self.size_bytes)

    def holds(self, whole: Extent, touched: Extent | None = None) -> bool:
        """Is there room for ``whole``? ``touched``: of it, by a micro-batch; None where there was none yet."""
        return whole.size_bytes <= self.size_bytes and (touched is None or touched.weight <= self.weight)


def memory_bytes() -> int:
    """That this process may use: the limit of its container, else of the machine."""
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _CONTAINER_LIMITS:
        if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
            return min(of_machine, int(text))
    return of_machine


_CONTAINER_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStates:
    """``states``: (topic name, state) per share-partition."""

    states: Mapping[SharePartitionKey, tuple[str, SharePartition]] = field(default_factory=dict)
    ranges: int = 0

    @classmethod
    def unpickled(cls, payloads: Iterable[bytes]) -> DriverStates:
        """From the rows of a frame of ``buckets`` that are states."""
        return cls.of({entry[1].key: entry for entry in map(pickle.loads, payloads)})

    @classmethod
    def of(cls, states: Mapping[SharePartitionKey, tuple[str, SharePartition]]) -> DriverStates:
        """With their ranges counted."""
        return cls(states=states, ranges=sum(len(state.in_flight) for _, state in states.values()))

    @property
    def extent(self) -> Extent:
        """Of all of it."""
        return Extent(len(self.states), self.ranges)

    def advance(self, partition_inputs: Mapping[SharePartitionKey, PartitionInput], terms: StepTerms) -> DriverAdvance:
        """One micro-batch; the states here stay as they are."""
        with cycles_ignored():
            known = self.states if terms.snapshot_all else (key for key in partition_inputs if key in self.states)
            old = [advanced(*self.states[key], partition_inputs.get(key), terms) for key in known]
            new = [begun(key, wanted, terms) for key, wanted in partition_inputs.items() if key not in self.states]
        return self._with([*old, *new])

    def _with(self, changed: Sequence[Advanced]) -> DriverAdvance:
        states = dict(self.states)
        ranges = self.ranges
        for one in changed:
            _, before = states.get(one.state.key, ("", None))
            ranges += len(one.state.in_flight) - (len(before.in_flight) if before is not None else 0)
            states[one.state.key] = one.topic, one.state
        return DriverAdvance(states=DriverStates(states=states, ranges=ranges), changed=changed)

    def to_frame_rows(self, buckets: Sequence[int]) -> pa.Table:
        """As rows of a frame of ``buckets``, for the executors."""
        batches = [frame_rows(bucket, HEADER, [""], [None]) for bucket in buckets]
        for entry in self.states.values():
            key = entry[1].key
            payload = pickle.dumps(entry, protocol=5)
            batches.append(frame_rows(bucket_of(key, buckets), STATE, [key_text(key)], [payload]))
        return pa.Table.from_batches(batches).combine_chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAdvance:
    """What a micro-batch has made of the states."""

    states: DriverStates
    changed: Sequence[Advanced]

    @property
    def outcomes(self) -> list[PartitionOutcome]:
        """Of the share-partitions that had an input."""
        return [one.outcome for one in self.changed if one.outcome is not None]

    @property
    def touched(self) -> Extent:
        """The states that had an input."""
        sizes = [len(one.state.in_flight) for one in self.changed if one.outcome is not None]
        return Extent(len(sizes), sum(sizes))

    @property
    def ranges(self) -> int:
        """In the records."""
        return sum(len(one.record.batches) for one in self.changed if one.record is not None)

    def records(self) -> pa.StructArray:
        """To be appended (RECORD_TYPE)."""
        written = [one for one in self.changed if one.record is not None]
        pairs = [(one.topic, one.record) for one in written if one.record is not None]
        return record_array(pairs, [one.ended for one in written])
