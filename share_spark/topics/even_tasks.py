"""An even share of records for every task, in contiguous stretches of offsets.

A few hundred records lie in one small file, and Spark would give them to one task, however slow the
handler. Spread by a hash they would come out uneven and in single offsets, so that a task that is lost
would take every second record with it. Here the offsets are cut into stretches of equal length and
each is sent to a task of its own: the keys of the shuffle are chosen such that Spark's hash takes them
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    key: Column = F.lit(keys[-1])
    place = F.struct("topic", "partition", "offset")
    for task, cut in reversed(list(enumerate(cuts(spans, tasks)))):
        before = F.struct(F.lit(cut[0]), F.lit(cut[1]), F.lit(cut[2]).cast("bigint"))
        key = F.when(place < before, F.lit(keys[task])).otherwise(key)
    return rows.repartition(tasks, key.cast("int"))


def cuts(spans: Sequence[OffsetSpan], tasks: int) -> list[tuple[str, int, int]]:
    """The first (topic, partition, offset) of every task but the first."""
    total = records_in(spans)
    result: list[tuple[str, int, int]] = []
    passed = 0
    for span in spans:
        size = records_in([span])
        while len(result) < tasks - 1:
            target = total * (len(result) + 1) // tasks
            if target >= passed + size:
                break
            result.append((span.topic, span.partition, span.first_offset + target - passed))
        passed += size
    return result
