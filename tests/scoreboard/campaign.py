"""Kills: a system is started, killed while it works, and started again; in the end it may finish."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench.harness import say
from tests.scoreboard.judge import Score, judge
from tests.scoreboard.programs.surroundings import PLACE, SERVICE, SOURCE
from tests.scoreboard.service import CountingService, counting_service
from tests.scoreboard.systems import Contestant, System, numbers_in

ROOT = Path(__file__).parents[2]

BURST = 300
"""Records for each life of the system: some two seconds of work."""

LIFE_S = (0.1, 2.0)
"""A kill comes so long after the first call of a life."""

QUIET_S = 30.0
"""A system has finished after so long without a call: longer than any lock, and than a start."""

START_S, FINISH_S = 120.0, 3_600.0


def play(contestant: Contestant, place: Path, *, kills: int, seed: int, quiet_s: float = QUIET_S) -> Score:
    """Kill it so many times, let it finish, and judge. Raises RuntimeError if it ends by itself, or never."""
    rng = random.Random(seed)
    with counting_service() as service, contestant.open(place) as system:
        for kill in range(kills):
            system.feed(_burst(kill))
            with _started(system, service, place) as living:
                _wait(START_S, living, _called_since(service, time.monotonic()))
                time.sleep(rng.uniform(*LIFE_S))
            say(f"  {contestant.name}: kill {kill + 1}/{kills}, {len(service.arrivals):,} calls until now")
        system.feed(_burst(kills))
        with _started(system, service, place) as living:
            _wait(FINISH_S, living, _quiet(service, quiet_s))
    return judge((kills + 1) * BURST, service.calls, numbers_in(place / "rows"), numbers_in(place / "letters"))


def _burst(life: int) -> range:
    return range(life * BURST, (life + 1) * BURST)


@contextmanager
def _started(system: System, service: CountingService, place: Path) -> Iterator[Callable[[], None]]:
    """Start the programs, and kill them at the end of the block. Yields what raises if one of them has ended."""
    mark = {PLACE: str(place), SERVICE: str(service.port), SOURCE: system.source}
    environment = {**os.environ, **mark, "PYTHONPATH": str(ROOT)}
    log = (place / "programs.log").open("ab")
    started = [
        subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log) for command in system.commands
    ]

    def check() -> None:
        for process in started:
            if (code := process.poll()) is not None:
                said = (place / "programs.log").read_text(errors="replace")
                raise RuntimeError(f"{process.args!r} has ended with {code}: {said[-2_000:]}")

    try:
        yield check
    finally:
        _kill_all(f"{PLACE}={place}".encode(), service)
        for process in started:
            process.wait()
        log.close()


def _kill_all(mark: bytes, service: CountingService) -> None:
    """Kill each process that has this in its environment, as when a container ends: programs, their JVMs, workers."""
    while found := [process for process in Path("/proc").glob("[0-9]*") if mark in _environment(process)]:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        service.callers_died()
        time.sleep(0.02)


def _environment(process: Path) -> list[bytes]:
    """Return the variables; none of a process that is gone, or not ours."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _called_since(service: CountingService, moment: float) -> Callable[[], bool]:
    return lambda: service.last_call > moment


def _quiet(service: CountingService, quiet_s: float) -> Callable[[], bool]:
    """A system that has just been started may take some time until its first call."""
    began = time.monotonic()

    def is_quiet() -> bool:
        last = service.last_call if service.last_call > began else began + QUIET_S
        return time.monotonic() > last + quiet_s

    return is_quiet


def _wait(seconds: float, check: Callable[[], None], is_over: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not is_over():
        check()
        if time.monotonic() > until:
            raise RuntimeError(f"not over after {seconds} s")
        time.sleep(0.005)
