"""Heartbeats and the engine: what is asked together, what is answered at once, and sessions that end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from share_spark.coordinator.group import HeartbeatResponse
from share_spark.gateway import group_members
from share_spark.gateway.client_queue import ClientQueue
from share_spark.model.errors import ErrorCode, FencedError
from tests.support.engine_world import TOPIC
from tests.support.member_world import OTHER, SESSION_MS, GatewayLife, MemberWorld, heartbeat


def epochs(answers: Sequence[HeartbeatResponse | None]) -> list[int]:
    assert all(answer is not None and answer.error is ErrorCode.NONE for answer in answers), answers
    return [answer.member_epoch for answer in answers if answer is not None]


async def turns() -> None:
    """Let all that waits for nothing but its turn go on."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_members_that_join_together_share_a_commit() -> None:
    async def play() -> None:
        world = MemberWorld()
        life = GatewayLife(world)
        life.run()
        version = world.version
        answers = await life.beat([heartbeat(f"m{number}", 0, TOPIC, OTHER) for number in range(20)])
        assert epochs(answers) == [1] * 20
        assert world.version == version + 1
        assert {record.key.kind.value for record in world.state_log.commits[-1].group_records} == {
            10,
            11,
            12,
            13,
            14,
            15,
        }

    asyncio.run(play())


def test_members_and_share_partitions_are_in_one_append() -> None:
    async def play() -> None:
        world = MemberWorld()
        life = GatewayLife(world)
        epochs(await life.beat([heartbeat("m1", 0, TOPIC)]))
        (commit,) = [one for one in world.state_log.commits if one.kind == "records"]
        assert len(commit.records) == 4
        assert commit.group_records

    asyncio.run(play())


def test_the_answer_waits_for_the_commit() -> None:
    async def play() -> None:
        life = GatewayLife(MemberWorld())
        life.run()
        asked = asyncio.create_task(life.members.heartbeat(heartbeat("m1", 0, TOPIC)))
        await turns()
        assert not asked.done()
        life.run()
        assert epochs([await asked]) == [1]

    asyncio.run(play())


def test_who_changes_nothing_is_answered_without_a_micro_batch() -> None:
    async def play() -> None:
        life = GatewayLife(MemberWorld())
        epochs(await life.beat([heartbeat("m1", 0, TOPIC)]))
        joins = asyncio.create_task(life.members.heartbeat(heartbeat("m2", 0, TOPIC)))
        assert epochs([await life.members.heartbeat(heartbeat("m1", 1))]) == [1]
        await turns()
        assert not joins.done()
        life.run()
        assert epochs([await joins]) == [2]

    asyncio.run(play())


def test_a_client_that_is_gone_before_the_answer_has_joined_all_the_same() -> None:
    async def play() -> None:
        world = MemberWorld()
        life = GatewayLife(world)
        life.run()
        asked = asyncio.create_task(life.members.heartbeat(heartbeat("m1", 0, TOPIC)))
        await turns()
        asked.cancel()
        assert epochs(await life.beat([heartbeat("m2", 0, TOPIC)])) == [2]
        assert set(world.stored().members) == {"m1", "m2"}

    asyncio.run(play())


def test_an_engine_that_ends_leaves_heartbeats_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_members, "_PATIENCE_S", 0.05)

    async def play() -> None:
        world = MemberWorld()
        life = GatewayLife(world)
        life.run()
        asked = asyncio.create_task(life.members.heartbeat(heartbeat("m1", 0, TOPIC)))
        await turns()
        life.queue.refuse(None)
        assert (await asked).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await life.members.heartbeat(heartbeat("m1", 0, TOPIC))).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert not world.stored().members

    asyncio.run(play())


def test_a_gateway_that_was_replaced_says_that_the_group_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look for the coordinator then; after the other error they stay with this one. A new engine here undoes
    it."""
    monkeypatch.setattr(group_members, "_PATIENCE_REPLACED_S", 0.05)

    async def play() -> None:
        life = GatewayLife(MemberWorld())
        life.run()
        asked = asyncio.create_task(life.members.heartbeat(heartbeat("m1", 0, TOPIC)))
        await turns()
        life.queue.refuse(FencedError("another engine has the group"))
        assert (await asked).error is ErrorCode.NOT_COORDINATOR
        assert (await life.members.heartbeat(heartbeat("m1", 0, TOPIC))).error is ErrorCode.NOT_COORDINATOR
        life.queue.open(None)
        assert epochs(await life.beat([heartbeat("m1", 0, TOPIC)])) == [1]

    asyncio.run(play())


def test_a_fault_reaches_whoever_asked_and_the_next_ask_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        world = MemberWorld()
        life = GatewayLife(world)
        life.run()

        async def fails(_requests: object) -> None:
            raise OSError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(ClientQueue, "ask_group", lambda *_: fails(None))
            with pytest.raises(OSError, match="the disk is gone"):
                await life.members.heartbeat(heartbeat("m1", 0, TOPIC))
        assert epochs(await life.beat([heartbeat("m1", 0, TOPIC)])) == [1]

    asyncio.run(play())


def test_a_member_that_is_silent_is_removed_though_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_members, "_LEAST_WAIT_S", 0.05)

    async def play() -> None:
        world = MemberWorld()
        life = GatewayLife(world, session_ms=100)
        epochs(await life.beat([heartbeat("m1", 0, TOPIC)]))
        world.clock.advance(99)
        await asyncio.sleep(0.2)
        life.run()
        assert set(world.stored().members) == {"m1"}
        world.clock.advance(1)
        await asyncio.sleep(0.2)
        life.run()
        assert not world.stored().members
        life.kill()

    asyncio.run(play())


def test_what_tools_see_has_no_member_whose_session_has_ended() -> None:
    async def play() -> None:
        world = MemberWorld()
        life = GatewayLife(world)
        epochs(await life.beat([heartbeat("m1", 0, TOPIC)]))
        assert set(life.members.present({}).members) == {"m1"}
        world.clock.advance(SESSION_MS)
        assert not life.members.present({}).members
        assert set(world.stored().members) == {"m1"}
        life.kill()

    asyncio.run(play())
