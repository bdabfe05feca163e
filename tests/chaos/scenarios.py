"""Handlers that fail, and what must follow: each with its own topic and tables, checked to the end.

Poison is in one record, which does the same thing each time that a handler is entered with it: it alone is archived, at
the limit, with its true error. A handler that is broken as a whole charges no record, however often it is started
again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.broken import CALLS, NOT_ON_WORKERS, WRONG_LENGTH
from tests.chaos.faults import BOTH, CALLS_TAKEN, COMPANION, IN_HANDLER, WORKER, Fault
from tests.chaos.job import TIMEOUT_MS
from tests.chaos.judgement import by_record
from tests.chaos.script import (
    ACCEPT,
    ALWAYS_FAIL,
    KILL_DRIVER,
    KILL_EXECUTOR,
    KILL_WORKER,
    NO_PRICE,
    REJECT,
    SLEEP,
    STAY_IN_C,
    mixed,
)
from tests.chaos.world import ChaosRun
from tests.support.late_service import LateService, running_service

CLUSTER = "local-cluster[2,1,1024]"
LIMIT = 3
"""Deliveries of a record, where every one costs an engine or some seconds."""

PROCESSES, STARTS = 2, 10
"""A supervisor starts a broken job 20 times: so many processes, so many times in each."""

Scenario = Callable[[ChaosRun], list[str]]


def poison(world: ChaosRun, *, value: str, count: int = 200, crashes: int = 0, **order: Any) -> list[str]:
    """What is wrong after one record of ``value`` among ``count``: it must end that many engines."""
    world.limit = LIMIT
    world.produce([value if number == count // 3 else ACCEPT for number in range(count)])
    ended = world.supervise(restarts=crashes + 3, max_records=count, **order)
    wrong = [f"{ended} engines ended with a fault, not {crashes}"] if ended != crashes else []
    return [*wrong, *world.faults()]


def broken(world: ChaosRun, *, kind: str, processes: int = PROCESSES, starts: int = STARTS) -> list[str]:
    """What is wrong after a broken handler was started again and again, and then a sound one. The first engine is
    killed, so that some records have been delivered once, and others not at all."""
    world.limit = LIMIT
    world.produce(mixed(30))
    struck = world.run(Fault("after delivery")).struck
    wrong = [] if struck else ["the first engine was not killed"]
    before = {at: len(found) for at, found in by_record(world.calls()).items()}
    for _ in range(processes):
        engine = world.run(broken=kind, starts=starts)
        if not engine.last_line.startswith("HandlerError: handler "):
            wrong.append(f"the broken handler ended with {engine.end()}: {engine.last_line}")
    wrong += _charged(world, before)
    world.supervise(restarts=1)
    return [*wrong, *world.faults()]


def _charged(world: ChaosRun, before: Mapping[tuple[int, int], int]) -> Iterator[str]:
    """Has a broken handler moved a count, or finished a record? What the first engine has answered is finished by the
    next one, which takes its answers over."""
    for at, found in by_record(world.calls(CALLS)).items():
        if set(found) != {before.get(at, 0) + 1}:
            yield f"{at} was handled {before.get(at, 0)} times, and given to the broken handler with counts {found}"
    for share in world.shares():
        if share.acquired or any(_moved(share, before)):
            yield f"the broken handler has left partition {share.partition} as {share}"


def _moved(share: Any, before: Mapping[tuple[int, int], int]) -> Iterator[bool]:
    """Yield, for each offset, whether it is not as the calls ``before`` have left it: unfinished, with their count, or
    finished if there was one."""
    finished = [range(share.start_offset)]
    for run in share.in_flight:
        offsets = range(run.first_offset, run.last_offset + 1)
        if run.state != "Available":
            finished.append(offsets)
            continue
        yield from (before.get((share.partition, offset), 0) != run.delivery_count for offset in offsets)
    yield from ((share.partition, offset) not in before for offsets in finished for offset in offsets)


def waiting(
    world: ChaosRun, *, faults: Sequence[Fault], ordered: bool = False, once: bool = False, in_flight: int = 8
) -> list[str]:
    """What is wrong after these kills of engines whose handler asks a service, and waits. A companion that dies alone
    ends no engine. ``once``: all companions live on, so no call is repeated but for what it has answered."""
    world.ordered = ordered
    with running_service() as world.service:
        wrong = []
        for fault in faults:
            world.produce([*mixed(40), ALWAYS_FAIL])
            engine = world.run(fault, in_flight=in_flight)
            if not engine.struck:
                wrong.append(f"{fault} was not reached: {engine.last_line}")
        world.supervise(restarts=2, in_flight=in_flight)
        return [*wrong, *world.faults(), *_asked(world.service, in_flight), *(_repeated(world) if once else ())]


def _repeated(world: ChaosRun) -> Iterator[str]:
    for partition, offset, count in world.calls():
        if count > 1 and world.values[partition, offset] in (ACCEPT, REJECT):
            yield f"{(partition, offset)} was called with count {count}, although its first call has ended"


def _asked(service: LateService, in_flight: int) -> Iterator[str]:
    """What is wrong by the service's own counts."""
    for attempt, number in service.calls.items():
        if number > 1:
            yield f"{attempt} was asked {number} times"
    if service.at_a_time > in_flight:
        yield f"the service had {service.at_a_time} calls at a time, and {in_flight} were allowed"
    if not service.throttled:
        yield "the service has throttled nothing"


SCENARIOS: Mapping[str, Scenario] = {
    "a record kills its worker": functools.partial(poison, value=KILL_WORKER),
    "a record kills its executor": functools.partial(poison, value=KILL_EXECUTOR, master=CLUSTER),
    "a record kills its driver": functools.partial(poison, value=KILL_DRIVER, crashes=LIMIT + 1),
    "a call sleeps for ever": functools.partial(poison, value=SLEEP, timeout_ms=TIMEOUT_MS),
    "a call stays in C for ever": functools.partial(poison, value=STAY_IN_C, timeout_ms=TIMEOUT_MS),
    "a price does not fit": functools.partial(poison, value=NO_PRICE, count=1_000),
    "calls wait while engines die": functools.partial(
        waiting, once=True, faults=[Fault(CALLS_TAKEN, nth=3), Fault("after the append", nth=3)]
    ),
    "calls wait while their process dies": functools.partial(
        waiting, faults=[Fault(CALLS_TAKEN, COMPANION, 3), Fault(IN_HANDLER, WORKER), Fault(CALLS_TAKEN, BOTH, 3)]
    ),
    "calls wait while output is written": functools.partial(
        waiting, faults=[Fault("after the output is appended"), Fault("before the output is journaled", BOTH, 2)]
    ),
    "calls wait in order of keys": functools.partial(
        waiting, ordered=True, faults=[Fault(CALLS_TAKEN, nth=3), Fault(CALLS_TAKEN, COMPANION, 3)]
    ),
    "a handler is not on the workers": functools.partial(broken, kind=NOT_ON_WORKERS),
    "a handler answers with a wrong length": functools.partial(broken, kind=WRONG_LENGTH),
}
