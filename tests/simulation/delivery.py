"""A delivery at once: tasks enter the handler in any order, die, hang and go on, and all answers come with it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from share_spark.engine.attempts import FinishedCalls
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    Delivered,
    DeliveryAtOnce,
    DeliveryLimits,
)
from share_spark.engine.key_order import FREE, KeyOrder
from share_spark.model.errors import HandlerError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from share_spark.model.records import Doubt
from share_spark.model.requests import AnsweredRange, Loss, RetryDelay
from tests.simulation.facts import (
    ACCEPT,
    DIED_AMONG_OTHERS,
    DONE,
    GAP,
    REJECT,
    RELEASE,
    THROTTLED,
    At,
    Course,
    Said,
    demand,
)
from tests.simulation.ledger_files import Entry, SimulatedLedgers
from tests.simulation.orphans import dies_before_workers, leave_behind, stop_orphans
from tests.simulation.processes import Death

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine
    from tests.simulation.play import SimulatedWorld

_UNKNOWN = Said(Loss.UNKNOWN, "worker lost")
_NOT_ENTERED = Said(Loss.NOT_ENTERED, None)


class WorkerDeath(Exception):  # noqa: N818 - what happens to the worker
    """Whatever is in the handler has killed its worker."""


class MachineDeath(Exception):  # noqa: N818 - what happens to the machine
    """The worker's machine is gone, with the ledger of its task."""


@dataclass(slots=True)
class SimulatedDelivery(SimulatedLedgers, DeliveryAtOnce):
    """Some workers share out what was acquired."""

    def finished_calls(self) -> Iterator[FinishedCalls]:
        """Workers that have outlived their engines are waited for."""
        stop_orphans(self.of.world)
        yield from SimulatedLedgers.finished_calls(self)

    def room(self, limits: DeliveryLimits) -> int | None:
        return DeliveryAtOnce.room(self, limits) if self.of.world.scenario.has_handlers else 0

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:  # noqa: ARG002
        self.of.point("forget the last delivery", OSError)
        if self.of.store.member_id in self._files:
            self._files[self.of.store.member_id] = {}

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        of = self.of
        of.must_own("deliver")
        self._files[of.store.member_id] = {}
        of.world.ledger.lost.discard(of.store.member_id)
        of.point("before delivery", HandlerError)
        began_ms = of.world.time_ms
        tasks, has_batches = list(self._tasks(acquired, in_turn=in_turn)), of.world.scenario.has_batches and not in_turn
        run = Run(of, tasks, has_batches, limits.budget_ms)
        try:
            fault = run.work_off()
        except Death:
            leave_behind(run)
            raise
        of.point("after delivery", None)
        of.hears({one: (of.held[one], answer) for one, answer in run.said.items()}, fault)
        spans = [_span(one.partition, run.said, is_broken=fault is not None) for one in acquired]
        of.world.rng.shuffle(spans)
        return Delivered(spans, fault=fault, entered=run.entered, busy_s=(of.world.time_ms - began_ms) / 1_000)

    def _tasks(self, acquired: Sequence[AcquiredSpan], *, in_turn: bool) -> Iterator[Task]:
        found = self._by_key(acquired, in_turn=in_turn) if self.of.world.is_ordered else self._cut(acquired, in_turn)
        yield from (task for task in found if not task.over)

    def _by_key(self, acquired: Sequence[AcquiredSpan], *, in_turn: bool) -> Iterator[Task]:
        """All records of a key in one task, with those before them that are not finished."""
        world = self.of.world
        workers = 1 if in_turn else world.rng.randint(1, 3)
        shares: list[list[tuple[At, int]]] = [[] for _ in range(workers)]
        for one in acquired:
            earlier = [(first, last, -wait_ms) for first, last, wait_ms in one.earlier.tolist()]
            for first, last, count in sorted([*map(tuple, one.ranges.tolist()), *earlier]):
                for offset in range(first, last + 1):
                    at = (one.partition, offset)
                    shares[zlib.crc32(world.key(at) or str(offset).encode()) % workers].append((at, count))
        yield from (Task(records, order=KeyOrder()) for records in shares)

    def _cut(self, acquired: Sequence[AcquiredSpan], in_turn: bool) -> Iterator[Task]:
        rng = self.of.world.rng
        everything = [
            ((one.partition, offset), count)
            for one in acquired
            for first, last, count in sorted(one.ranges.tolist())
            for offset in range(first, last + 1)
        ]
        accused = [one for one, _ in everything if self.of.held[one].doubt is Doubt.ACCUSED]
        demand(in_turn or not accused, "accused records run at the same time:", accused)
        workers = 1 if in_turn else min(rng.randint(1, 3), len(everything))
        cuts = [0, *sorted(rng.choices(range(len(everything) + 1), k=workers - 1)), len(everything)]
        yield from (Task(everything[start:end]) for start, end in pairwise(cuts))


