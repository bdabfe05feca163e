"""Lives of members: they join, stay, subscribe anew and leave, together and alone, while their gateway dies around any
commit. What was answered is never forgotten; what was not may be there or not; epochs never go back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.coordinator.group import Heartbeat, HeartbeatResponse
from share_spark.model.errors import ErrorCode
from tests.support.engine_world import TOPIC
from tests.support.examples import examples
from tests.support.member_world import OTHER, SESSION_MS, Fate, GatewayLife, MemberWorld, heartbeat

SUBSCRIPTIONS = ((TOPIC,), (OTHER,), (OTHER, TOPIC))
LEFT = -1


@dataclass
class Member:
    """A client, and what it was told. ``epoch`` 0: it is no member, as far as it knows. ``lost``: the epochs of its
    heartbeats since its last answer that had none. ``is_out``: it is not in the group, by an answer, or since its
    session has ended."""

    name: str
    epoch: int = 0
    highest: int = 0
    topics: tuple[str, ...] = ()
    held: object = None
    seen_ms: int = 0
    lost: list[int] = field(default_factory=list)
    is_out: bool = True

    def may_be_refused(self, *, is_due: bool) -> bool:
        """Whether an error is no fault: it has left, or its epochs passed it by, or its session has ended."""
        return is_due or self.is_out or LEFT in self.lost or len(self.lost) > 1


class Play:
    """One play with several gateways, one after the other."""

    def __init__(self, seed: int, directory: Path | None) -> None:
        self.rng = Random(seed)
        self.world = MemberWorld(directory, share__coordinator__snapshot__update__records__per__snapshot=5)
        self.members = [Member(f"m{number}") for number in range(4)]
        self.epoch = 0
        self.begin()

    def begin(self) -> None:
        """Start a gateway; the first micro-batch of its engine begins a segment."""
        self.life = GatewayLife(self.world)
        self.began_ms = self.world.clock()
        self.life.run()
        self.compare()

    async def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.1:
            self.world.clock.advance(self.rng.choice([1_000, 20_000, SESSION_MS]))
        elif draw < 0.2:
            self.life.kill()
            self.begin()
        elif draw < 0.27:
            await self.take_over()
        else:
            await self.beat()
        self.compare()

    async def beat(self) -> None:
        """Let some members send heartbeats together; perhaps the gateway dies meanwhile."""
        if self.rng.random() < 0.3:
            self.life.engine.store.fate = self.rng.choice(list(Fate))
        asking = self.rng.sample(self.members, self.rng.choice([1, 1, 2, 4]))
        requests = [self.request_of(member) for member in asking]
        before, group = self.world.version, self.world.stored()
        answers = await self.life.beat(requests, self.rng.randrange(4))
        for member, request, answer in zip(asking, requests, answers, strict=True):
            self.judge(member, request, answer)
        self.note_ended_sessions()
        if None in answers:
            self.life.kill()
            self.begin()
        elif self.world.stored() == group:
            assert self.world.version == before, "what changes nothing writes nothing"
        self.life.engine.store.fate = None

    def request_of(self, member: Member) -> Heartbeat:
        draw = self.rng.random()
        if member.epoch == 0 or draw < 0.05:
            return heartbeat(member.name, 0, *self.rng.choice(SUBSCRIPTIONS))
        if draw < 0.15:
            return heartbeat(member.name, LEFT)
        if draw < 0.3:
            return heartbeat(member.name, member.epoch, *self.rng.choice(SUBSCRIPTIONS))
        return heartbeat(member.name, member.epoch)

    def is_due(self, member: Member) -> bool:
        return self.world.clock() - max(member.seen_ms, self.began_ms) >= SESSION_MS

    def note_ended_sessions(self) -> None:
        found = self.world.stored().members
        for member in self.members:
            member.is_out = member.is_out or (self.is_due(member) and member.name not in found)

    def judge(self, member: Member, request: Heartbeat, answer: HeartbeatResponse | None) -> None:
        if answer is None:
            member.lost += [request.member_epoch, *([LEFT] if self.is_due(member) else [])]
            return
        if answer.error is not ErrorCode.NONE:
            joins = request.member_epoch == 0
            assert not joins, answer
            assert member.may_be_refused(is_due=self.is_due(member)), (member, answer)
            member.epoch, member.lost, member.is_out = 0, [], answer.error is ErrorCode.UNKNOWN_MEMBER_ID
            return
        had_lost, member.lost, found = bool(member.lost), [], self.world.stored()
        if request.member_epoch == LEFT:
            member.epoch, member.is_out = 0, True
            assert member.name not in found.members, "it is durable before the answer"
            return
        known = found.assignments[member.name]
        assert answer.member_epoch == known.member_epoch, "it is durable before the answer"
        assert answer.member_epoch >= member.highest
        member.epoch = member.highest = answer.member_epoch
        member.is_out = False
        told = found.members[member.name].subscribed_topic_names if had_lost else member.topics
        member.topics = request.subscribed_topic_names or told
        member.held = member.held if answer.assignment is None else answer.assignment
        member.seen_ms = self.world.clock()

    async def take_over(self) -> None:
        """Let another gateway take the group, while the present one goes on without knowing."""
        zombie = self.life
        self.begin()
        group = self.world.stored()
        (answer,) = await zombie.beat([heartbeat("late", 0, TOPIC)])
        assert answer is not None
        assert answer.error is ErrorCode.NOT_COORDINATOR
        assert self.world.stored() == group
        zombie.kill()

    def compare(self) -> None:
        """Compare the log with what members were told."""
        found = self.world.stored()
        assert found.epoch >= max([self.epoch, *(member.highest for member in self.members)]), "an epoch went back"
        self.epoch = found.epoch
        self.note_ended_sessions()
        assert (self.life.queue.group or found) == found
        assert set(found.members) == set(found.targets) == set(found.assignments)
        for member in self.members:
            if member.name not in found.members:
                assert member.is_out or member.lost or not member.epoch, "it was forgotten"
            elif member.lost:
                continue
            elif member.epoch:
                known = found.assignments[member.name]
                assert (known.member_epoch, known.partitions) == (member.epoch, member.held)
                assert found.members[member.name].subscribed_topic_names == member.topics
            else:
                assert not member.is_out, "it was told that it has left"

    async def end(self) -> None:
        """At last who is silent is gone, and who stays has all partitions."""
        stays, *others = self.members
        for _ in range(3):
            self.world.clock.advance(SESSION_MS // 2)
            (answer,) = await self.life.beat([heartbeat(stays.name, 0, TOPIC, OTHER)])
            assert answer is not None
        found = self.world.stored()
        assert set(found.members) == {stays.name}, others
        assert sum(map(len, found.assignments[stays.name].partitions.values())) == 6
        self.life.kill()


async def play(seed: int, directory: Path | None, steps: int) -> None:
    found = Play(seed, directory)
    for _ in range(steps):
        await found.step()
    await found.end()


@given(st.integers(0, 2**32))
@settings(max_examples=examples(150), deadline=None)
def test_what_was_answered_is_never_forgotten(seed: int) -> None:
    asyncio.run(play(seed, None, 40))


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=examples(20), deadline=None)
def test_what_was_answered_is_never_forgotten_on_delta(seed: int) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(play(seed, Path(directory, "state"), 30))
