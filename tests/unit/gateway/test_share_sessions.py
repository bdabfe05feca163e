"""What members hold and say when their session ends, is not known, or is replaced; and fetches that hardly wait."""

from __future__ import annotations

import asyncio

import pytest

from share_spark.model.errors import ErrorCode
from share_spark.model.requests import AcknowledgeType
from share_spark.partition.kafka_modes import TypedBatch
from tests.support.client_world import ClientWorld
from tests.support.share_gateway import ShareGateway, acquired
from tests.support.share_requests import Named, Wanted

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ClientWorld:
    """Its deliveries have no room, as those of a group without a handler."""
    monkeypatch.setattr("tests.twins.memory_delivery.InMemoryDelivery.room", lambda *_: 0)
    return ClientWorld()


def said(gateway: ShareGateway, first: int, last: int, kind: int = ACCEPT) -> Named:
    return {(gateway.topic_id, 0): [TypedBatch(first, last, (kind,))]}


@pytest.mark.parametrize("by_fetch", [True, False])
def test_after_a_takeover_the_holder_is_heard_though_its_session_is_unknown(world: ClientWorld, by_fetch: bool) -> None:
    async def play() -> None:
        world.produce(10)
        before = ShareGateway(world)
        (fetched,) = await before.answered(before.fetch(1, "a", 0))
        assert acquired(fetched) == [(0, 9, 1)]
        after = ShareGateway(world)
        ask = after.fetch if by_fetch else after.acknowledge
        (answer,) = await after.answered(ask(1, "a", 1, said(after, 0, 7)))
        assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert world.window() == "8-10: 8-9 Q1"

    asyncio.run(play())


def test_an_unknown_session_lets_nobody_say_what_another_member_holds(world: ClientWorld) -> None:
    async def play() -> None:
        world.produce(10)
        before = ShareGateway(world)
        await before.answered(before.fetch(1, "a", 0))
        after = ShareGateway(world)
        (answer,) = await after.answered(after.acknowledge(1, "b", 1, said(after, 0, 9)))
        assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert world.window() == "0-10: 0-9 Q1"

    asyncio.run(play())


def test_an_answer_that_nobody_takes_gives_back_its_own_records_alone(world: ClientWorld) -> None:
    """A client breaks off unnoticed, and opens its session anew: both fetches get records in one micro-batch."""

    async def play() -> None:
        gateway = ShareGateway(world)
        unnoticed = gateway.fetch(1, "a", 0, wanted=Wanted(max_records=5, max_wait_ms=5_000))
        await asyncio.sleep(0.01)
        anew = gateway.fetch(2, "a", 0, wanted=Wanted(max_records=5, max_wait_ms=5_000))
        await asyncio.sleep(0.01)
        world.produce(10)
        refused, answer = await gateway.answered(unnoticed, anew)
        assert refused.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert acquired(answer) == [(5, 9, 1)]
        await gateway.answered(asyncio.create_task(asyncio.sleep(0.02)))
        assert world.window() == "0-10: 0-4 V1, 5-9 Q1"

    asyncio.run(play())


def test_what_a_session_held_is_not_given_back_after_another_was_opened(world: ClientWorld) -> None:
    """Its connection breaks while no engine is there; the next engine hears of a new session first."""

    async def play() -> None:
        world.produce(5)
        gateway = ShareGateway(world)
        await gateway.answered(gateway.fetch(1, "a", 0))
        gateway.queue.refuse(None)
        gateway.shares.closed(1)
        await asyncio.sleep(0.01)
        world.produce(5)
        gateway.open()
        (answer,) = await gateway.answered(gateway.fetch(2, "a", 0))
        assert acquired(answer) == [(5, 9, 1)]
        await asyncio.sleep(0.15)
        gateway.engine.run()
        assert world.window() == "0-10: 0-9 Q1"

    asyncio.run(play())


def test_fetches_that_wait_for_less_than_a_micro_batch_takes_get_records(world: ClientWorld) -> None:
    async def play() -> None:
        world.produce(5)
        gateway = ShareGateway(world)
        found = []
        for epoch in range(5):
            task = gateway.fetch(1, "a", epoch, wanted=Wanted(max_wait_ms=0))
            (answer,) = await gateway.answered(task)
            found += acquired(answer)
            await asyncio.sleep(0.01)
        assert found == [(0, 4, 1)]

    asyncio.run(play())
