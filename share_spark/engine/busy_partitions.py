"""The share-partitions that a micro-batch has to look at: of ten thousand perhaps a hundred.

A share-partition rests while it is finished up to the end of its log. It becomes busy again when its log ends or its
state change, or when something is acknowledged in it. Time, and the mode of the engine, change nothing for it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from share_spark.engine.step import PartitionSummary
from share_spark.model.ids import LogEnds, SharePartitionKey
from share_spark.model.records import DeliveryState


@dataclass(slots=True)
class BusyPartitions:
    """The busy share-partitions of an engine. ``_ends``: the log ends at the last look."""

    _ends: Mapping[SharePartitionKey, LogEnds] = field(default_factory=dict)
    _resting: set[SharePartitionKey] = field(default_factory=set)

    def read(self, ends: Mapping[SharePartitionKey, LogEnds]) -> Mapping[SharePartitionKey, LogEnds]:
        """Note the log ends, and return those that have changed since the last look."""
        changed = changed_keys(self._ends, ends)
        self._resting.difference_update(changed)
        self._ends = ends
        return {key: ends[key] for key in changed}

    def decided(self, keys: Iterable[SharePartitionKey]) -> None:
        """Note that the state of these may have changed."""
        self._resting.difference_update(keys)

    def loaded(self) -> None:
        """Note that the state of any share-partition may have changed."""
        self._resting.clear()

    def ends(
        self,
        summaries: Mapping[SharePartitionKey, PartitionSummary],
        acknowledged: Collection[SharePartitionKey],
    ) -> Mapping[SharePartitionKey, LogEnds]:
        """Return the log ends, in their order, of the share-partitions that may have something to do."""
        self._resting.difference_update(acknowledged)
        busy = {key: end for key, end in self._ends.items() if key not in self._resting}
        resting = [
            key
            for key, end in busy.items()
            if key in summaries and key not in acknowledged and may_rest(summaries[key], end)
        ]
        for key in resting:
            del busy[key]
        self._resting.update(resting)
        return busy


def may_rest(summary: PartitionSummary, ends: LogEnds) -> bool:
    """Return whether everything is finished, whatever the time and the mode of the engine."""
    is_held = summary.next_deadline_ms is not None or summary.by_state[DeliveryState.ACQUIRED]
    waits = is_held or summary.available or summary.delayed or any(summary.suspected)
    if waits or summary.start_offset < ends.log_start_offset or summary.start_offset < 0:
        return False
    return ends.end_offset <= summary.end_offset <= ends.log_end and summary.lag(ends) == 0


def changed_keys(
    before: Mapping[SharePartitionKey, LogEnds], now: Mapping[SharePartitionKey, LogEnds]
) -> list[SharePartitionKey]:
    """Return the keys of ``now`` that had other log ends before, or none."""
    if before is now:
        return []
    if list(before) != list(now):
        return [key for key in now if before.get(key) != now[key]]
    # The frequent case for thousands of share-partitions, without a loop in Python.
    is_changed = map(operator.ne, before.values(), now.values())
    return [key for key, changed in zip(now, is_changed, strict=True) if changed]