@dataclass(slots=True)
class Task:
    """Some records in order. ``next``: the first that no handler was entered with. ``unsent``: accepted records whose
    output rows are still with the worker. ``order``: of keys, if it goes by them; a record whose count is 0 or less is
    then none of its own: it is not finished, and its key waits so many milliseconds. ``is_lost``: its worker has died,
    and nobody repeats it."""

    records: list[tuple[At, int]]
    order: KeyOrder | None = None
    next: int = 0
    in_handler: list[tuple[At, int]] = field(default_factory=list)
    unsent: list[At] = field(default_factory=list)
    is_lost: bool = False

    @property
    def over(self) -> bool:
        return not self.in_handler and not any(count > 0 for _, count in self.records[self.next :])


@dataclass(slots=True)
class Run:
    """One delivery. ``said``: of every record that was acquired, in the end. ``is_alone``: its engine has died.
    ``is_stopped``: the next one has told its workers to stop."""

    of: SimulatedEngine
    tasks: list[Task]
    has_batches: bool
    budget_ms: int
    said: dict[At, Said] = field(default_factory=dict)
    entered: int = 0
    is_alone: bool = False
    is_stopped: bool = False
    _until_ms: int = 0
    _fault: HandlerError | TopicUnreachableError | None = None

    def work_off(self) -> HandlerError | TopicUnreachableError | None:
        """Whatever the tasks do, in whatever order; returns the fault that has ended it."""
        world = self.of.world
        self._until_ms = world.time_ms + self.budget_ms
        if world.strikes():
            self._break("the handler cannot be loaded")
        records = sum(len(task.records) for task in self.tasks)
        while running := [task for task in self.tasks if task.in_handler or (not task.over and not self._is_up)]:
            self._step(world.rng.choice(running), rare=records)
        for task in self.tasks:
            rest = (one for one, count in task.records if count > 0 and one not in self.said)
            self.said.update((one, _NOT_ENTERED) for one in rest)
        return self._fault

    def loses_engine(self) -> None:
        """What is in the ledger counts for the next one."""
        self.is_alone = True
        for one, entry in self.of.world.files[self.of.store.member_id].get(0, {}).items():
            self._note(one, entry)

    def goes_on_alone(self, task: Task) -> bool:
        """A step of a task without its engine; returns whether another one follows. Nobody repeats it."""
        try:
            if task.in_handler:
                self._leave(task)
            else:
                self._enter(task)
        except (WorkerDeath, Death):
            self.of.note("a worker has died without its engine")
            return False
        except MachineDeath:
            self.of.world.lose_ledgers({self.of.store.member_id})
            return False
        goes_on = bool(task.in_handler) or not (task.over or self._is_up)
        if not goes_on:
            self._flush(task)
        return goes_on

    @property
    def _is_up(self) -> bool:
        """No handler is entered any more: time is up, something is broken, or another engine owns the group. Without a
        driver, workers know of that only by the stop sign."""
        world = self.of.world
        is_replaced = self.is_stopped if self.is_alone else world.ledger.owner[1] != self.of.run_id
        return is_replaced or self._fault is not None or world.time_ms >= self._until_ms

    def _break(self, text: str) -> None:
        self.of.note("delivery breaks:", text)
        self.of.faulted, self._fault = True, HandlerError(text)

    def _step(self, task: Task, *, rare: int) -> None:
        if dies_before_workers(self.of.world, rare):
            self.of.note("dies before its workers")
            raise Death
        if not task.in_handler:
            try:
                self.of.point("between two records", TopicUnreachableError, rare=rare)
            except TopicUnreachableError as outage:
                self._fault = self._fault or outage
                return
            self._enter(task)
            return
        self.of.point("in the handler", None, rare=rare)
        try:
            self._leave(task)
        except WorkerDeath:
            self._worker_died(task)
        except MachineDeath:
            self._machine_died(task)

    def _enter(self, task: Task) -> None:
        rng, world = self.of.world.rng, self.of.world
        if self._is_up:
            return
        size = rng.randint(1, 5) if self.has_batches else 1
        if task.order is not None:
            size = self._next_by_key(task, task.order, size)
        for one, count in task.records[task.next : task.next + size]:
            if world.record(one) is None:
                self.said[one] = Said(GAP, None)
                continue
            self.of.enters(one, count)
            self._note(one, Entry(count))
            task.in_handler.append((one, count))
            self.entered += 1
        task.next = min(task.next + size, len(task.records))

    def _next_by_key(self, task: Task, order: KeyOrder, size: int) -> int:
        """Puts up to ``size`` records of different keys, which wait for nothing, where the task goes on; returns how
        many. What waits is answered, and what has the key of one that was chosen comes later."""
        chosen: list[tuple[At, int]] = []
        rest: list[tuple[At, int]] = []
        keys: set[tuple[TopicPartition, bytes | None]] = set()
        for at, count in task.records[task.next :]:
            key = self.of.world.key(at)
            wait_ms = order.wait_ms(at[0], key)
            if len(chosen) == size or (key is not None and (at[0], key) in keys):
                rest.append((at, count))
            elif count <= 0 and self.of.world.record(at) is not None:
                order.hold_back(at[0], key, -count)
            elif count > 0 and wait_ms != FREE and self.of.world.record(at) is not None:
                self.said[at] = Said(Loss.NOT_ENTERED, None, wait_ms or None)
            elif count > 0:
                chosen.append((at, count))
                keys.add((at[0], key))
        task.records = [*task.records[: task.next], *chosen, *rest]
        return len(chosen)

    def _hold_back(self, task: Task) -> None:
        """The keys of what was in the handler, or has lost its output, and is not finished by that."""
        for one in [*(one for one, _ in task.in_handler), *task.unsent] if task.order is not None else ():
            said = self.said[one]
            self.of.held[one].answer = said.kind
            if task.order is not None and said.kind not in (ACCEPT, REJECT):
                task.order.hold_back(one[0], self.of.world.key(one), said.delay_ms or 0)

    def _leave(self, task: Task) -> None:
        """The call ends: it kills, or it answers."""
        world = self.of.world
        world.time_ms += world.scenario.slow_ms
        kinds = {one: world.behaviour(one, count) for one, count in task.in_handler}
        if "kill engine" in kinds.values():
            self.of.note("killed in", *(f"{at}:{offset}" for at, offset in kinds))
            task.is_lost = True
            raise Death
        if world.strikes(len(task.records)):
            raise MachineDeath if world.rng.random() < world.scenario.machine_rate else WorkerDeath
        if "kill worker" in kinds.values():
            raise WorkerDeath
        if world.strikes(4 * len(task.records)):
            self._break("the handler returned something else")
        for one, count in task.in_handler:
            self._answer(task, one, count, kinds[one])
        self._hold_back(task)
        task.in_handler = []
        if world.rng.random() < 0.3:
            self._flush(task)

    def _answer(self, task: Task, one: At, count: int, kind: str) -> None:
        world = self.of.world
        self.said[one] = said = said_of(world, one, count, kind)
        if kind == "hang":
            world.time_ms += world.rng.randint(1, world.limits.lock_duration_ms)
        if said.kind == ACCEPT:
            task.unsent.append(one)
        self._finish(one, count, THROTTLED if said.kind == Loss.THROTTLED else DONE)

    def _worker_died(self, task: Task) -> None:
        """Its task is repeated, reads the ledger, and goes on after what was in the handler. What that worker had
        accepted and not sent has lost its output."""
        self.of.note("worker lost in", *(f"{at}:{offset}" for (at, offset), _ in task.in_handler))
        is_alone = len(task.in_handler) == 1
        for one, count in task.in_handler:
            self.said[one] = Said(RELEASE if is_alone else Loss.AMONG_OTHERS, "worker lost")
            self._finish(one, count, DONE if is_alone else DIED_AMONG_OTHERS)
        if self.of.world.scenario.has_sink:
            self.said.update((one, Said(Loss.FINISHED, "worker lost")) for one in task.unsent)
        self._hold_back(task)
        task.in_handler, task.unsent = [], []

    def _machine_died(self, task: Task) -> None:
        """What of this task has run is not known. If the engine dies as well before it is committed, it is not known of
        any task."""
        self.of.note("worker lost with its machine:", len(task.records), "records")
        for one, count in task.in_handler:
            self._finish(one, count, DONE)
        self.said.update((one, _UNKNOWN) for one, count in task.records if count > 0)
        task.next, task.in_handler, task.unsent = len(task.records), [], []
        self.of.world.lose_ledgers({self.of.store.member_id})

    def _finish(self, one: At, count: int, left: str) -> None:
        self.of.held[one].course = Course(entered=True, left=left)
        said = self.said.get(one) if left in (DONE, THROTTLED) else None
        has_rows = said is not None and said.kind == ACCEPT and self.of.world.scenario.has_sink
        self._note(one, Entry(count, left, None if has_rows else said))

    def _flush(self, task: Task) -> None:
        """The output rows of what was accepted are in the ledger from now on."""
        for one in task.unsent:
            self._note(one, Entry(self.of.held[one].count, DONE, self.said[one]))
        task.unsent = []

    def _note(self, one: At, entry: Entry) -> None:
        """Into the ledger, if that is still there."""
        blocks = self.of.world.files.get(self.of.store.member_id)
        if blocks is not None:
            blocks.setdefault(0, {})[one] = entry
            self.of.held[one].is_kept = self.is_alone and entry.said is not None


