"""What deliver gives back: the acknowledgements of every topic-partition as arrays, decoded from
the workers' runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.model.errors import HandlerError, ShareError
from share_spark.model.ids import TopicPartition
from share_spark.process.acknowledgement import Ack
from share_spark.process.runs import FAULT, PRESENT, STAGED, VIOLATION, Ints, Runs


class ErrorRun(NamedTuple):
    """The error of the records ``first`` to ``last``, both included."""

    first: int
    last: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAcks:
    """Acknowledgements of one topic-partition: runs ``first..last`` (inclusive, int64) with ``ack``
    (int8, see Ack).

    Sorted and disjoint. Offsets in no run held no record. ``errors`` are sorted; only runs with a
    text are there.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    ack: npt.NDArray[np.int8]
    errors: tuple[ErrorRun, ...] = ()

    def count(self, ack: Ack) -> int:
        """Records with this acknowledgement."""
        chosen = self.ack == ack
        return int((self.last[chosen] - self.first[chosen] + 1).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """What became of a delivery.

    ``lost``: the job died with a worker and Spark would not repeat it; nothing is known, so
    **everything** that was acquired is to be released with the error WORKER_LOST.
    ``staged_outputs``: what ``stage_output`` returned, per task.
    """

    partitions: Mapping[TopicPartition, PartitionAcks] = field(default_factory=dict)
    lost: bool = False
    staged_outputs: tuple[str, ...] = ()

    @property
    def accepted(self) -> int:
        """Records accepted."""
        return self._count(Ack.ACCEPT)

    @property
    def released(self) -> int:
        """Records released."""
        return self._count(Ack.RELEASE)

    @property
    def rejected(self) -> int:
        """Records rejected."""
        return self._count(Ack.REJECT)

    def _count(self, ack: Ack) -> int:
        return sum(acks.count(ack) for acks in self.partitions.values())


Settle = Callable[[TopicPartition, Runs], Runs]
"""Makes the answers out of all runs of one topic-partition, sorted by offset. Raises
HandlerError."""


def decoded(table: pa.Table, settle: Settle) -> DeliveryResult:
    """The result in what the workers sent (RUN_SCHEMA, in any order).

    Raises HandlerError (the contract was broken) and ShareError (a worker's own fault, a record
    read twice).
    """
    special, acks = _parted(table)
    _raise_faults(special)
    names, topic_ids = _encoded(acks.column("topic"))
    texts, error_ids = _encoded(acks.column("error"))
    partitions = {}
    for runs in _per_partition(_runs(acks, topic_ids, error_ids).ordered()):
        key = TopicPartition(names[runs.topic[0]], int(runs.partition[0]))
        partitions[key] = _acks(settle(key, runs), texts)
    staged = tuple(text for code, text in special if code == STAGED)
    return DeliveryResult(partitions=partitions, staged_outputs=staged)


def read_once(key: TopicPartition, runs: Runs) -> Runs:
    """Settles the answers of workers, which answer each record they read once. Raises ShareError if
    one was read twice."""
    runs = runs.joined()
    if (offset := runs.first_overlap()) is not None:
        raise ShareError(f"record {key}@{offset} was read twice in one delivery")
    return runs


def _parted(table: pa.Table) -> tuple[list[tuple[int, str]], pa.Table]:
    """(code and text of the rows of other kinds, acknowledgements and records that exist)."""
    is_special = table.column("ack").to_numpy() < PRESENT
    if not is_special.any():
        return [], table
    special = table.filter(pa.array(is_special)).select(["ack", "error"]).to_pylist()
    told = [(row["ack"], row["error"]) for row in special]
    return told, table.filter(pa.array(~is_special))


def _raise_faults(special: list[tuple[int, str]]) -> None:
    """The first of what was told, a broken contract before a fault of ours."""
    for code, error in ((VIOLATION, HandlerError), (FAULT, ShareError)):
        for text in (text for told, text in special if told == code):
            raise error(" ".join(text.split()))


def _encoded(column: Any) -> tuple[list[str], npt.NDArray[Any]]:
    """The different texts of a column, and the number of each row's; -1 where it is null."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy()


def _runs(acks: pa.Table, topic_ids: Ints, error_ids: Ints) -> Runs:
    return Runs(
        topic=topic_ids,
        partition=acks.column("partition").to_numpy(),
        first=acks.column("first_offset").to_numpy(),
        last=acks.column("last_offset").to_numpy(),
        code=acks.column("ack").to_numpy(),
        error=error_ids,
    )


def _per_partition(runs: Runs) -> Iterator[Runs]:
    """Sorted runs, topic-partition by topic-partition."""
    if not len(runs.first):
        return
    new = (runs.topic[1:] != runs.topic[:-1]) | (runs.partition[1:] != runs.partition[:-1])
    bounds = [0, *(np.flatnonzero(new) + 1).tolist(), len(runs.first)]
    for start, end in itertools.pairwise(bounds):
        yield runs.picked(slice(start, end))


def _acks(runs: Runs, texts: list[str]) -> PartitionAcks:
    noted = runs.picked(runs.error >= 0)
    rows = zip(noted.first.tolist(), noted.last.tolist(), noted.error.tolist(), strict=True)
    errors = tuple(ErrorRun(first, last, texts[error]) for first, last, error in rows)
    return PartitionAcks(first=runs.first, last=runs.last, ack=runs.code, errors=errors)
