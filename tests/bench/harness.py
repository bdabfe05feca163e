"""Run things in turn, take medians, print a table, write ``build/bench/NAME.json``."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path("build/bench")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of a benchmark. ``ratio`` is ours against the peer, in the direction of ``goal`` (``>= 0.8``)."""

    measure: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str | None
    met: bool | None


def compare(measure: str, ours: float, peer: float, goal: str | None = None) -> Measure:
    """``ours / peer`` against a goal such as ``>= 0.8`` or ``<= 2``; no goal: for information."""
    ratio = ours / peer
    return Measure(
        measure=measure,
        ours=round(ours, 4),
        peer=round(peer, 4),
        ratio=round(ratio, 3),
        goal=goal,
        met=is_met(ratio, goal),
    )


def is_met(ratio: float, goal: str | None) -> bool | None:
    """Does the ratio reach the goal? None without a goal."""
    if goal is None:
        return None
    sign, bound = goal.split()
    return ratio >= float(bound) if sign == ">=" else ratio <= float(bound)


def seconds_in_turn(runs: Mapping[str, Callable[[], float | None]], rounds: int) -> dict[str, float]:
    """Median seconds of each, run in turn ``rounds`` times: a drift of the machine meets all of them. A run may return
    the seconds it counted itself."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            counted = run()
            times[name].append(counted if counted is not None else time.perf_counter() - started)
            say(f"  round {number + 1}/{rounds} {name}: {times[name][-1]:.2f} s")
    return {name: statistics.median(found) for name, found in times.items()}


def report(name: str, title: str, measures: Sequence[Measure], notes: Sequence[str] = ()) -> bool:
    """Print the table, write the file; is every goal met?"""
    say(f"\n{title}")
    say(f"  {'measure':<58} {'ours':>12} {'peer':>12} {'ratio':>7}  goal")
    for line in measures:
        peer = "" if line.peer is None else f"{line.peer:,.3f}"
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        verdict = "" if line.goal is None else f"{line.goal} {'met' if line.met else 'MISSED'}"
        say(f"  {line.measure:<58} {line.ours:>12,.3f} {peer:>12} {ratio:>7}  {verdict}")
    for note in notes:
        say(f"  {note}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps([asdict(line) for line in measures], indent=1) + "\n")
    return all(line.met is not False for line in measures)


def processor_s(process: int) -> float:
    """The processor time that a process has used until now."""
    return sum(int(ticks) for ticks in map(_stat(process).__getitem__, _TICKS)) / os.sysconf("SC_CLK_TCK")


def parent_of(process: int) -> int:
    """The process that began it."""
    return int(_stat(process)[_PARENT])


_PARENT, _TICKS = 1, (11, 12)
"""Places in /proc/<pid>/stat, behind the name: the parent, and the ticks of the processor (user, system)."""


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def say(text: str) -> None:
    """Progress and results, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
