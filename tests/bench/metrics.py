"""What metrics cost: the part of a micro-batch that they take, and a scrape, with 4 and with 10,000 share-partitions.

Processor time of this process, the least of some rounds. Of a micro-batch, metrics take the counting of each window
that changed, and the adding up. The micro-batch that the share is of: 10 records in each of 4
share-partitions (``fixed_cost``), and one in each of 10,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest

from share_spark.engine.progress import EngineLook, MicroBatchProgress
from share_spark.metrics.endpoint import GroupMetrics
from share_spark.partition import offsets_by_state
from tests.bench.harness import Measure, report
from tests.support.engine_world import GROUP, EngineLife, InMemoryGroup

MICRO_BATCH_S = 0.25
"""Of the smaller size, as ``fixed_cost`` measures it on Spark; the larger one is measured here, without Spark."""

SCRAPE_EVERY_S = 15.0
"""Prometheus' usual interval."""

MOST_SHARE = 0.03
ROUNDS = 20


def run(_spark: object, _bootstrap: str) -> bool:
    """Measure and report; are the goals met?"""
    measures = [*_measured(4, MICRO_BATCH_S), *_measured(10_000, None)]
    return report("metrics", "What metrics cost", measures)


def _measured(partitions: int, micro_batch_s: float | None) -> list[Measure]:
    life, progress, seconds = _life(partitions)
    micro_batch_s = micro_batch_s or seconds
    metrics = GroupMetrics(group_id=GROUP, clock=life.world.clock)
    metrics.look = life.engine.look
    registry = CollectorRegistry()
    registry.register(metrics)
    states = [state for _, state in life.world.state_log.state(GROUP).values()]
    note_s = _least(lambda: metrics.note(progress)) + _least(lambda: [offsets_by_state(state) for state in states])
    scrape_s = _least(lambda: generate_latest(registry))
    look: EngineLook = life.engine.look()
    assert len(look.ends) == partitions
    return [
        _line(f"{partitions:,} share-partitions: part of a micro-batch", note_s / micro_batch_s, MOST_SHARE),
        _line(f"{partitions:,} share-partitions: a scrape, part of the time", scrape_s / SCRAPE_EVERY_S, MOST_SHARE),
        _line(f"{partitions:,} share-partitions: a scrape, seconds", scrape_s, None),
    ]


def _life(partitions: int) -> tuple[EngineLife, MicroBatchProgress, float]:
    """An engine in a micro-batch that touches all share-partitions, what that did, and its seconds."""
    world = InMemoryGroup(partitions=partitions)
    for partition in range(partitions):
        world.produce(10, partition)
    life = world.engine()
    started = time.process_time()
    progress = life.run()
    seconds = time.process_time() - started
    return life, progress, seconds


def _least(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def _line(text: str, value: float, most: float | None) -> Measure:
    goal = None if most is None else f"<= {most}"
    met = None if most is None else value <= most
    return Measure(measure=text, ours=round(value, 6), peer=None, ratio=round(value, 6), goal=goal, met=met)
