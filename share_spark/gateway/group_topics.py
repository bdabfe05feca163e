"""The topics of one group: those that its members name, as far as they are there and its engine reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from share_spark.coordinator.group import Topics
from share_spark.gateway.topic_catalog import TopicCatalog


class TopicsOfGroup(Protocol):
    """The side of a group's engine that has its topics."""

    def subscribe(self, topics: Iterable[str]) -> Collection[str]:
        """Add topics, which exist, to those that the group reads. Return all that it reads. From any thread."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTopics:
    """TopicsOfGroup of an engine that reads the same topics from its start to its end."""

    topics: tuple[str, ...]

    def subscribe(self, topics: Iterable[str]) -> Collection[str]:  # noqa: ARG002
        """Return the topics of the engine: none is added."""
        return self.topics


@dataclass(frozen=True, slots=True)
class GroupTopics:
    """The topics of one group, for the thread of the event loop."""

    engine: TopicsOfGroup
    catalog: TopicCatalog

    async def of(self, names: Iterable[str]) -> Topics:
        """Let the group read those of these topics that are there, and return those that it reads. The engine begins
        with the first call. Raises TopicError, TopicUnreachableError."""
        found = await asyncio.to_thread(self.catalog.of, names)
        read = self.engine.subscribe(found)
        return {name: topic for name, topic in found.items() if name in read}

    def named(self, names: Mapping[str, str]) -> dict[str, str]:
        """Let the group read the topics of these ``names``, which are by id. Return those that it reads."""
        read = self.engine.subscribe(names.values())
        return {topic_id: name for topic_id, name in names.items() if name in read}
