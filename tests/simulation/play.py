"""The play of one seed: the scheduler, what producers and operators do, and the quiet end in which all must finish."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

from share_spark.engine.pauses import NOT_PAUSED
from share_spark.model.config import DeliveryOrder
from share_spark.model.errors import FencedError
from share_spark.partition import PartitionLimits
from tests.simulation.at_the_end import check_end
from tests.simulation.compaction import SimulatedCompaction
from tests.simulation.crowd import Crowd
from tests.simulation.describe import brief
from tests.simulation.engine import SimulatedEngine
from tests.simulation.facts import At, Decided, Violation, demand
from tests.simulation.gateway import SimulatedGateway
from tests.simulation.late_delivery import SimulatedCompanion
from tests.simulation.ledger import Ledger
from tests.simulation.ledger_files import Files
from tests.simulation.orphans import Orphans, end_orphans, step_orphans
from tests.simulation.producers import Producers
from tests.simulation.scenario import Behaviour, Scenario, another_setting, draw, unhindered, with_clients
from tests.twins.memory import InMemoryStateLog, InMemoryTopicLog, MemoryRecord, StateCommit
from tests.twins.memory_output import InMemoryDeadLetterTable, InMemoryOutputTable

_MOST_TURNS = 40_000
"""Of the quiet end. A record that kills its engine costs a few for each time that it is narrowed down."""


class SimulatedWorld:
    """What outlives the engines, and what may happen to them."""

    group_id = "simulated"

    def __init__(self, seed: int, *, is_late: bool | None = None, has_clients: bool = False) -> None:
        """``is_late``: whether calls outlast deliveries, if the seed is not to choose that. ``has_clients``: the group
        has outside members."""
        self.seed, self.rng = seed, Random(seed)
        scenario = draw(self.rng)
        scenario = with_clients(scenario, seed) if has_clients else scenario
        self.scenario: Scenario = scenario if is_late is None else replace(scenario, is_late=is_late)
        self.config = config = self.scenario.config
        self.limits, self.lowest_limit = PartitionLimits.of(config), config.max_delivery_count
        self.letters, self.output = InMemoryDeadLetterTable(), InMemoryOutputTable()
        self.ledger = Ledger(
            letters=self.letters, group_id=self.group_id, is_late=self.is_late, has_clients=has_clients
        )
        self.ledger.key_of = lambda one: self.key(one) if self.record(one) is not None else None
        self.ledger.is_empty = lambda one: self.record(one) is None
        self.ledger.is_called = lambda one: any(orphans.calls(one) for orphans in self.orphans)
        self.time_ms, self.turn, self.trace = 1_000_000, 0, list[str]()
        self.topics, self.state_log = InMemoryTopicLog(), InMemoryStateLog()
        self.files: Files = {}
        self.pauses = NOT_PAUSED
        self.behaviours: dict[At, Behaviour] = {}
        self.throttles: Counter[At] = Counter()
        self.late: tuple[SimulatedEngine, StateCommit, Decided | None] | None = None
        self.engines: list[SimulatedEngine] = []
        self.companions: list[SimulatedCompanion] = []
        self.orphans: list[Orphans] = []
        self.runs, self.is_calm = 0, False
        self.producers, self.crowd = Producers(self), Crowd(self)
        self.topic_names = [f"topic{n}" for n in range(len(self.scenario.partitions))]
        for name, partitions in zip(self.topic_names, self.scenario.partitions, strict=True):
            self.topics.create_topic(name, partitions)

    @property
    def is_late(self) -> bool:
        """Calls outlast deliveries."""
        return self.scenario.is_late

    @property
    def is_ordered(self) -> bool:
        """By key."""
        return self.scenario.config.delivery_order == DeliveryOrder.KEY

    def note(self, *what: object) -> None:
        """Into the trace."""
        self.trace.append(f"{self.turn:4} {self.time_ms - 1_000_000:7} ms  " + " ".join(str(part) for part in what))

    # ------------------------------------------------------------------------------------------------- interference

    def interferes(self, rare: int) -> str:
        """What happens at a point: mostly nothing."""
        if self.is_calm:
            return ""
        scenario, chance = self.scenario, self.rng.random() * rare
        if chance < scenario.death_rate:
            return "die"
        if chance < scenario.death_rate + scenario.sleep_rate:
            return "sleep"
        return "refuse" if chance < scenario.death_rate + scenario.sleep_rate + scenario.refusal_rate else ""

    def dawdles(self, chance: float) -> bool:
        """Does an engine sleep where nothing else would happen to it?"""
        return chance > 0 and not self.is_calm and self.scenario.sleep_rate > 0 and self.rng.random() < chance

    def strikes(self, rare: int = 1) -> bool:
        """Does something happen to a delivery, for no fault of a record? ``rare`` as in ``interferes``."""
        return not self.is_calm and self.rng.random() * rare < 2 * self.scenario.death_rate

    def lose_ledgers(self, members: set[str]) -> None:
        """Their machine is gone."""
        self.note("no ledgers are left of", *sorted(members))
        self.ledger.lost |= members
        for member in members:
            self.files.pop(member, None)
        end_orphans(self, members)

    def delays(self) -> bool:
        """Does an append fail in such a way that it may still happen later?"""
        return not self.is_calm and self.rng.random() < self.scenario.refusal_rate

    def land(self) -> None:
        """What was slow to land may do so while it has not been asked for, or its engine gives back or has ended."""
        if self.late is not None:
            of = self.late[0]
            if of.process.over or of.closing or not of.has_asked:
                self._land_now()

    def _land_now(self) -> None:
        assert self.late is not None
        (of, commit, decided), self.late = self.late, None
        self.state_log.commits.append(commit)
        of.note("append lands late:", commit.kind, commit.batch_id)
        self.appended(of, commit, decided)

    def land_before(self) -> None:
        """Another append is about to take the place of what was slow to land: now or never."""
        if self.late is not None and self.rng.random() < 0.5:
            self._land_now()
        self.late = None

    # ------------------------------------------------------------------------------------------------------- topics

    def record(self, one: At) -> MemoryRecord | None:
        """None: there is none, or none any more."""
        return self.topics.record(*one)

    def behaviour(self, one: At, count: int) -> str:
        """What the handler does with a record this time."""
        kind, times = self.behaviours[one]
        if self.throttles[one] < self._most_throttles(one):
            self.throttles[one] += 1
            return "throttle"
        return kind if count <= times else "accept"

    def _most_throttles(self, one: At) -> int:
        """Of a record. Not drawn, so that plays without throttles stay what they are."""
        return zlib.crc32(f"throttle {one}".encode()) % (self.scenario.most_throttles + 1)

    def key(self, one: At) -> bytes | None:
        """Of a record that was written at some time."""
        return self.producers.keys.get(one)

    # ------------------------------------------------------------------------------------------------------ engines

    def _start_engine(
        self, *, available_now: bool | None = None, gateway: SimulatedGateway | None = None
    ) -> SimulatedEngine:
        """A checkpoint is copied, kept or new: batch ids go on, are repeated, or begin at 0. ``gateway``: that it
        listens with, if not one of its own."""
        rng, lock_ms = self.rng, self.limits.lock_duration_ms
        self.runs += 1
        batch_id = rng.choice([0, *(engine.batch_id for engine in self.engines), self.runs])
        engine = SimulatedEngine(
            self,
            f"run{self.runs}",
            available_now=rng.random() < 0.3 if available_now is None else available_now,
            batch_id=batch_id,
            skew_ms=rng.randint(-lock_ms, lock_ms) if self.scenario.skewed_clocks else 0,
            gateway=gateway or self.crowd.begin_gateway(),
        )
        self.engines.append(engine)
        engine.note("starts with batch", batch_id, "clock off by", engine.skew_ms)
        return engine

    def _start_compaction(self) -> None:
        self.runs += 1
        compaction = SimulatedCompaction(self, f"compaction{self.runs}", batch_id=self.runs)
        self.engines.append(compaction)
        compaction.note("takes the group for idle")

    def _resume(self, engine: SimulatedEngine) -> None:
        engine.process.resume()
        self._bury(engine)

    def _kill(self, engine: SimulatedEngine) -> None:
        engine.note("is killed where it stands")
        engine.process.kill()
        self._bury(engine)

    def _bury(self, engine: SimulatedEngine) -> None:
        if not engine.process.over:
            return
        fault = engine.process.fault
        engine.note("has ended", "" if fault is None else repr(fault))
        self.engines.remove(engine)
        is_machine = engine.process.died and self.rng.random() < self.scenario.machine_rate
        if engine.companion is not None:
            engine.companion.loses_driver(dies=is_machine or not engine.process.died)
        if is_machine:
            self.lose_ledgers({engine.store.member_id})
        if isinstance(fault, Violation):
            raise fault
        if not engine.ended_well:
            raise Violation(f"{engine.run_id} ended by {fault!r}") from fault
        if self.crowd.outlives(engine):
            self._start_engine(gateway=engine.gateway)
        is_alone = not self.engines and not self.is_calm
        if self.scenario.is_supervised and is_alone and fault is not None and not isinstance(fault, FencedError):
            self._start_engine()

    def _append_of_another_group(self) -> None:
        """Its claims and epochs are none of ours; but it takes versions, and the place of what was slow to land."""
        kind = self.rng.choice(["claim", "records"])
        self.late = None
        self.state_log.commits.append(StateCommit("another", kind, 99, "other", 0, self.turn))
        self.ledger.append(self.state_log, self.state_log.commits[-1], None)

    # -------------------------------------------------------------------------------------------------- the schedule

    def play(self) -> None:
        """Raises Violation."""
        try:
            while self.turn < self.scenario.steps:
                self.turn += 1
                self._take_turn()
            self._finish()
        finally:
            for engine in list(self.engines):
                engine.process.kill()
            self.crowd.end()

    def _take_turn(self) -> None:
        choices: list[tuple[float, Callable[[], None]]] = [
            (2.0, self.producers.produce),
            (0.5, self.producers.disturb_log),
            (self.scenario.truncation_rate, self.producers.truncate),
            (2.0, lambda: self._wait(self.rng.randint(0, self.limits.lock_duration_ms // 3))),
            (0.7, lambda: self._wait(self.rng.randint(1, 2) * self.limits.lock_duration_ms)),
            (0.3, self.land),
            (0.3, self._append_of_another_group),
            (self.scenario.compaction_weight, self._start_compaction),
        ]
        if len(self.engines) < self.scenario.most_engines:
            choices.append((0.4 if self.engines else 8.0, self._start_engine))  # type: ignore[arg-type]
        if self.scenario.pause_weight:
            choices.append((self.scenario.pause_weight, self._pause))
        if self.scenario.setting_weight:
            choices.append((self.scenario.setting_weight, self._change_setting))
        if self.companions:
            choices.append((4.0, self._step_companion))
        if self.orphans:
            choices.append((3.0, lambda: step_orphans(self)))
        choices += self.crowd.choices()
        if self.engines:
            one = self.rng.choice(self.engines)
            choices.append((8.0, lambda: self._resume(one)))
            choices.append((0.2, lambda: self._stop(one)))
            if self.scenario.death_rate:
                choices.append((0.3, lambda: self._kill(one)))
            if self.scenario.skewed_clocks:
                choices.append((0.3, lambda: self._set_clock(one)))
        weights, acts = zip(*choices, strict=True)
        self.rng.choices(acts, weights)[0]()

    def _pause(self) -> None:
        """Or resume."""
        at, rng = self.producers.somewhere(), self.rng
        topics = rng.choice([None, {at.topic: ()}, {at.topic: (at.partition,)}])
        until_ms = rng.choice([None, self.time_ms + 5_000])
        is_pause = not self.pauses or rng.random() < 0.5
        self.pauses = self.pauses.paused(topics, until_ms) if is_pause else self.pauses.resumed(topics)
        self.note("paused:", self.pauses)

    def _change_setting(self) -> None:
        self.config = another_setting(self.config, self.rng, is_late=self.is_late)
        self.lowest_limit = min(self.lowest_limit, self.config.max_delivery_count)
        self.note("settings:", self.config)

    def _wait(self, ms: int) -> None:
        self.time_ms += ms

    def _stop(self, engine: SimulatedEngine) -> None:
        engine.note("is asked to stop")
        engine.stopping = True

    def _step_companion(self) -> None:
        """Calls go on while engines do something else."""
        companion = self.rng.choice(self.companions)
        for _ in range(self.rng.randint(1, 8)):
            companion.step()
        if companion.took_engine and companion.of in self.engines:
            self._kill(companion.of)

    def calls_at_a_time(self) -> int:
        """Of the engine that owns the group, and of those that the next one waits for."""
        return sum(len(one.calls.running) for one in self.companions if not one.was_replaced)

    def _set_clock(self, engine: SimulatedEngine) -> None:
        lock_ms = self.limits.lock_duration_ms
        engine.skew_ms = self.rng.randint(-2 * lock_ms, 2 * lock_ms)
        engine.note("clock is set, off by", engine.skew_ms)

    def _finish(self) -> None:
        """No faults from outside any more, but sleepers wake up. One engine must work off everything; what would make
        that take days is unset by an operator."""
        self.is_calm, self.pauses = True, NOT_PAUSED
        self.config = unhindered(self.scenario.config if self.scenario.setting_weight else self.config)
        self.note("calm")
        for engine in list(self.engines):
            if self.rng.random() < 0.5:
                self._kill(engine)
        last = self._start_engine(available_now=True)
        self.crowd.calm_down()
        end = self.turn + _MOST_TURNS
        while not self._is_finished(last) and self.turn < end:
            self.turn += 1
            others = [engine for engine in self.engines if engine is not last]
            self._resume(self.rng.choice(others) if others and self.rng.random() < 0.3 else last)
            if self.companions and self.rng.random() < 0.3:
                self._step_companion()
            if self.orphans and self.rng.random() < 0.3:
                step_orphans(self)
            self.crowd.go_on()
            if last.process.over and not self._is_finished(last):
                last = self._start_engine(available_now=True)
            self._wait(self.limits.lock_duration_ms // 3)
        demand(self._is_finished(last), "not done after", _MOST_TURNS, "turns")
        check_end(self)

    def _is_finished(self, last: SimulatedEngine) -> bool:
        """Another engine may have taken over its last dead letters, and sleep."""
        return last.engine.done and not self.letters.waiting

    # ------------------------------------------------------------------------------------------------------- checks

    def appended(self, engine: SimulatedEngine, commit: StateCommit, decided: Decided | None) -> None:
        """The newest commit of the state log."""
        counts = self.ledger.append(self.state_log, commit, decided)
        version = self.state_log.version
        records = [f"{topic}-{record.key.partition} {brief(record)}" for topic, record in commit.records]
        stale = "" if counts or commit.kind == "claim" else "(does not count)"
        for companion in self.companions:
            companion.see_owner()
        engine.note(f"v{version}", commit.kind, f"batch {commit.batch_id}", stale, records)
        if counts:
            engine.held.update(
                (one, held)
                for one, held in self.ledger.acquisitions.items()
                if held.version == version and held.member_id == engine.store.member_id
            )


def run_seed(seed: int, *, is_late: bool | None = None, has_clients: bool = False) -> str:
    """Play a seed. Returns "" or what was wrong, with the trace and the line that does it again."""
    world = SimulatedWorld(seed, is_late=is_late, has_clients=has_clients)
    try:
        world.play()
    except Violation as broken:
        trace = "\n".join(world.trace)
        given = f"run_seed({seed}, is_late={is_late}, has_clients={has_clients})"
        again = f"make sim SEEDS=1 FIRST={seed}" if is_late is None else given
        return f"{trace}\n{world.scenario}\nseed {seed}: {broken}\n{again}"
    return ""
