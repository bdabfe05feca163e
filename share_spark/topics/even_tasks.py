"""Records spread evenly over tasks, each task with a contiguous stretch of offsets.

A few hundred records are in one small file, and Spark would give them to one task, however slow the handler. Spread by
a hash they would come out uneven and in single offsets, so that a task that is lost would affect every second record.
Here the spans are laid end to end and cut into stretches of equal length, one for each task. 3 spans with 12 offsets
for 4 tasks:

    span        |------ orders-0 ------|- orders-1 --|--- orders-2 ----|
    offset        10  11  12   13  14     70    71  72     5    6   7   8
    position       0   1   2    3   4      5     6   7     8    9  10  11
    task           0   0   0 |  1   1      1  |  2   2     2 |  3   3   3
    cuts                       orders-0@13   orders-1@71   orders-2@6

A record's task is that of the last cut at or before it. Spark decides by itself where a shuffle key goes (hash(key)
modulo tasks), so for each task a key is searched that Spark's hash sends there (``keys_of_tasks``), and the records of
the task get that key.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from share_spark.engine.ports import OffsetSpan
from share_spark.engine.spans import records_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEED = 42
"""The seed of Spark's hash partitioning."""

_MASK = 0xFFFFFFFF


def spread(rows: DataFrame, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
    """``rows`` (topic, partition, offset, …) in ``tasks`` tasks; ``spans`` ascending, not empty."""
    tasks = max(1, min(tasks, records_in(spans)))
    if tasks == 1:
        return rows.coalesce(1)
    keys = keys_of_tasks(tasks)
    # Built from the last cut to the first, so that the outermost WHEN is the lowest cut, and is tested first.
    key: Column = F.lit(keys[-1])
    place = F.struct("topic", "partition", "offset")
    for task, cut in reversed(list(enumerate(cuts(spans, tasks)))):
        before = F.struct(F.lit(cut.topic), F.lit(cut.partition), F.lit(cut.offset).cast("bigint"))
        key = F.when(place < before, F.lit(keys[task])).otherwise(key)
    return rows.repartition(tasks, key.cast("int"))


class Cut(NamedTuple):
    """The first record of a task."""

    topic: str
    partition: int
    offset: int


def cuts(spans: Sequence[OffsetSpan], tasks: int) -> list[Cut]:
    """The first record of every task but the first."""
    total = records_in(spans)
    result: list[Cut] = []
    passed = 0
    for span in spans:
        size = records_in([span])
        while len(result) < tasks - 1:
            target = total * (len(result) + 1) // tasks
            if target >= passed + size:
                break
            result.append(Cut(span.topic, span.partition, span.first_offset + target - passed))
        passed += size
    return result


def keys_of_tasks(tasks: int) -> list[int]:
    """For each task an integer that Spark's hash partitioning sends to it."""
    keys: dict[int, int] = {}
    for value in count():
        keys.setdefault(murmur3(value) % tasks, value)
        if len(keys) == tasks:
            return [keys[task] for task in range(tasks)]
    raise AssertionError("unreachable")


def murmur3(value: int) -> int:
    """Spark's ``hash`` of one int: Murmur3, 32 bits, signed."""
    mixed = _rotate((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state = (_rotate(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
