"""Engines that die, and those that come after them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.engine_world import ACCEPT, Death, EngineLife, InMemoryGroup, Interruption
from tests.twins.memory import Moment
from tests.twins.memory_delivery import Answer

LOCK_MS = 30_000


def runs(engine: EngineLife, times: int) -> None:
    for _ in range(times):
        engine.run()


def dies(engine: EngineLife) -> None:
    with pytest.raises(Death):
        engine.run()


def dies_in_second_commit(world: InMemoryGroup, moment: Moment) -> None:
    """A new engine runs one micro-batch, and dies where the next one appends its records."""
    engine = world.engine(interrupt=Interruption(moment, Death(), nth=2))
    engine.run()
    dies(engine)


def recovers(world: InMemoryGroup) -> None:
    """A new engine finishes everything, once the locks of the ended engines are over."""
    world.clock.advance(LOCK_MS)
    world.engine(available_now=True).run_until_done()


def killer(where: str) -> Callable[[str], None]:
    """A hook of a sink that takes the engine down at this moment."""

    def hook(moment: str) -> None:
        if moment == where:
            raise Death

    return hook


def killer_of(offset: int, times: int = 1) -> Callable[..., Answer]:
    """The handler of this record takes the engine down so often."""

    def handler(_topic: str, _partition: int, at: int, count: int) -> Answer:
        if at == offset and count <= times:
            raise Death
        return ACCEPT

    return handler
