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
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from share_spark.engine.ports import OffsetSpan
from share_spark.engine.spans import records_in
from share_spark.spark.hash_partitioning import keys_of_tasks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
