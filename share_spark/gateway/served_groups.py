"""The groups that a gateway serves: each has an engine, a queue to it, and members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from share_spark.coordinator.group import TopicMetadata
from share_spark.engine.batch_reader import BatchReader
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.group_clients import GroupClients
from share_spark.gateway.group_host import GroupHost, GroupPlace
from share_spark.gateway.group_members import GroupMembers


class TopicsOfGroup(Protocol):
    """The side of a group's engine that has its topics."""

    def subscribe(self, topics: Iterable[str]) -> Collection[str]:
        """Add topics, which exist, to those that the group reads. Return all that it reads. From any thread."""
        ...


@dataclass(slots=True, kw_only=True)
class ServedGroup:
    """A group, as the gateway serves it."""

    engine: TopicsOfGroup
    clients: GroupClients
    members: GroupMembers

    def subscribe(self, topics: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
        """Let the group read these topics, and return those that it reads."""
        read = self.engine.subscribe(topics)
        return {name: topic for name, topic in topics.items() if name in read}

    def names_of(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Let the group read the topics of these ``names``, which are by id. Return those that it reads."""
        read = self.engine.subscribe(names.values())
        found = {topic_id: name for topic_id, name in names.items() if name in read}
        self.clients.names.update(found)
        return found


class ServedGroups(Protocol):
    """The groups by their ids. ``get`` is for the thread of the event loop."""

    def get(self, group_id: str) -> ServedGroup | None:
        """Return the group; None if it is not served here."""
        ...

    def stop(self) -> None:
        """End what was started for them, once nobody asks any more. What clients hold stays theirs: locks are in the
        state."""
        ...


@dataclass(slots=True, kw_only=True)
class AnyGroup:
    """ServedGroups with an engine of its own for each group, from the first request on that names it."""

    place: GroupPlace
    reader: BatchReader
    clock: Callable[[], int]
    _groups: dict[str, ServedGroup] = field(default_factory=dict)
    _hosts: list[GroupHost] = field(default_factory=list)

    def get(self, group_id: str) -> ServedGroup:
        """See ``ServedGroups``."""
        if group_id not in self._groups:
            queue = ClientQueue()
            host = GroupHost(group_id=group_id, place=self.place, clients=queue)
            lock_duration_ms = self.place.config.lock_duration_ms
            clients = GroupClients(queue=queue, reader=self.reader, lock_duration_ms=lock_duration_ms)
            self._groups[group_id] = ServedGroup(
                engine=host, clients=clients, members=GroupMembers(group_id=group_id, clock=self.clock)
            )
            self._hosts.append(host)
            host.start()
        return self._groups[group_id]

    def stop(self) -> None:
        """See ``ServedGroups``."""
        for host in self._hosts:
            host.end()
        for host in self._hosts:
            host.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGroup:
    """ServedGroups with one group, whose engine runs elsewhere: in a Spark query."""

    group_id: str
    group: ServedGroup

    def get(self, group_id: str) -> ServedGroup | None:
        """See ``ServedGroups``."""
        return self.group if group_id == self.group_id else None

    def stop(self) -> None:
        """Do nothing: the engine ends by itself."""


@dataclass(frozen=True, slots=True)
class FixedTopics:
    """TopicsOfGroup of an engine that reads the same topics from its start to its end."""

    topics: tuple[str, ...]

    def subscribe(self, topics: Iterable[str]) -> Collection[str]:  # noqa: ARG002
        """Return the topics of the engine: none is added."""
        return self.topics
