"""Engines that are paused while a successor claims their group, and two that start at once: exactly one goes on.

An engine is stopped with all its processes, another one does its work meanwhile, then it is woken: it must end by
itself and say why, and nothing that it still does may count.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.chaos.faults import IN_HANDLER, IN_OUTPUT, PAUSE, PUT, Fault
from tests.chaos.script import mixed
from tests.chaos.world import ChaosRun, Engine

pytestmark = pytest.mark.slow

FENCED = "FencedError: another engine has claimed"
FEW = 6
"""Records a micro-batch."""

PAUSES = [
    Fault("before the append", PAUSE, 2),
    Fault("after the append", PAUSE, 2),
    Fault(IN_HANDLER, PAUSE),
    Fault("after the output is journaled", PAUSE),
    Fault(IN_OUTPUT, PAUSE),
    Fault(PUT, PAUSE),
]


def is_fenced(engine: Engine) -> bool:
    return engine.end() == 1 and FENCED in engine.last_line


def commits(table: Path) -> int:
    return len(list((table / "_delta_log").glob("*.json")))


IN_TEST = ("after the append",)
"""The point that `make test` looks at; the others take as long and are left to `make chaos`."""


def left_to_chaos(fault: Fault) -> tuple[pytest.MarkDecorator, ...]:
    return () if fault.point in IN_TEST else (pytest.mark.long,)


@pytest.mark.parametrize("fault", [pytest.param(at, marks=left_to_chaos(at), id=str(at)) for at in PAUSES])
def test_a_zombie_ends_and_has_changed_nothing(world: ChaosRun, fault: Fault) -> None:
    """The successor works with a copy of the checkpoint, as of the moment when the zombie was paused."""
    world.produce(mixed(2 * FEW))
    zombie = world.start(fault, max_records=FEW, checkpoint=str(world.directory / "checkpoint"))
    zombie.wait_until_paused()
    copy = shutil.copytree(world.directory / "checkpoint", world.directory / "copied checkpoint")
    successor = world.run(max_records=FEW, checkpoint=str(copy))
    assert successor.end() == 0, successor.text
    before = world.shares(), world.outputs(), commits(world.directory / "out")
    calls, appends = world.calls(), commits(world.directory / "state" / "share_state_log")

    zombie.resume()

    assert is_fenced(zombie), zombie.text
    assert (world.shares(), world.outputs(), commits(world.directory / "out")) == before
    assert commits(world.directory / "state" / "share_state_log") == appends
    world.paused_in_handler = fault.point == IN_HANDLER
    if not world.paused_in_handler:
        assert world.calls() == calls
    assert world.faults() == []


@pytest.mark.long
def test_a_zombie_spoils_the_status_table_no_more(world: ChaosRun) -> None:
    """Its refresh sleeps, and with it all the rest, wherever that is."""
    world.produce(mixed(2 * FEW))
    zombie = world.start(Fault("before the state table", PAUSE), max_records=FEW)
    zombie.wait_until_paused()
    successor = world.run(max_records=FEW)
    assert successor.end() == 0, successor.text
    zombie.resume()
    assert is_fenced(zombie), zombie.text
    world.paused_in_handler = True
    assert world.faults() == []


@pytest.mark.long
def test_of_two_that_start_at_once_one_goes_on(world: ChaosRun) -> None:
    world.produce(mixed(2 * FEW))
    engines = [world.start(Fault("before the claim", PAUSE), max_records=FEW) for _ in range(2)]
    for engine in engines:
        engine.wait_until_paused()
    for engine in engines:
        engine.resume()
    ends, texts = [engine.end() for engine in engines], "\n".join(engine.text for engine in engines)
    assert sorted(ends) == [0, 1], texts
    assert sum(is_fenced(engine) for engine in engines) == 1, texts
    assert world.faults() == []
