"""The outside members of a play, and the gateways that they may ask: who is there, who goes on, who ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from share_spark.model.errors import FencedError
from share_spark.model.ids import TopicPartition
from tests.simulation.clients import SimulatedClient
from tests.simulation.gateway import SimulatedGateway, WrittenBatch
from tests.simulation.still_loop import StillLoop

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine
    from tests.simulation.play import SimulatedWorld

_TURNS = 4
"""Of the loop, in one turn of the play: what follows from a request takes several."""


class Crowd:
    """``gateways``: those that run, the newest last. ``batches``: of each log, as producers have written them."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.gateways: list[SimulatedGateway] = []
        self.clients: list[SimulatedClient] = []
        self.batches: dict[TopicPartition, list[WrittenBatch]] = {}
        self._all: list[SimulatedGateway] = []
        self._joined = 0

    @cached_property
    def loop(self) -> StillLoop:
        """Of all gateways; a play without outside members has none."""
        return StillLoop(lambda: self.world.time_ms)

    @property
    def is_there(self) -> bool:
        """The group has outside members."""
        return self.world.scenario.most_clients > 0

    # ---------------------------------------------------------------------------------------------------- gateways

    def begin_gateway(self) -> SimulatedGateway | None:
        """For a new engine."""
        if not self.is_there:
            return None
        found = SimulatedGateway(self.world, len(self._all))
        self.gateways.append(found)
        self._all.append(found)  # a dead one is kept: its tasks end with the loop
        return found

    def outlives(self, engine: SimulatedEngine) -> bool:
        """Its gateway ends with the process; else it may go on listening. Does it begin another engine?"""
        gateway, world = engine.gateway, self.world
        if gateway is None or gateway.is_gone:
            return False
        was_replaced = isinstance(engine.process.fault, FencedError)
        if engine.process.died or world.rng.random() < 0.3:
            gateway.die()
            return False
        return not was_replaced and not world.is_calm and world.rng.random() < 0.6

    def choices(self) -> list[tuple[float, Callable[[], None]]]:
        """What may happen in a turn of the play."""
        if not self.is_there:
            return []
        found: list[tuple[float, Callable[[], None]]] = [(15.0, self._turn)]
        if len(self.clients) < self.world.scenario.most_clients:
            found.append((1.0, self._join))
        if self.clients:
            found += [(30.0, self._step), (0.15, self._end_one)]
        idle = [one for one in self.gateways if not one.queue.is_open]
        if idle:
            found.append((0.2, self.world.rng.choice(idle).die))
        return found

    # ----------------------------------------------------------------------------------------------------- clients

    def calm_down(self) -> None:
        """Some end; whoever stays does as it should, and is enough where there are no handlers."""
        if not self.is_there:
            return
        for client in list(self.clients):
            if self.world.rng.random() < 0.5:
                self._end(client)
        if not self.clients:
            self._join()

    def go_on(self) -> None:
        """All go on for a while."""
        if self.is_there:
            for _ in range(3):
                for client in self.clients:
                    client.step()
                self._turn()

    def end(self) -> None:
        """Nothing is left of them."""
        if self.is_there:
            self.loop.end()

    def _turn(self) -> None:
        for _ in range(_TURNS):
            self.loop.turn()

    def _join(self) -> None:
        self._joined += 1
        self.clients.append(SimulatedClient(self.world, f"client{self._joined}"))

    def _step(self) -> None:
        """Mostly it hears something soon."""
        self.world.rng.choice(self.clients).step()
        if self.world.rng.random() < 0.5:
            self._turn()

    def _end_one(self) -> None:
        self._end(self.world.rng.choice(self.clients))

    def _end(self, client: SimulatedClient) -> None:
        self.clients.remove(client)
        client.end()

    # -------------------------------------------------------------------------------------------------------- logs

    def written(self, at: TopicPartition, first: int, last: int, *, is_control: bool = False) -> None:
        """A producer has written a batch."""
        self.batches.setdefault(at, []).append(WrittenBatch(first, last, is_control))

    def truncated(self, at: TopicPartition, end: int) -> None:
        """The log has lost what was at ``end`` and above."""
        kept = (batch for batch in self.batches.get(at, ()) if batch.first < end)
        self.batches[at] = [batch._replace(last=min(batch.last, end - 1)) for batch in kept]
