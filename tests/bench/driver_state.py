"""What the live state takes on the driver: memory for share-partitions and their ranges, and how many of them one core
decides in a second. Each share-partition acquires what was released in its window.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from share_spark.engine.step import PartitionInput
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.partition import PartitionLimits, SharePartition
from share_spark.partition.columns import in_best_form
from share_spark.state.live_state import LiveState, StepTerms
from tests.bench.harness import Measure, report

SIZES = ((100_000, 2), (100_000, 10), (10_000, 1_000))
"""Share-partitions, and ranges in the window of each."""

STRIDE = 10
MOST_DECIDED = 2_000
TERMS = StepTerms(
    group_id="group",
    limits=PartitionLimits(max_record_locks=2**40),
    member_id="member",
    now_ms=1_000,
    snapshot_all=False,
)


def run(_spark: object, _bootstrap: str) -> bool:
    """Memory is what a process has more afterwards, seconds are of processor time. Each size has a process of its own:
    one that has given back memory would take that again."""
    new_process = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, new_process, max_tasks_per_child=1) as processes:
        measures = [one for found in processes.map(_measured, SIZES) for one in found]
    return report("driver-state", "What the state takes on the driver", measures)


def _measured(size: tuple[int, int]) -> list[Measure]:
    share_partitions, ranges = size
    before = _resident_bytes()
    live = LiveState(states=_states(share_partitions, ranges))
    each = (_resident_bytes() - before) / share_partitions
    name = f"{share_partitions:,} share-partitions of {ranges:,} ranges:"
    return [
        _measure(f"{name} bytes for each", each),
        _measure(f"{name} decided in a second", MOST_DECIDED / _decision_s(live, ranges)),
    ]


def _measure(name: str, value: float) -> Measure:
    return Measure(measure=name, ours=round(value), peer=None, ratio=None, goal=None, met=None)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _states(share_partitions: int, ranges: int) -> dict[SharePartitionKey, tuple[str, SharePartition]]:
    """Every other range is released, the others are accepted. Each window has objects of its own."""
    window = pickle.dumps(in_best_form(tuple(_range(number) for number in range(ranges))), protocol=5)
    keys = [SharePartitionKey("group", "topic-id", number) for number in range(share_partitions)]
    return {
        key: (
            "topic",
            SharePartition(
                key=key,
                snapshot_epoch=0,
                state_epoch=0,
                leader_epoch=0,
                start_offset=0,
                in_flight=pickle.loads(window),
            ),
        )
        for key in keys
    }


def _range(number: int) -> InFlightBatch:
    state = DeliveryState.ACKNOWLEDGED if number % 2 else DeliveryState.AVAILABLE
    return InFlightBatch(number * STRIDE, number * STRIDE + STRIDE - 1, state, 1)


def _decision_s(live: LiveState, ranges: int) -> float:
    records = ranges * STRIDE
    chosen = list(live.states)[:MOST_DECIDED]
    began = time.process_time()
    live.advance({key: PartitionInput("topic", 0, records, 0, max_records=records) for key in chosen}, TERMS)
    return time.process_time() - began
