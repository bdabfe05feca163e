"""A compaction in the play: it claims the group and writes a snapshot of it, as the scheduled one does where it takes
the group for idle. It takes any group for idle here: no promise rests on that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from share_spark.engine.step import PartitionInput
from share_spark.maintenance.idle_groups import snapshot_idle
from share_spark.model.errors import SinkError
from share_spark.model.ids import SharePartitionKey
from tests.simulation.checks import check_state
from tests.simulation.engine import SimulatedEngine
from tests.twins.memory_output import InMemoryLeftBehind

if TYPE_CHECKING:
    from tests.simulation.play import SimulatedWorld

_OFTEN = 0.3
"""How often it sleeps between two of its steps, where an engine that it takes for dead may wake up."""


class SimulatedCompaction(SimulatedEngine):
    """A process that claims the group once, and decides nothing."""

    def __init__(self, world: SimulatedWorld, run_id: str, *, batch_id: int) -> None:
        super().__init__(world, run_id, available_now=False, batch_id=batch_id, skew_ms=0)

    def _live(self) -> None:
        left = InMemoryLeftBehind(self.world.output, self.world.letters, hook=self._left_hook)
        size = snapshot_idle(self.store, left, self.batch_id)
        self.note("leaves the group alone" if size is None else f"has written {size} snapshots")
        if size is not None:
            check_state(self)

    def decides(self, now_ms: int, partition_inputs: Mapping[SharePartitionKey, PartitionInput]) -> None:
        """Nothing, at the time of the last micro-batch that counts."""
        self.now_ms = now_ms
        super().decides(now_ms, partition_inputs)

    def _left_hook(self, moment: str) -> None:
        self.give_way(moment, _OFTEN)
        self.point(moment, SinkError)
