"""A gateway in the play: the real service for share consumers, without a wire, and the queue to its engine.

It ends with the process of its engine. One whose engine has ended by a fault may begin another, as a host does, and one
that was replaced may go on listening: clients that have not noticed ask it still.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from share_spark.coordinator.group import Heartbeat
from share_spark.engine.batch_reader import RecordBatch
from share_spark.engine.client_asks import ClientAnswer, ClientAsk, GroupAnswer, GroupAsk
from share_spark.gateway.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH, Api
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.group_topics import FixedTopics, GroupTopics
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.served_groups import OneGroup, ServedGroup
from share_spark.gateway.share_service import ShareService
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ShareError, TopicUnreachableError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from tests.simulation.facts import demand

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine
    from tests.simulation.play import SimulatedWorld


class SimulatedQueue(ClientQueue):
    """The queue, with points between its effects. ``refusals``: how many engines have ended."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config)
        self.engine: SimulatedEngine | None = None
        self.refusals = 0

    def take(self) -> Sequence[ClientAsk]:
        assert self.engine is not None
        self.engine.point("before asks are taken", None)
        taken = super().take()
        if taken:
            self.engine.point("after asks are taken", None)
        return taken

    def answer(self, answers: Sequence[ClientAnswer], changed: Collection[SharePartitionKey]) -> None:
        """In an order that is the same in each play."""
        assert self.engine is not None
        if answers:
            self.engine.point("before clients are answered", None)
            self.engine.answers_clients(answers)
        super().answer(answers, sorted(changed))
        if answers:
            self.engine.point("after clients are answered", None)

    def answer_group(self, answer: GroupAnswer) -> None:
        assert self.engine is not None
        self.engine.point("before members are answered", None)
        self.engine.answers_members(answer)
        super().answer_group(answer)

    def take_group(self) -> GroupAsk | None:
        assert self.engine is not None
        taken = super().take_group()
        if taken is not None:
            self.engine.point("after heartbeats are taken", None)
        return taken

    def refuse(self, fault: ShareError | None) -> None:
        self.refusals += 1
        super().refuse(fault)


class WrittenBatch(NamedTuple):
    """A record batch as it was written, both offsets inclusive. ``is_control``: it has no record."""

    first: int
    last: int
    is_control: bool = False


class Batches:
    """A ``BatchReader`` of the log in memory: record batches as they were written. The content of each is its first and
    last offset."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world

    def read(self, at: TopicPartition, offset: int, *_: int) -> Sequence[RecordBatch]:
        world = self.world
        if not world.is_calm and world.rng.random() < world.scenario.refusal_rate:
            raise TopicUnreachableError(f"{at} does not answer")
        log_start, end, _ = world.topics.log_ends(at.topic)[at.partition]
        written = world.crowd.batches.get(at, [])
        begin = bisect_left(written, max(offset, log_start), key=lambda batch: batch.last)
        kept = [batch for batch in written[begin:] if self._is_kept(at, batch, end)]
        return [
            RecordBatch(batch.first, batch.last, f"{batch.first} {batch.last}".encode(), batch.is_control)
            for batch in kept[: world.rng.randint(1, 4)]
        ]

    def _is_kept(self, at: TopicPartition, batch: WrittenBatch, end: int) -> bool:
        """Is it still in the log? Compaction leaves the last batch there, though it may be empty."""
        offsets = range(batch.first, batch.last + 1)
        return batch.is_control or batch.last + 1 == end or any(self.world.record((at, one)) for one in offsets)


class Stored(NamedTuple):
    """What the service asks of the groups that are stored."""

    config: GroupConfig


class SimulatedGateway:
    """A process that listens. ``is_gone``: it has ended."""

    def __init__(self, world: SimulatedWorld, number: int) -> None:
        self.world, self.name, self.queue = world, f"gateway{number}", SimulatedQueue(world.config)
        self.is_gone = False
        catalog = TopicCatalog(world.topics)  # type: ignore[arg-type]
        catalog.of(world.topic_names)
        topics = GroupTopics(FixedTopics(tuple(world.topic_names)), catalog)
        self.group = ServedGroup.of(
            world.group_id,
            self.queue,
            topics,
            Batches(world),
            clock=lambda: world.time_ms,
        )
        self.shares = ShareService(
            OneGroup(group_id=world.group_id, group=self.group, stored=cast("Any", Stored(world.config))), catalog
        )
        self.group.names_of({world.topics.describe(name).topic_id: name for name in world.topic_names})
        self._asked: dict[int, asyncio.Task[Any]] = {}

    def asked(self, connection: int, request: Any) -> asyncio.Task[Any]:
        """A request has come over a connection, which has one at a time."""
        if isinstance(request, Heartbeat):
            return self._task(connection, self.group.members.heartbeat(request))
        api = SHARE_FETCH if request.__api_key__ == SHARE_FETCH.key else SHARE_ACKNOWLEDGE
        context = _context(connection, api)
        answer = self.shares.fetch if api is SHARE_FETCH else self.shares.acknowledge
        return self._task(connection, cast("Awaitable[Any]", answer(context, request)))

    def close(self, connection: int) -> None:
        """A connection ends, whoever has closed it."""
        task = self._asked.pop(connection, None)
        if task is None or task.done():
            self.world.crowd.loop.call_soon(self.shares.closed, connection)
        else:
            task.add_done_callback(lambda _: self.shares.closed(connection))
            task.cancel()

    def die(self) -> None:
        """With its process: nothing that was begun goes on."""
        self.is_gone = True
        self.world.crowd.gateways.remove(self)
        members = self.group.members
        for part in (*self._asked.values(), *self.shares._releases, members._asking, members._timer):
            if part is not None:
                part.cancel()

    def _task(self, connection: int, answer: Awaitable[Any]) -> asyncio.Task[Any]:
        before = self._asked.get(connection)
        demand(before is None or before.done(), self.name, "two requests at a time over", connection)
        task: asyncio.Task[Any] = self.world.crowd.loop.create_task(cast("Any", answer))
        self._asked[connection] = task
        return task


def _context(connection: int, api: Api) -> RequestContext:
    return RequestContext(connection, "test", "127.0.0.1", api.key, api.versions[-1])
