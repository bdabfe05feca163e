"""Acquired ranges, cut into parts of as many offsets each: for workers that read them without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from share_spark.engine.ports import AcquiredSpan
from share_spark.engine.ranges import DELIVERY_COUNT, FIRST, LAST, AcquiredRanges, Ranges


def in_equal_parts(acquired: Iterable[AcquiredSpan], parts: int) -> list[list[AcquiredSpan]]:
    """The ranges ascending, each part with as many offsets as the others, but for one."""
    by_place = sorted(acquired, key=attrgetter("partition"))
    of = np.repeat(np.arange(len(by_place)), [len(one.ranges) for one in by_place])
    laid = np.concatenate([one.ranges for one in by_place])
    laid = laid[np.lexsort((laid[:, FIRST], of))]
    total = int((laid[:, LAST] - laid[:, FIRST] + 1).sum())
    bounds = [total * part // parts for part in range(parts + 1)]
    cut = (_between(laid, low, high) for low, high in itertools.pairwise(bounds))
    return [_spans(by_place, ranges[is_left], of[is_left]) for ranges, is_left in cut]


def _between(ranges: Ranges, low: int, high: int) -> tuple[Ranges, npt.NDArray[np.bool_]]:
    """Of the offsets in ``ranges``, counted from 0: those from ``low`` to before ``high``; and in which ranges there
    are some.

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
    """``ranges`` by the place that each is of."""
    if not len(of):
        return []
    begins = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist()]
    ends = [*begins[1:], len(of)]
    return [
        AcquiredSpan(places[at].partition, AcquiredRanges(ranges[begin:end]))
        for at, begin, end in zip(of[begins].tolist(), begins, ends, strict=True)
    ]