def said_of(world: SimulatedWorld, one: At, count: int, kind: str) -> Said:
    """What the handler answers that does this."""
    if kind == "accept":
        return Said(ACCEPT, None)
    if kind == "throttle":
        return Said(Loss.THROTTLED, f"{kind} {world.throttles[one]}", (0, 500, 20_000)[one[1] % 3])
    text = f"{kind} {count} of {one[1]}"
    if kind == "reject":
        return Said(REJECT, text)
    return Said(RELEASE, text, world.scenario.asked_ms(one[1] + count) if kind == "release" else None)


def _span(at: TopicPartition, said: dict[At, Said], *, is_broken: bool) -> AcknowledgedSpan:
    """As the port promises it: ascending runs of one type. What is left out holds no record or, if the delivery is
    broken, was not entered."""
    left_out = Loss.NOT_ENTERED if is_broken else GAP
    own = ((one[1], answer) for one, answer in said.items() if one[0] == at)
    rows = sorted((offset, answer) for offset, answer in own if answer.kind != left_out or answer.delay_ms is not None)
    ranges = tuple(AnsweredRange(offset, offset, answer.kind) for offset, answer in rows)
    delays = [RetryDelay(offset, offset, answer.delay_ms) for offset, answer in rows if answer.delay_ms is not None]
    errors = [(offset, offset, answer.error) for offset, answer in rows if answer.error]
    return AcknowledgedSpan(at, ranges, errors, delays)
