"""The live state of a group that is small: on the driver, where the step of a micro-batch takes a millisecond and a
Spark job over it a tenth of a second."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
"""Above this the state belongs to the executors: a micro-batch that touches all of it takes one Python process a
second or two, and a Spark job over it less. Some 3,000,000 ranges of few share-partitions, or 15,000 of these."""


def weight_of(share_partitions: int, ranges: int) -> int:
    """What a micro-batch that touches all of a state takes, in units of five microseconds (``python -m tests.bench
    window``): 20 for each share-partition; one for a range, and an eighth where there are so many that they are
    columns."""
    return 20 * share_partitions + min(ranges, COLUMNS_FROM * share_partitions) + ranges // 8


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
    def weight(self) -> int:
        """What a micro-batch takes at most."""
        return weight_of(len(self.states), self.ranges)

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
    def ranges(self) -> int:
        """In the records."""
        return sum(len(one.record.batches) for one in self.changed if one.record is not None)

    def records(self) -> pa.StructArray:
        """To be appended (RECORD_TYPE)."""
        written = [one for one in self.changed if one.record is not None]
        pairs = [(one.topic, one.record) for one in written if one.record is not None]
        return record_array(pairs, [one.ended for one in written])
