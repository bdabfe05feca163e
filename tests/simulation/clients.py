"""Outside members in the play: what they ask, and whether what they are told is true.

Each goes on by steps, as the scheduler has it: it connects to a gateway, also to one that was replaced, sends a request
and hears the answer. It acknowledges late, twice, by a session that nobody knows, or what is not its own; it goes to
another gateway with what it holds, leaves, or ends without a word. What it does with a record is what a handler would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from share_spark.coordinator.group import Heartbeat, HeartbeatResponse
from share_spark.kafka.topic_ids import topic_id_of
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import TopicPartition, client_owner
from share_spark.model.requests import AcknowledgeType
from share_spark.partition.kafka_modes import TypedBatch
from share_spark.partition.kafka_modes.requests import RENEW
from tests.simulation.facts import Acquisition, At, Session, demand
from tests.simulation.outside import holds_still
from tests.support.share_requests import CLOSE, Named, Wanted, share_acknowledge, share_fetch

if TYPE_CHECKING:
    from tests.simulation.gateway import SimulatedGateway
    from tests.simulation.play import SimulatedWorld

_SESSION_ERRORS = (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
_REFUSALS = (
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_MEMBER_ERRORS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
)
_connections = count(1)


class Answer(NamedTuple):
    """What it says of a record. ``attempt``: the one that it was told of; None: it was told of none."""

    one: At
    kind: int
    attempt: Acquisition | None


@dataclass(slots=True)
class Sent:
    """A request under way. ``refusals``: how many engines of the gateway had ended then; -1: it had none."""

    task: asyncio.Task[Any]
    session: Session
    answers: Sequence[Answer] = ()
    refusals: int = 0


@dataclass(slots=True)
class Holding:
    """A record as it was told of it. ``kind``: its answer; None: it never gives one."""

    attempt: Acquisition
    kind: int | None
    is_said: bool = False


@dataclass(slots=True)
class SimulatedClient:
    """``epoch``: of the next request of its session. ``said``: acknowledgements that it may send again."""

    world: SimulatedWorld
    name: str
    gateway: SimulatedGateway | None = None
    connection: int = 0
    session: Session = field(default_factory=Session)
    epoch: int = 0
    member_epoch: int = 0
    held: dict[At, Holding] = field(default_factory=dict)
    said: list[Sequence[Answer]] = field(default_factory=list)
    sent: Sent | None = None
    until_ms: int = 0

    @property
    def owner(self) -> str:
        """The name under which it holds records."""
        return client_owner(self.name)

    # ------------------------------------------------------------------------------------------------- its life

    def step(self) -> None:
        """Whoever lets it go on."""
        if self.world.time_ms < self.until_ms and not self.world.is_calm:
            return
        if self.gateway is None or self.gateway.is_gone or self._moves():
            self._connect()
        elif self.sent is None:
            self._act()
        elif self.sent.task.done():
            sent, self.sent = self.sent, None
            self._hear(sent)
        elif not self.world.is_calm and self.world.rng.random() < 0.1:
            self._lose_patience()

    def end(self) -> None:
        """With a word or without; then the other side may not notice."""
        self.note("ends")
        self.session.is_over = True
        if self.gateway is not None and not self.gateway.is_gone and self.world.rng.random() < 0.6:
            self.gateway.close(self.connection)

    def _moves(self) -> bool:
        """In the end all go where the group is."""
        return self.world.is_calm and self.gateway is not self.world.crowd.gateways[-1]

    def _connect(self) -> None:
        """To any gateway; its session may be known there, or not."""
        rng, world = self.world.rng, self.world
        self._disconnect(is_noticed=True)
        if not world.crowd.gateways:
            return
        self.gateway = (
            world.crowd.gateways[-1] if world.is_calm or rng.random() < 0.7 else rng.choice(world.crowd.gateways)
        )
        self.connection = next(_connections)
        if rng.random() < 0.3:
            self.epoch = 0
        self.note("connects to", self.gateway.name, "with epoch", self.epoch)

    def _disconnect(self, *, is_noticed: bool) -> None:
        """What was sent may be decided nevertheless."""
        self.session.is_over = True
        if self.sent is not None:
            self.said.append(self.sent.answers)
        if self.gateway is not None and not self.gateway.is_gone and is_noticed:
            self.gateway.close(self.connection)
        self.gateway, self.sent = None, None

    def _lose_patience(self) -> None:
        """It breaks off. The gateway may hear of it later, or never."""
        is_noticed = self.world.rng.random() < 0.5
        self.note("breaks off", "" if is_noticed else "unnoticed")
        gateway = self.gateway
        self._disconnect(is_noticed=is_noticed)
        if gateway is not None and not gateway.is_gone and self.world.rng.random() < 0.7:
            self.gateway, self.connection, self.epoch = gateway, next(_connections), 0

    def _act(self) -> None:
        rng, world = self.world.rng, self.world
        chances = [
            (6.0, self._fetch),
            (2.0, self._acknowledge),
            (1.0, self._beat),
        ]
        if not world.is_calm:
            lock_ms = world.config.lock_duration_ms
            chances += [
                (0.6, self._renew),
                (0.8, self._say_again),
                (0.2, self._say_of_others),
                (0.2, self._mistake_epoch),
                (0.4, self._close_session),
                (0.2, lambda: self._disconnect(is_noticed=True)),
                (0.3, lambda: self._sleep(rng.randint(1, 2 * lock_ms))),
                (0.1, self._leave),
            ]
        weights, acts = zip(*chances, strict=True)
        rng.choices(acts, weights)[0]()

    def _sleep(self, ms: int) -> None:
        self.note("sleeps")
        self.until_ms = self.world.time_ms + ms

    # ---------------------------------------------------------------------------------------------- what it asks

    def _fetch(self) -> None:
        rng = self.world.rng
        answers = self._some_answers() if self.epoch > 0 and rng.random() < 0.7 else []
        self._share_fetch(self.epoch, answers)

    def _acknowledge(self) -> None:
        if self.epoch > 0 and (answers := self._some_answers()):
            self._share_acknowledge(self.epoch, answers)

    def _renew(self) -> None:
        held = [one for one in self.held if not self.held[one].is_said]
        chosen = sorted(self.world.rng.sample(held, k=min(len(held), 5)))
        if chosen and self.epoch > 0:
            self._share_acknowledge(self.epoch, [Answer(one, RENEW, self.held[one].attempt) for one in chosen])

    def _say_again(self) -> None:
        """What it has said before, though that may have been taken."""
        if self.said and self.epoch > 0:
            answers = [one for one in self.world.rng.choice(self.said[-5:]) if one.kind != RENEW]
            if answers:
                self._share_acknowledge(self.epoch, answers)

    def _say_of_others(self) -> None:
        """What somebody else holds, or nobody."""
        world, rng = self.world, self.world.rng
        known = sorted(world.ledger.acquisitions)
        if known and self.epoch > 0:
            at, offset = rng.choice(known)
            mine = self.held.get((at, offset))
            kind = mine.kind if mine is not None and mine.kind is not None else AcknowledgeType.RELEASE
            self._share_acknowledge(self.epoch, [Answer((at, offset), kind, mine.attempt if mine else None)])

    def _mistake_epoch(self) -> None:
        self._share_fetch(self.epoch + self.world.rng.choice([1, 5]), self._some_answers())

    def _close_session(self) -> None:
        if self.world.rng.random() < 0.5:
            self._share_acknowledge(CLOSE, self._some_answers())
        else:
            self._share_fetch(CLOSE, self._some_answers())

    def _leave(self) -> None:
        self._send(self._heartbeat(-1))

    def _beat(self) -> None:
        self._send(self._heartbeat(self.member_epoch))

    def _heartbeat(self, epoch: int) -> Heartbeat:
        return Heartbeat(
            member_id=self.name,
            member_epoch=epoch,
            client_id="test",
            client_host="127.0.0.1",
            subscribed_topic_names=tuple(self.world.topic_names) if epoch == 0 else None,
        )

    def _some_answers(self) -> list[Answer]:
        """Some of those that it has not given yet."""
        ready = [one for one, holding in self.held.items() if holding.kind is not None and not holding.is_said]
        if self.world.rng.random() < 0.3:
            ready = self.world.rng.sample(ready, k=self.world.rng.randint(0, len(ready)))
        found = []
        for one in sorted(ready):
            holding = self.held[one]
            holding.is_said = True
            assert holding.kind is not None
            found.append(Answer(one, holding.kind, holding.attempt))
        return found

    def _share_fetch(self, epoch: int, answers: Sequence[Answer]) -> None:
        rng = self.world.rng
        wanted = Wanted(
            max_wait_ms=rng.choice([0, 100, 500]),
            max_bytes=rng.choice([10, 1 << 20]),
            max_records=rng.choice([1, 3, 20, 500]),
            batch_size=rng.choice([1, 3, 500]),
            acquire_mode=rng.choice([0, 1]),
        )
        everywhere = [
            (topic.topic_id, number)
            for topic in map(self.world.topics.describe, self.world.topic_names)
            for number in topic.partitions
        ]
        named: dict[tuple[str, int], Sequence[TypedBatch]] = {
            at: () for at in everywhere if epoch == 0 or rng.random() < 0.1
        }
        self._begin(epoch)
        request = share_fetch(self.world.group_id, self.name, epoch, {**named, **self._batches(answers)}, wanted)
        self._send(request, answers)

    def _share_acknowledge(self, epoch: int, answers: Sequence[Answer]) -> None:
        self._begin(epoch)
        self._send(share_acknowledge(self.world.group_id, self.name, epoch, self._batches(answers)), answers)

    def _begin(self, epoch: int) -> None:
        """A request of this epoch."""
        if epoch == 0:  # over this connection: it ends with no other
            self.session.is_over = True
            self.session = Session()
        if epoch == CLOSE:
            self.session.is_over = True
            self.epoch = 0
        elif epoch == self.epoch:
            self.epoch += 1

    def _batches(self, answers: Iterable[Answer]) -> Named:
        """By partition; consecutive offsets together, or not."""
        found: dict[tuple[str, int], list[TypedBatch]] = {}
        is_joined = self.world.rng.random() < 0.7
        for (at, offset), kind, _ in sorted(answers, key=lambda answer: answer.one):
            batches = found.setdefault((self.world.topics.describe(at.topic).topic_id, at.partition), [])
            before = batches[-1] if batches else None
            if before is not None and before.last_offset >= offset:
                continue
            if is_joined and before is not None and before.last_offset + 1 == offset:
                batches[-1] = TypedBatch(before.first_offset, offset, (*before.types, kind))
            else:
                batches.append(TypedBatch(offset, offset, (kind,)))
        return {
            at: [batch._replace(types=batch.types[:1]) if len(set(batch.types)) == 1 else batch for batch in batches]
            for at, batches in found.items()
        }

    def _send(self, request: Any, answers: Sequence[Answer] = ()) -> None:
        assert self.gateway is not None
        if answers:
            self.note("says of", *(f"{at}:{offset}={kind}" for (at, offset), kind, _ in answers))
        task = self.gateway.asked(self.connection, request)
        queue = self.gateway.queue
        self.sent = Sent(task, self.session, answers, queue.refusals if queue.is_open else -1)

    # --------------------------------------------------------------------------------------------- what it hears

    def _hear(self, sent: Sent) -> None:
        found = sent.task.result()
        if isinstance(found, HeartbeatResponse):
            self._hear_of_group(found)
            return
        error = ErrorCode(found.error_code)
        if sent.answers:
            self.said.append(sent.answers)
        if error:
            demand(error in _SESSION_ERRORS, self.name, "is refused by", error)
            self.note("is refused by", error.name)
            if error is ErrorCode.SHARE_SESSION_NOT_FOUND:
                self._check_taken(sent)
            self.epoch = 0
            return
        if hasattr(found, "topics"):
            told = {at: ErrorCode(one.acknowledge_error_code) for at, one in self._each(found.topics)}
        else:
            told = {at: ErrorCode(one.error_code) for at, one in self._each(found.responses)}
        self._hear_of_answers(sent, told)
        for at, one in self._each(getattr(found, "topics", ())):
            self._hear_of_records(sent, at, one)

    def _each(self, topics: Iterable[Any]) -> Iterable[tuple[TopicPartition, Any]]:
        names = {self.world.topics.describe(name).topic_id: name for name in self.world.topic_names}
        for topic in topics:
            for one in topic.partitions:
                number = one.partition if hasattr(one, "partition") else one.partition_index
                yield TopicPartition(names[topic_id_of(topic.topic_id)], number), one

    def _hear_of_answers(self, sent: Sent, told: Mapping[TopicPartition, ErrorCode]) -> None:
        """A success is in the log, whoever has the group now."""
        for one, kind, attempt in sent.answers:
            demand(one[0] in told, self.name, "is not told what became of", one)
            error = told[one[0]]
            demand(not error or error in _REFUSALS, self.name, "is told", error, "of", one)
            if not error and kind != RENEW and attempt is not None:
                ledger = self.world.ledger
                is_over = attempt.is_gone or one in ledger.unseen or one[1] < ledger.windows[one[0]].start
                is_true = kind in (attempt.answer, self._last_answer(one)) or is_over
                demand(is_true, self.name, "is told that", one, "was taken as", kind, "but it was", attempt.answer)
            if kind != RENEW and one in self.held and self.held[one].attempt is attempt:
                del self.held[one]
        if any(told[one[0]] for one, *_ in sent.answers):
            self._check_taken(sent)

    def _last_answer(self, one: At) -> int | None:
        """What was taken of its last attempt: what it says late counts for that."""
        attempt = self.world.ledger.acquisitions.get(one)
        return attempt.answer if attempt is not None and attempt.member_id == self.owner else None

    def _check_taken(self, sent: Sent) -> None:
        """What it holds and has acknowledged is taken, whether its session is known or not, if the owner of the group
        has heard it."""
        assert self.gateway is not None
        queue, ledger = self.gateway.queue, self.world.ledger
        is_owner = queue.engine is not None and ledger.owner[1] == queue.engine.run_id
        if not queue.is_open or queue.refusals != sent.refusals or not is_owner:
            return
        for at in {one[0] for one, *_ in sent.answers}:
            answers = [found for found in sent.answers if found.one[0] == at and found.kind != RENEW]
            held = [
                found.attempt is not None
                and holds_still(ledger, found.one, found.attempt, ledger.windows[at].cells.get(found.one[1]))
                and found.one[1] >= ledger.windows[at].start
                and found.one not in ledger.unseen
                for found in answers
            ]
            demand(not held or not all(held), self.name, "holds what it has acknowledged:", answers)

    def _hear_of_records(self, sent: Sent, at: TopicPartition, found: Any) -> None:
        ledger, world = self.world.ledger, self.world
        covered = {
            offset
            for content in found.records
            for first, last in [map(int, content.split())]
            for offset in range(first, last + 1)
        }
        for first, last, delivery_count in found.acquired:
            self.note("gets", f"{at}:{first}..{last}", "count", delivery_count)
            for offset in range(first, last + 1):
                one = (at, offset)
                attempt = ledger.given.get((one, self.owner, delivery_count))
                is_cut = at in ledger.cut or one in ledger.unseen
                demand(attempt is not None or is_cut, self.name, "is told of", one, "which the log does not give it")
                is_there = offset in covered or world.record(one) is None or is_cut
                demand(is_there, self.name, "is told of", one, "without its content")
                if attempt is not None:
                    demand(attempt.session is None, self.name, "is told twice of", one)
                    attempt.session = sent.session
                    self.held[one] = Holding(attempt, self._what_to_say(one, delivery_count))

    def _what_to_say(self, one: At, delivery_count: int) -> int | None:
        """As its handler would; what ends a worker there keeps this member from an answer."""
        world = self.world
        if world.record(one) is None or one not in world.behaviours:
            return AcknowledgeType.GAP
        kind = world.behaviour(one, delivery_count)
        if kind in ("hang", "kill worker", "kill engine"):
            return None
        return {"accept": AcknowledgeType.ACCEPT, "reject": AcknowledgeType.REJECT}.get(kind, AcknowledgeType.RELEASE)

    def _hear_of_group(self, found: HeartbeatResponse) -> None:
        demand(not found.error or found.error in _MEMBER_ERRORS, self.name, "as member is told", found)
        if found.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH) or found.member_epoch < 0:
            self.member_epoch = 0
        elif not found.error:
            self.member_epoch = found.member_epoch
        if found.error is ErrorCode.NOT_COORDINATOR:
            self._disconnect(is_noticed=True)

    def note(self, *what: object) -> None:
        """Into the trace."""
        self.world.note(self.name, *what)
