"""The input of tasks from files of records that workers have kept (``kept_rows``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.engine.acquired_positions import AcquiredPositions
from share_spark.engine.ranges import AcquiredRanges, Offsets
from share_spark.engine.record_reader import in_schema
from share_spark.model.ids import TopicPartition

Wanted = Mapping[TopicPartition, tuple[Offsets, npt.NDArray[np.int32]]]
"""Ascending offsets by topic-partition, each with a number that is not 0."""


class KeptPart(NamedTuple):
    """Records of some kept files. ``topic``: of all records of the files, None if they have a column of that name.
    ``wanted``: with their delivery counts."""

    files: tuple[str, ...]
    topic: str | None
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInput:
    """The input of the first ``tasks`` tasks of a delivery from files, each its share of the records. ``in_order``: of
    their offsets. ``most_rows``: of a batch."""

    parts: tuple[KeptPart, ...]
    tasks: int
    most_rows: int
    in_order: bool = False

    def of(self, places: Collection[TopicPartition]) -> KeptInput | None:
        """Return the input for these topic-partitions; None if there are no records."""
        wanted = [{at: found for at, found in part.wanted.items() if at in places} for part in self.parts]
        parts = tuple(part._replace(wanted=some) for part, some in zip(self.parts, wanted, strict=True) if some)
        return replace(self, parts=parts) if parts else None

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task, in ``schema``; columns that are not in the files are null."""
        found = self._stored(task, schema) if task < self.tasks else iter(())
        for batch in _in_order(found) if self.in_order else found:
            for begin in range(0, batch.num_rows, self.most_rows):
                yield batch.slice(begin, self.most_rows)

    def _stored(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            for batch in (batch for file in part.files for batch in batches_in(file)):
                rows, counts = rows_of(batch, part, task, self.tasks)
                if len(rows):
                    taken = batch.take(rows).append_column("delivery_count", pa.array(counts))
                    yield in_schema(taken, part.topic, schema)


def _in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of several deliveries, which may lie between each other, in offset order."""
    found = list(batches)
    if found:
        yield from pa.Table.from_batches(found).sort_by("offset").combine_chunks().to_batches()


def batches_in(file: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches as they were written."""
    with pa.OSFile(file, "rb") as source:  # a shared file system need not have mapped memory
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def rows_of(
    batch: pa.RecordBatch, part: KeptPart, task: int = 0, tasks: int = 1
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """Return every ``tasks``-th of the wanted records, with their numbers. The choice depends on the files and
    ``wanted`` alone, so that a repeat of the task finds the same records."""
    offsets, partitions = batch.column("offset").to_numpy(), batch.column("partition").to_numpy()
    found = np.zeros(batch.num_rows, np.int32)
    for topic, rows in _rows_by_topic(batch, part.topic):
        wanted = {at.partition: some for at, some in part.wanted.items() if at.topic == topic}
        if wanted:
            found[rows] = _numbers_of(wanted, partitions[rows], offsets[rows])
    rows = np.flatnonzero(found)[task::tasks]
    return rows, found[rows]


def _numbers_of(
    wanted: Mapping[int, tuple[Offsets, npt.NDArray[np.int32]]], partitions: npt.NDArray[np.int32], offsets: Offsets
) -> npt.NDArray[np.int32]:
    """Return the number of each offset, 0 if it is not ``wanted``, which is by partition. One look-up for all."""
    names = np.array(sorted(wanted))
    each = [wanted[name] for name in names.tolist()]
    first, last = np.array([(some[0], some[-1]) for some, _ in each]).T
    laid, numbers = (np.concatenate(columns) for columns in zip(*each, strict=True))
    section = np.repeat(np.arange(len(each)), [len(some) for some, _ in each])
    positions = AcquiredPositions.of(first, last, AcquiredRanges(np.column_stack([laid, laid, numbers])), section)
    at = np.minimum(np.searchsorted(names, partitions), len(names) - 1)
    return np.where(names[at] == partitions, positions.delivery_counts(offsets, at), 0)


def _rows_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield (topic, rows). ``topic``: all rows are of this one."""
    if topic is not None:
        yield topic, np.arange(batch.num_rows)
        return
    names: Any = batch.column("topic").dictionary_encode()
    numbers = names.indices.to_numpy(zero_copy_only=False)
    for number, name in enumerate(names.dictionary.to_pylist()):
        yield name, np.flatnonzero(numbers == number)
