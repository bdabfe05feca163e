"""Workers that outlive their engine: they go on with its last delivery, until the next engine stops them.

They have no driver: nobody repeats a task whose worker dies, and answers count if they are in the ledger.

Idealized: the next engine waits for the calls that run, however long they take. And the workers of an engine that lives
go on only when it does, and begin no call once another one has claimed the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.facts import At

if TYPE_CHECKING:
    from tests.simulation.delivery import Run, Task
    from tests.simulation.play import SimulatedWorld

_DIES_BEFORE = 0.2
"""How often an engine dies during a delivery for no other reason, if its workers always outlive it."""

_GOES_ON = 0.6
"""How often one of them takes another step before the stop sign is there."""


@dataclass(slots=True)
class Orphans:
    """The workers of one delivery go on without their engine. ``tasks``: those that have not come to their end."""

    run: Run
    tasks: list[Task]

    def step(self) -> None:
        """One of them goes on."""
        task = self.run.of.world.rng.choice(self.tasks)
        if not self.run.goes_on_alone(task):
            self.tasks = [one for one in self.tasks if one is not task]

    def stop(self) -> None:
        """Calls that run come to their end, and no more begin."""
        self.run.of.note("its workers are stopped")
        self.run.is_stopped = True
        self.end_calls()

    def end_calls(self) -> None:
        """Every task goes on until it has come to its end."""
        while self.tasks:
            self.step()

    def calls(self, one: At) -> bool:
        """Is a handler entered with this record?"""
        return any(one == entered for task in self.tasks for entered, _ in task.in_handler)


def dies_before_workers(world: SimulatedWorld, rare: int) -> bool:
    """Is the engine killed here, so that its workers may outlive it? ``rare``: as in ``SimulatedWorld.interferes``."""
    rate = world.scenario.outlive_rate if world.scenario.death_rate and not world.is_calm else 0.0
    return rate > 0 and world.rng.random() * rare < rate * _DIES_BEFORE


def leave_behind(run: Run) -> None:
    """The engine of ``run`` dies, and perhaps its workers do not. Idealized: they do if their ledger is lost, or if the
    next engine has read it while theirs slept."""
    world, member = run.of.world, run.of.store.member_id
    if not world.scenario.outlive_rate or world.rng.random() >= world.scenario.outlive_rate:
        return
    tasks = [task for task in run.tasks if not task.is_lost and not task.over]
    if tasks and member in world.files and member not in world.ledger.read:
        run.of.note("is outlived by workers:", len(tasks))
        run.loses_engine()
        world.orphans.append(Orphans(run, tasks))


def step_orphans(world: SimulatedWorld) -> None:
    """They go on while engines do something else."""
    orphans = world.rng.choice(world.orphans)
    for _ in range(world.rng.randint(1, 2)):
        if orphans.tasks:
            orphans.step()
    _drop_ended(world)


def stop_orphans(world: SimulatedWorld) -> None:
    """The next engine puts up its stop sign; it reads their ledgers only when all have seen it."""
    for orphans in world.orphans:
        while orphans.tasks and world.rng.random() < _GOES_ON:
            orphans.step()
        orphans.stop()
    _drop_ended(world)


def end_orphans(world: SimulatedWorld, members: set[str]) -> None:
    """Their machine is gone."""
    for orphans in world.orphans:
        if orphans.run.of.store.member_id in members:
            orphans.tasks.clear()


def _drop_ended(world: SimulatedWorld) -> None:
    world.orphans = [orphans for orphans in world.orphans if orphans.tasks]
