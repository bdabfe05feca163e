"""What must hold after each micro-batch, and at the end of an engine that works off what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.partition import check_invariants
from tests.simulation.facts import Cell, demand

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine


def check_state(engine: SimulatedEngine) -> None:
    """What a restart would load is what the ledger knows, and what the engine believes if it owns the group."""
    ledger, state = engine.world.ledger, engine.world.state_log.state(engine.store.group_id)
    for topic, partition in state.values():
        check_invariants(partition)
        window = ledger.windows[TopicPartition(topic, partition.key.partition)]
        cells = {o: Cell(*run[2:]) for run in partition.in_flight for o in range(run.first_offset, run.last_offset + 1)}
        demand(cells == window.cells, partition.key, "is", cells, "not", window.cells)
        demand(partition.start_offset == window.start, partition.key, "starts at", partition.start_offset)
    if engine.owns_group:
        demand(engine.store._live == state, engine.run_id, "believes", engine.store._live, "not", state)


def check_done(engine: SimulatedEngine) -> None:
    """An available-now run says that everything below its targets is finished, but for what is paused."""
    targets, topics = engine.engine._targets or {}, engine.world.topics
    names = {topics.describe(name).topic_id: name for name in engine.world.topic_names}
    for key, target in targets.items():
        if not engine.pauses.holds(names[key.topic_id], key.partition, engine.now_ms):
            _check_finished(engine, names, key, target)


def _check_finished(engine: SimulatedEngine, names: dict[str, str], key: SharePartitionKey, target: int) -> None:
    at = TopicPartition(names[key.topic_id], key.partition)
    window = engine.world.ledger.windows[at]
    demand(window.start >= target, at, "is not finished: SPSO", window.start, "target", target)
