"""What a share-partition of many scattered ranges costs in a micro-batch: step by step, in one process without Spark.

Of a window of ``STRIDE`` offsets a range, one offset in ``STRIDE`` is released and acquired again, as by a handler that
releases 5 % of its records:

    scatter       one range is acknowledged: a release, 19 accepted, a release, 19 accepted, ...
    acquire       the released offsets are acquired again, so every other range of the window is a single offset
    acknowledge   these singles are accepted and released in turn
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from share_spark.engine.step import PartitionInput, StepResult, front_of, step, with_snapshot
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import AcknowledgeType, AnsweredRange
from share_spark.partition import PartitionLimits
from share_spark.state.fold import fold_rows
from share_spark.state.record_rows import record_array
from tests.bench.harness import Measure, report
from tests.support.answers import answered

Value = TypeVar("Value")

SIZES = (1, 2, 5, 10, 20, 50, 100, 1_000, 25_000, 1_000_000)
STRIDE = 20
KEY = SharePartitionKey("group", "topic-id", 0)
GOAL_SECONDS = 0.3
"""One acknowledgement of a million scattered ranges."""


def run(_spark: object, _bootstrap: str) -> bool:
    """Seconds of processor time, the least of some rounds: nothing here waits."""
    measures = []
    for size in SIZES:
        for name, seconds in _least_of(size).items():
            is_goal = size == SIZES[-1] and name == "acknowledge"
            measures.append(
                Measure(
                    measure=f"{size:,} ranges: {name}, ms",
                    ours=round(seconds * 1e3, 4),
                    peer=None,
                    ratio=None,
                    goal=f"<= {GOAL_SECONDS * 1e3:.0f}" if is_goal else None,
                    met=seconds <= GOAL_SECONDS if is_goal else None,
                )
            )
    return report("window", "What a window of scattered ranges costs", measures)


def _least_of(size: int) -> dict[str, float]:
    rounds = [_Window(size).live() for _ in range(max(2, min(300, 20_000 // size)))]
    return {name: min(found[name] for found in rounds) for name in rounds[0]}


@dataclass(slots=True)
class _Window:
    """A share-partition of ``size`` scattered ranges, and the seconds of each step of it."""

    size: int
    seconds: dict[str, float] = field(default_factory=dict)

    def live(self) -> dict[str, float]:
        """One round of all steps."""
        records = self.size * STRIDE
        state = step_once(None, 0, max_records=records).state
        state = self._timed("scatter", lambda: step_once(state, records, acknowledged=_scattered(self.size))).state
        state = self._timed("acquire", lambda: step_once(state, records, max_records=records)).state
        singles = np.arange(self.size) * STRIDE
        kinds = np.where(np.arange(self.size) % 2, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE)
        acknowledged = answered(np.column_stack([singles, singles, kinds]))
        found = self._timed("acknowledge", lambda: step_once(state, records, acknowledged=acknowledged))
        self._timed("summary", lambda: front_of("topic", found.state))
        pickled = self._timed("pickle", lambda: pickle.dumps(found.state, protocol=5))
        self._timed("unpickle", lambda: pickle.loads(pickled))
        snapshot = with_snapshot(state)[1]
        rows = self._timed("log rows", lambda: record_array([("topic", snapshot), ("topic", found.record)]))
        table = pa.Table.from_arrays([*rows.flatten(), pa.array([0, 1])], names=[*rows.type.names, "batch_id"])
        self._timed("fold", lambda: fold_rows(table, KEY.group_id))
        return self.seconds

    def _timed(self, name: str, once: Callable[[], Value]) -> Value:
        began = time.process_time()
        value = once()
        self.seconds[name] = time.process_time() - began
        return value


def step_once(
    state: object, records: int, *, acknowledged: Sequence[AnsweredRange] = (), max_records: int = 0
) -> StepResult:
    """One micro-batch of the share-partition."""
    wanted = PartitionInput(
        "topic", 0, max(records, max_records), 0, acknowledged=acknowledged, max_records=max_records
    )
    limits = PartitionLimits(max_record_locks=2**40)
    return step(KEY, state, wanted, limits=limits, member_id="member", now_ms=1_000)


def _scattered(size: int) -> Sequence[AnsweredRange]:
    """One offset in ``STRIDE`` is released, the others are accepted."""
    first = np.arange(size) * STRIDE
    released = np.column_stack([first, first, np.full(size, AcknowledgeType.RELEASE)])
    accepted = np.column_stack([first + 1, first + STRIDE - 1, np.full(size, AcknowledgeType.ACCEPT)])
    return answered(np.stack([released, accepted], axis=1).reshape(-1, 3))
