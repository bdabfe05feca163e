"""One engine of the play: the real ``ShareGroupEngine`` on ports that may fail, in a process that may sleep or die."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from share_spark.engine.client_asks import ClientAnswer, GroupAnswer
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.pauses import NOT_PAUSED, Pauses
from share_spark.engine.step import PartitionInput, PartitionOutcome
from share_spark.engine.world import Ports
from share_spark.model.config import GroupConfig
from share_spark.model.errors import (
    DeadLetterError,
    FencedError,
    HandlerError,
    OutputLostError,
    OutputUnknownError,
    ShareError,
    SinkError,
    TopicUnreachableError,
)
from share_spark.model.ids import LogEnds, SharePartitionKey, TopicPartition
from share_spark.model.records import DeliveryState
from share_spark.model.requests import AcknowledgeType, Loss
from tests.simulation.checks import check_done, check_state
from tests.simulation.delivery import SimulatedDelivery
from tests.simulation.facts import Acquisition, Asked, At, Courses, Decided, Said, demand
from tests.simulation.gateway import SimulatedGateway
from tests.simulation.late_delivery import SimulatedCompanion, SimulatedLateDelivery
from tests.simulation.ports import Clock, Store, Subscribed, Topics
from tests.simulation.processes import Death, SimulatedProcess
from tests.twins.memory_output import InMemoryDeadLetters, InMemoryNoDeadLetters, InMemoryOutputSink

if TYPE_CHECKING:
    from tests.simulation.play import SimulatedWorld

_OFTEN = {"before journal": 0.3, "after claim of output": 0.5, "after listing of output": 0.5}
"""Moments at which an engine sleeps more often: one still writes, another takes over from it."""


class SimulatedEngine:
    """``held``: what its counted commits have acquired. ``answers``: what its handlers said of the last delivery;
    ``said``: the same once the engine goes on with it. ``ends``: all that the topic log has answered; ``looked``: what
    it goes by of that. ``looked_at``: the version up to which it has seen the state log. ``forgiven``: attempts that
    are given back as if they had not been made, as there is nowhere to put their output. ``has_drained``: the last
    answers count within this micro-batch, as it has another part. ``heard_ms``: the time of the
    micro-batch that they came in. ``learned``: how far others
    had come when it asked. ``config``, ``pauses``: as it has seen them. ``others``: whose ledgers were there when it
    started."""

    def __init__(
        self,
        world: SimulatedWorld,
        run_id: str,
        *,
        available_now: bool,
        batch_id: int,
        skew_ms: int,
        gateway: SimulatedGateway | None = None,
    ) -> None:
        self.gateway = gateway
        self.world, self.run_id, self.batch_id, self.skew_ms = world, run_id, batch_id, skew_ms
        self.now_ms, self.clock_ms, self.looked_at, self.heard_ms = -1, 0, -1, 0
        self.stopping = self.closing = self.faulted = self.has_asked = self.reads_time = False
        self.has_drained = False
        self.forgiven: set[Acquisition] = set()
        self.pauses, self.config = NOT_PAUSED, world.config
        self.has_target = world.is_calm or world.rng.random() >= world.scenario.targetless_rate
        self.ends: dict[TopicPartition, set[LogEnds]] = {}
        self.looked: Mapping[TopicPartition, LogEnds] = {}
        self.held: dict[At, Acquisition] = {}
        self.answers: Mapping[At, tuple[Acquisition, Said]] = {}
        self.said: Mapping[At, tuple[Acquisition, Said]] = {}
        self.rows_to_hold: Mapping[At, tuple[Acquisition, Said]] = {}
        self.left_rows: Mapping[At, tuple[Acquisition, Said]] = {}
        self.held_rows: Set[At] | None = None
        self.decided: Decided | None = None
        self.others: set[str] = set()
        self.learned: tuple[Courses, frozenset[str]] | None = None
        self.store = Store(
            log=world.state_log,
            group_id=world.group_id,
            run_id=run_id,
            updates_per_snapshot=world.scenario.config.updates_per_snapshot,
            least_ranges=world.scenario.least_ranges,
        ).of_engine(self)
        self.delivery = SimulatedLateDelivery(self) if world.is_late else SimulatedDelivery(self)
        self.engine = ShareGroupEngine(ports=self._ports(), available_now=available_now)
        self.process = SimulatedProcess(self._live)

    @property
    def owns_group(self) -> bool:
        """No other engine has claimed it since."""
        return self.world.ledger.owner[1] == self.run_id

    @property
    def companion(self) -> SimulatedCompanion | None:
        """The process that has its calls, if there is one."""
        return self.delivery.companion if isinstance(self.delivery, SimulatedLateDelivery) else None

    @property
    def writes_letters_late(self) -> bool:
        """Every other engine does."""
        return zlib.crc32(self.run_id.encode()) % 2 == 0

    def _ports(self) -> Ports:
        log = Topics(self, self.world.topics)
        has_sink = self.world.scenario.has_sink
        letters = InMemoryDeadLetters if self.has_target else InMemoryNoDeadLetters
        return Ports(
            topics=Subscribed(
                group_id=self.world.group_id, topics=self.world.topic_names, log=log, clock=Clock(self)
            ).of_engine(self),
            store=self.store,
            delivery=self.delivery,
            dead_letters=letters(self.world.letters, hook=self._letters_hook, is_late=self.writes_letters_late),
            clock=Clock(self, decides=True),
            config=self._look_at_config,
            sink=InMemoryOutputSink(self.world.output, hook=self._output_hook, held=lambda: self.held_rows)
            if has_sink
            else None,
            pauses=self._look_at_pauses,
            clients=None if self.gateway is None else self.gateway.queue,
        )

    def _look_at_config(self) -> GroupConfig:
        self.config = self.world.config
        return self.config

    def _look_at_pauses(self) -> Pauses:
        self.pauses = self.world.pauses
        return self.pauses

    # ---------------------------------------------------------------------------------------------------- its life

    def _live(self) -> None:
        """As the running query does: a fault ends it, after a last micro-batch that gives back, unless fenced."""
        try:
            self._listen()
            self._work()
        except Exception as fault:
            self._refuse_clients(fault if isinstance(fault, ShareError) else ShareError(repr(fault)))
            raise
        self._refuse_clients(None)

    def _refuse_clients(self, fault: ShareError | None) -> None:
        if self.gateway is not None:
            self.gateway.queue.refuse(fault)

    def _listen(self) -> None:
        """Claim the group; then clients are heard."""
        self.engine.start()
        self.note("has claimed the group")
        if self.gateway is not None:
            self.gateway.queue.engine = self
            self.gateway.queue.open(self.store.group)

    def _work(self) -> None:
        while not self.engine.done:
            self.sleep()
            self.faulted = False
            try:
                self._run(stopping=self.stopping)
            except FencedError:
                raise
            except Exception as fault:
                self.note("stops:", fault)
                demand(self.faulted, self.run_id, "fails for no reason:", repr(fault))
                self._run(stopping=True)
                raise
            if self.stopping:
                return
        check_done(self)

    def _run(self, *, stopping: bool) -> None:
        self._go_on_with_drained()
        self.closing, self.answers, self.learned, self.reads_time = stopping, {}, None, True
        try:
            self.engine.run(self.batch_id, stopping=stopping)
        except HandlerError:
            self.said = self.answers or self.said
            raise
        finally:
            self.batch_id += 1 + (stopping and self.world.is_late)  # it makes two
        self.said = self.answers
        check_state(self)

    def _go_on_with_drained(self) -> None:
        if self.has_drained:
            self.said, self.has_drained = self.answers, False

    def reads_clock(self, clock_ms: int) -> None:
        """The first look in a micro-batch makes its time: what has passed on this clock since the last such look, from
        where the engine before ended."""
        if self.now_ms < 0:
            last_ms = self.world.ledger.times[self.looked_at]
            self.now_ms, self.clock_ms = max(clock_ms, last_ms), clock_ms
        elif self.reads_time:
            self.now_ms += max(0, clock_ms - self.clock_ms)
            self.clock_ms, self.reads_time = clock_ms, False

    def learns(self) -> None:
        """It reads what ended engines have left, as it is now."""
        self.learned = self.world.ledger.courses(), frozenset(self.world.ledger.lost)

    def takes_over(
        self, member: str, answers: Mapping[At, tuple[int, Said]], rows: Mapping[At, tuple[int, Said]]
    ) -> None:
        """It reads the answers of an ended engine: they count for the attempts that this one still held. If the sink
        has answers that the state does not have, only their member's count beside them."""
        found, with_rows = self._held_by(member, answers), self._held_by(member, rows)
        if found or with_rows:
            self.note("takes over", len(found), "answers of", member, "and", len(with_rows), "of", len(rows), "rows")
        self.said, self.rows_to_hold = found, with_rows

    def holds_rows(self, wanted: Set[At]) -> bool:
        """The next that its sink commits are the rows that it has taken over. An engine that was replaced meanwhile may
        take them for unabsorbed still; it commits nothing any more."""
        is_replaced = self.world.ledger.owner[1] != self.run_id
        demand(wanted == self.rows_to_hold.keys() or is_replaced, self.run_id, "holds other rows than are there")
        self.held_rows, self.left_rows = wanted, {**self.said, **self.rows_to_hold}
        return True

    def _held_by(self, member: str, answers: Mapping[At, tuple[int, Said]]) -> dict[At, tuple[Acquisition, Said]]:
        held = self.world.ledger.acquisitions
        return {
            one: (held[one], said)
            for one, (count, said) in answers.items()
            if one in held and held[one].member_id == member and held[one].count == count and self._is_running(one)
            if not self._is_in_sink(one) and self._unabsorbed_members() <= {member}
        }

    def _unabsorbed_members(self) -> set[str]:
        """Whose answers the sink has and the state has not."""
        return {
            held.member_id
            for one, held in self.world.ledger.acquisitions.items()
            if self._is_in_sink(one) and self._is_running(one)
        }

    def _is_in_sink(self, one: At) -> bool:
        books = self.world.ledger
        return one in books.in_sink and books.in_sink[one][0] == books.acquisitions[one].version

    def _is_running(self, one: At) -> bool:
        window = self.world.ledger.windows.get(one[0])
        cell = window.cells.get(one[1]) if window is not None else None
        return cell is not None and cell.state is DeliveryState.ACQUIRED and one[1] >= window.start

    def decides(self, now_ms: int, partition_inputs: Mapping[SharePartitionKey, PartitionInput]) -> None:
        """What the next append may have as its reasons: its time, log ends that the log has answered, how far handlers
        have come."""
        self._go_on_with_drained()
        demand(now_ms == self.now_ms, self.run_id, "decides at", now_ms, "its time is", self.now_ms)
        ends = {
            TopicPartition(partition_input.topic, key.partition): LogEnds(
                partition_input.log_start_offset, partition_input.end_offset
            )
            for key, partition_input in partition_inputs.items()
        }
        for at, (log_start, end, _) in ends.items():
            known = self.ends.get(at, set()) | {LogEnds(0, 0)}
            demand(any(one[0] == log_start and one[1] >= end for one in known), at, "has no such ends")
        courses, lost = self.learned or (self.world.ledger.courses(), frozenset(self.world.ledger.lost))
        self.decided = Decided(
            run_id=self.run_id,
            member_id=self.store.member_id,
            now_ms=now_ms,
            ends=ends,
            said=self.said,
            said_ms=self.heard_ms,
            stopping=self.closing,
            gives_back=self.closing and not self.engine.has_calls,
            forgiven=frozenset(self.forgiven),
            has_target=self.has_target,
            courses=courses,
            lost=lost,
            looked=self.looked,
            config=self.config,
            pauses=self.pauses,
        )

    def has_decided(
        self, partition_inputs: Mapping[SharePartitionKey, PartitionInput], outcomes: Sequence[PartitionOutcome]
    ) -> None:
        """What it is about to answer to clients."""
        assert self.decided is not None
        asked = {
            TopicPartition(one.summary.topic, one.key.partition): tuple(
                Asked(*pair) for pair in zip(partition_inputs[one.key].asked, one.responses, strict=True)
            )
            for one in outcomes
            if one.responses
        }
        self.decided = replace(self.decided, asked=asked)

    def answers_clients(self, answers: Sequence[ClientAnswer]) -> None:
        """Nobody is told of an effect that no commit has."""
        for response in (one for answer in answers for found in answer.responses.values() for one in found):
            if response.acquired or response.ended:
                decided, batch_id = self.decided, self.batch_id
                is_there = (self.run_id, batch_id) in self.world.ledger.counted
                demand(decided is not None and is_there, self.run_id, "answers what is not in the log:", response)

    def answers_members(self, answer: GroupAnswer) -> None:
        """Members are told of nothing that no commit has."""
        stored = self.world.state_log.group(self.world.group_id, self.looked_at)
        demand(stored == answer.group, self.run_id, "tells members of", answer.group, "not", stored)

    def enters(self, one: At, count: int) -> None:
        """Its handler is entered."""
        self.world.ledger.enter(self.run_id, self.held.get(one), one, count)

    def hears(
        self, answers: Mapping[At, tuple[Acquisition, Said]], fault: HandlerError | TopicUnreachableError | None
    ) -> None:
        """Of its delivery. With a sink, answers without their output are none. In an outage they have it."""
        self.heard_ms = self.now_ms
        if isinstance(fault, HandlerError) and self.world.scenario.has_sink:
            self._forgive(answers)
        else:
            self.answers = answers

    def _forgive(self, answers: Mapping[At, tuple[Acquisition, Said]]) -> None:
        self.forgiven |= {held for held, _ in answers.values()}

    # ------------------------------------------------------------------------------------------------- interference

    def point(self, name: str, refusal: type[Exception] | None, *, rare: int = 1) -> None:
        """A moment at which the world may interfere; ``rare``: how many such moments share the rate of one."""
        chance = self.world.interferes(rare)
        if chance == "die":
            self.note("dies:", name)
            raise Death
        if chance == "sleep":
            self.note("sleeps:", name)
            self.sleep()
            self.note("wakes:", name)
        elif chance == "refuse" and refusal is not None:
            self.note("is refused:", name)
            self.faulted = True
            raise refusal(name)

    def must_own(self, effect: str) -> None:
        """An effect is only for the owner of the group, as of its last look at the log; and it looks after appends."""
        owner = self.world.ledger.owned_by(self.looked_at)
        demand(owner == self.run_id, self.run_id, effect, "though it has seen that", owner, "owns the group")
        written = max((held.version for held in self.held.values()), default=-1)
        demand(self.looked_at >= written, self.run_id, effect, "before it has looked")

    def _letters_hook(self, moment: str) -> None:
        if moment == "before dead letters":
            self.must_own("writes dead letters")
        self.point(moment, DeadLetterError)

    def _output_hook(self, moment: str) -> None:
        if moment == "before journal":
            self.must_own("puts out")
        if moment == "after output":
            if self.left_rows:
                self.answers, self.left_rows, self.held_rows = self.left_rows, {}, None
            held = {one: found[0] for one, found in self.answers.items()}
            answers = {one: answer for one, (_, answer) in self.answers.items()}
            self.world.ledger.put_out(held, answers, stopping=self.closing)
            self.point(moment, None)
            return
        if moment == "before reading back":
            self.point(moment, OutputUnknownError)
            return
        self.give_way(moment, _OFTEN.get(moment, 0.0))
        try:
            self.point(moment, SinkError)
        except SinkError:
            has_workers = not self.world.is_late
            if has_workers and moment == "before journal" and self.world.rng.random() < 0.5:
                self._output_is_lost()
                raise OutputLostError("the executor is gone") from None
            if moment in ("before journal", "before output"):
                self._forgive(self.answers)
                self.answers = {}
            raise

    def give_way(self, moment: str, chance: float) -> None:
        """Sleep, where what others do meanwhile is of interest."""
        if self.world.dawdles(chance):
            self.note("takes its time:", moment)
            self.sleep()

    def _output_is_lost(self) -> None:
        """An executor has died with the rows of what was accepted, for a reason that is not known."""
        if self.left_rows:
            for held, _ in self.rows_to_hold.values():  # nobody can take them over any more
                held.is_kept = False
            self.answers, self.left_rows, self.held_rows = self.said, {}, None
            return
        lost = Said(Loss.AFTER_HANDLER, "the executor is gone")
        self.answers = {
            one: (held, lost if said.kind == AcknowledgeType.ACCEPT else said)
            for one, (held, said) in self.answers.items()
        }

    def sleep(self) -> None:
        """Others go on meanwhile."""
        self.process.sleep()

    def note(self, *what: object) -> None:
        """Into the trace."""
        self.world.note(self.run_id, *what)

    @property
    def ended_well(self) -> bool:
        """Did it end in a way that the world has caused: fenced by a successor, refused something, killed, done?"""
        fault = self.process.fault
        if isinstance(fault, FencedError):
            return self.world.ledger.owner[1] != self.run_id
        return fault is None or (self.faulted and isinstance(fault, ShareError | OSError))
