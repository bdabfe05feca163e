"""Gateways without a wire, one after the other: members, their queue and an engine, on a state that outlives them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from share_spark.admin.state_reader import StateReader
from share_spark.coordinator.group import (
    Heartbeat,
    HeartbeatResponse,
    ShareGroup,
    Topics,
    new_group,
)
from share_spark.delta.location import Location
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.group_members import GroupMembers
from share_spark.gateway.group_topics import FixedTopics, GroupTopics
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.model.errors import ShareError
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from tests.support.engine_world import GROUP, TOPIC, Death, InMemoryGroup, memory_store
from tests.twins.memory import InMemoryShareStateStore, Moment, StateCommit

SESSION_MS = 45_000
OTHER = "audit"


class Fate(StrEnum):
    """What happens to the next commit."""

    DIES_BEFORE = "the process dies before it"
    DIES_AFTER = "the process dies after it"
    FAILS_BEFORE = "it fails"
    FAILS_AFTER = "it happens, and its outcome is not known"


class MortalStore:
    """A ShareStateStore that meets its ``fate`` at the next commit. That of a commit whose outcome is not known is only
    for those in memory."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.fate: Fate | None = None
        if isinstance(store, InMemoryShareStateStore):
            store.interrupt = self._fail_after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def commit(self) -> None:
        fate = self.fate
        if fate is not Fate.FAILS_AFTER:
            self.fate = None
        if fate is Fate.DIES_BEFORE:
            raise Death
        if fate is Fate.FAILS_BEFORE:
            raise OSError("not this time")
        self.store.commit()
        if fate is Fate.DIES_AFTER:
            raise Death

    def _fail_after(self, moment: Moment, _commit: StateCommit) -> None:
        if moment is Moment.AFTER_APPEND and self.fate is Fate.FAILS_AFTER:
            self.fate = None
            raise OSError("timed out")


class ReadyTopics(GroupTopics):
    """Topics that are looked up without a thread."""

    async def of(self, names: Iterable[str]) -> Topics:
        await asyncio.sleep(0)
        return self.catalog.of(names)


class MemberWorld(InMemoryGroup):
    """A group for clients alone. ``directory``: its state is on Delta there, None: in memory."""

    def __init__(self, directory: Path | None = None, **settings: object) -> None:
        super().__init__(partitions=4, store=self._store, **settings)
        self.topics.create_topic(OTHER, 2)
        self.location = None if directory is None else Location.parse(str(directory))

    def _store(self, world: InMemoryGroup, run_id: str) -> MortalStore:
        if self.location is None:
            return MortalStore(memory_store(world, run_id))
        log = GroupLog(spark=None, location=self.location, group_id=GROUP, run_id=run_id, notes_rows=True)
        return MortalStore(
            DeltaShareStateStore(log=log, updates_per_snapshot=self.config.updates_per_snapshot, audit=True)
        )

    def stored(self) -> ShareGroup:
        """The members and epochs, by the log alone."""
        found = self.state_log.group(GROUP) if self.location is None else self._reader.group(GROUP).members
        return found or new_group(GROUP)

    @property
    def version(self) -> int:
        """The number of the last commit."""
        return self.state_log.version if self.location is None else self._reader.log.version

    @property
    def _reader(self) -> StateReader:
        return StateReader.open(str(self.location))


class GatewayLife:
    """One gateway with one engine, in the present event loop. Drop it to kill it."""

    def __init__(self, world: MemberWorld, session_ms: int = SESSION_MS) -> None:
        world.config = replace(world.config, session_timeout_ms=session_ms)
        self.queue = ClientQueue(world.config)
        world.clients = self.queue  # type: ignore[assignment]
        self.engine = world.engine()
        self.queue.open(self.engine.store.group)
        topics = ReadyTopics(FixedTopics((TOPIC, OTHER)), TopicCatalog(world.topics))  # type: ignore[arg-type]
        self.members = GroupMembers(group_id=GROUP, queue=self.queue, topics=topics, clock=world.clock)
        self.members.present({})  # sessions begin now

    async def beat(self, requests: Sequence[Heartbeat], pauses: int = 3) -> list[HeartbeatResponse | None]:
        """Send these at once, and run micro-batches until all are answered; None: the engine died before that.
        ``pauses``: turns of the event loop before each micro-batch."""
        asked = [asyncio.create_task(self.members.heartbeat(request)) for request in requests]
        try:
            for _ in range(100):
                for _ in range(pauses + 1):
                    await asyncio.sleep(0)
                if all(task.done() for task in asked):
                    return [task.result() for task in asked]
                self.run()
        except Death:
            return [task.result() if task.done() else None for task in asked]
        finally:
            for task in asked:
                task.cancel()
        raise AssertionError("heartbeats without an answer")

    def run(self) -> None:
        """Run a micro-batch, as a host does."""
        try:
            self.engine.run()
        except ShareError as fault:
            self.queue.refuse(fault)

    def kill(self) -> None:
        """End all that runs in the loop for this gateway: its process is gone."""
        for part in (self.members._asking, self.members._timer):
            if part is not None:
                part.cancel()


def heartbeat(name: str, epoch: int, *topics: str) -> Heartbeat:
    return Heartbeat(
        member_id=name,
        member_epoch=epoch,
        client_id="test",
        client_host="127.0.0.1",
        subscribed_topic_names=topics or None,
    )
