"""Acquired records that workers read from the topic log themselves, each task its share of the offsets.

Spark would plan a scan, shuffle the records over the tasks, sort them and send them to Python: for a micro-batch of
some ten thousand records that takes several times as long as reading them. Here the acquired ranges are laid end to end
and cut into one equal piece for each task:

    acquired    orders-0 [0 ............ 9]   orders-1 [4] [7 ... 9]      14 offsets, 2 tasks
    task 0               [0 ...... 6]
    task 1                          [7 . 9]            [4] [7 ... 9]
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import DELIVERY_COUNT, FIRST, LAST, AcquiredRanges, Ranges
from share_spark.engine.record_reader import RecordPart, RecordReader, never_stops


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderInput:
    """A TaskInput. ``parts``: the RecordPart of each task, pickled, as a task opens its own only; they may hold
    secrets. ``most_rows``: of a batch. ``is_stopping``: ends all waiting."""

    parts: tuple[bytes, ...] = field(repr=False)
    most_rows: int
    is_stopping: Callable[[], bool] = never_stops

    @classmethod
    def of(
        cls,
        reader: RecordReader,
        acquired: Sequence[AcquiredSpan],
        *,
        tasks: int,
        most_rows: int,
        is_stopping: Callable[[], bool] = never_stops,
    ) -> ReaderInput:
        """Give each task an equal part."""
        parts = (reader.part(some) for some in in_equal_parts(acquired, tasks))
        pickled = tuple(pickle.dumps(part, protocol=5) for part in parts)
        return cls(parts=pickled, most_rows=most_rows, is_stopping=is_stopping)

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See ``TaskInput``. Raises as ``RecordPart.batches``."""
        if task < len(self.parts):
            part: RecordPart = pickle.loads(self.parts[task])
            yield from part.batches(schema, self.most_rows, self.is_stopping)


def in_equal_parts(acquired: Iterable[AcquiredSpan], parts: int) -> list[list[AcquiredSpan]]:
    """Cut the ranges, ascending, into parts with equal numbers of offsets; one part may have fewer."""
    return in_parts(acquired, [1] * parts)


def in_parts(acquired: Iterable[AcquiredSpan], weights: Sequence[int]) -> list[list[AcquiredSpan]]:
    """Cut the ranges, ascending, into parts whose numbers of offsets are as the ``weights``, of which one is not 0."""
    by_place = sorted(acquired, key=attrgetter("partition"))
    of = np.repeat(np.arange(len(by_place)), [len(one.ranges) for one in by_place])
    laid = np.concatenate([one.ranges for one in by_place])
    laid = laid[np.lexsort((laid[:, FIRST], of))]
    total = int((laid[:, LAST] - laid[:, FIRST] + 1).sum())
    so_far = [0, *itertools.accumulate(weights)]
    bounds = [total * weight // so_far[-1] for weight in so_far]
    cut = (_between(laid, low, high) for low, high in itertools.pairwise(bounds))
    return [_spans(by_place, ranges[is_left], of[is_left]) for ranges, is_left in cut]


def _between(ranges: Ranges, low: int, high: int) -> tuple[Ranges, npt.NDArray[np.bool_]]:
    """Cut out the offsets of ``ranges``, counted from 0, from ``low`` to before ``high``. Also return which ranges have
    any of these offsets.

    ranges      [10 ... 14]  [20]  [30 ... 34]         low 3, high 8
    counted       0 ...  4     5     6 ... 10
    returned       [13  14]  [20]  [30  31]
    """
    sizes = ranges[:, LAST] - ranges[:, FIRST] + 1
    begins = np.cumsum(sizes) - sizes
    first = ranges[:, FIRST] + np.clip(low - begins, 0, sizes)
    last = ranges[:, FIRST] + np.clip(high - begins, 0, sizes) - 1
    return np.column_stack([first, last, ranges[:, DELIVERY_COUNT]]), first <= last


def _spans(places: Sequence[AcquiredSpan], ranges: Ranges, of: npt.NDArray[np.intp]) -> list[AcquiredSpan]:
    """Return ``ranges`` by place."""
    if not len(of):
        return []
    begins = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist()]
    ends = [*begins[1:], len(of)]
    return [
        AcquiredSpan(places[at].partition, AcquiredRanges(ranges[begin:end]))
        for at, begin, end in zip(of[begins].tolist(), begins, ends, strict=True)
    ]
