"""State from log rows, record by record: a restart needs memory for the states and a few rows at a time, for a segment
of any length. Pure: Arrow in, states out, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_spark.coordinator.group import ShareGroup
from share_spark.model.ids import SharePartitionKey
from share_spark.partition import SharePartition, evolve
from share_spark.spark.python_worker import cycles_ignored
from share_spark.state.group_rows import group_after
from share_spark.state.record_rows import SHARE_KINDS, records_in

_RANGES_AT_ONCE = 50_000
"""The ranges of rows that are Python objects at a time, beside the states: some 200 bytes each."""

FoldedStates = dict[SharePartitionKey, tuple[str, SharePartition]]
"""(topic name, state) per share-partition."""


class LogState(NamedTuple):
    """All that the log of a group says. ``group``: its members and epochs, None if it never had a member."""

    partitions: FoldedStates
    group: ShareGroup | None = None


def fold_log(parts: Iterable[pa.Table], group_id: str) -> LogState:
    """Return the state after all rows of one segment, as in ``fold``."""
    group: ShareGroup | None = None

    def noted() -> Iterator[pa.Table]:
        nonlocal group
        for rows in parts:
            group = group_after(group, rows, group_id)
            yield rows

    partitions = fold(noted(), group_id)
    return LogState(partitions, group)


def fold(parts: Iterable[pa.Table], group_id: str) -> FoldedStates:
    """Return the states of the share-partitions after all rows of one segment (FOLDED_SCHEMA), which come in the order
    of their micro-batches (R74, R85)."""
    states: FoldedStates = {}
    with cycles_ignored():
        for rows in parts:
            for some in _portions(_of_partitions(rows)):
                for topic, record in records_in(some, group_id):
                    _, known = states.get(record.key, ("", None))
                    states[record.key] = topic, evolve(known, record)
    return states


def fold_rows(rows: pa.Table, group_id: str) -> FoldedStates:
    """Return the states after rows of one segment that come in any order."""
    return fold([rows.sort_by("batch_id")], group_id)


def _of_partitions(rows: pa.Table) -> pa.Table:
    """Return the rows that are about share-partitions: usually all of them, which are not copied then."""
    wanted: Any = pc.is_in(rows.column("kind"), value_set=pa.array(SHARE_KINDS))
    return rows if pc.all(wanted).as_py() else rows.filter(wanted)


def _portions(rows: pa.Table) -> Iterator[pa.Table]:
    """Cut rows into slices of at most ``_RANGES_AT_ONCE`` ranges, or of one row that has more. Rows are never cut: a
    slice ends before the row that would exceed the limit, here 50k.

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
