"""A gateway without a wire: sessions, clients and their queue to an engine, on a state that outlives them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from share_spark.engine.batch_reader import RecordBatch
from share_spark.gateway.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.group_topics import FixedTopics, GroupTopics
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.served_groups import OneGroup, ServedGroup
from share_spark.gateway.share_service import ShareService
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.model.config import GroupConfig
from share_spark.model.ids import TopicPartition
from tests.support.client_world import ClientWorld
from tests.support.engine_world import GROUP, TOPIC
from tests.support.share_requests import Named, Wanted, share_acknowledge, share_fetch
from tests.twins.memory import InMemoryTopicLog


class Stored(NamedTuple):
    """What the service asks of the groups that are stored."""

    config: GroupConfig


class Batches(NamedTuple):
    """A ``BatchReader`` of a log in memory: batches of five records."""

    log: InMemoryTopicLog

    def read(self, at: TopicPartition, offset: int, *_: int) -> Sequence[RecordBatch]:
        _, end, _ = self.log.log_ends(at.topic)[at.partition]
        starts = range(offset - offset % 5, end, 5)
        return [RecordBatch(first, min(first + 4, end - 1), b"content") for first in starts]


class ShareGateway:
    """In the present event loop. ``run``: a micro-batch of its engine."""

    def __init__(self, world: ClientWorld) -> None:
        self.world, self.queue = world, ClientQueue(world.config)
        self.topic_id = world.topics.describe(TOPIC).topic_id
        catalog = TopicCatalog(world.topics)  # type: ignore[arg-type]
        catalog.of([TOPIC])
        topics = GroupTopics(FixedTopics((TOPIC,)), catalog)
        group = ServedGroup.of(GROUP, self.queue, topics, Batches(world.topics), clock=world.clock)
        served = OneGroup(group_id=GROUP, group=group, stored=cast("Any", Stored(world.config)))
        self.shares, self.clients = ShareService(served, catalog), group.clients
        self.open()

    def open(self) -> None:
        """Begin an engine."""
        self.world.clients = self.queue  # type: ignore[assignment]
        self.engine = self.world.engine()
        self.queue.open(self.engine.store.group)

    def fetch(
        self, connection: int, member: str, epoch: int, acknowledged: Named | None = None, wanted: Wanted | None = None
    ) -> asyncio.Task[Any]:
        """A request that has begun. It names the topic's only partition where its session is opened."""
        named = {(self.topic_id, 0): ()} if epoch == 0 else {}
        request = share_fetch(GROUP, member, epoch, {**named, **(acknowledged or {})}, wanted)
        context = RequestContext(connection, "test", "127.0.0.1", SHARE_FETCH.key, SHARE_FETCH.versions[-1])
        return asyncio.create_task(self.shares.fetch(context, request))

    def acknowledge(self, connection: int, member: str, epoch: int, acknowledged: Named) -> asyncio.Task[Any]:
        request = share_acknowledge(GROUP, member, epoch, acknowledged)
        version = SHARE_ACKNOWLEDGE.versions[-1]
        context = RequestContext(connection, "test", "127.0.0.1", SHARE_ACKNOWLEDGE.key, version)
        return asyncio.create_task(self.shares.acknowledge(context, request))

    async def answered(self, *tasks: asyncio.Task[Any], most: int = 200) -> list[Any]:
        """The answers; micro-batches run until they are there."""
        for _ in range(most):
            await asyncio.sleep(0.001)
            if all(task.done() for task in tasks):
                return [task.result() for task in tasks]
            self.engine.run()
        raise AssertionError("no answer")


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    """What a ShareFetch got of the partition."""
    return [tuple(one) for topic in answer.topics for found in topic.partitions for one in found.acquired]
