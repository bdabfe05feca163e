"""The groups that a gateway serves: each has an engine, a queue to it, and members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from share_spark.engine.batch_reader import BatchReader
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.group_clients import GroupClients
from share_spark.gateway.group_host import GroupHost, GroupPlace
from share_spark.gateway.group_members import GroupMembers
from share_spark.gateway.group_topics import GroupTopics
from share_spark.gateway.nodes import Nodes, owner_of
from share_spark.gateway.stored_groups import StoredGroups
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.model.errors import ErrorCode, ShareError

_Result = TypeVar("_Result")

_NOT_SERVED = "This gateway does not serve a group of this name."


class NotServedError(ShareError):
    """The client: no group of this name is served here."""

    code = ErrorCode.INVALID_GROUP_ID


class NotOwnedError(NotServedError):
    """The client: another gateway owns the group."""

    code = ErrorCode.NOT_COORDINATOR

    def __init__(self) -> None:
        super().__init__("Another gateway owns the group.")


class TooManyGroupsError(NotServedError):
    """The client: one more group would be too many (O27)."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class NonEmptyGroupError(ShareError):
    """The user: a group that has members, or that an engine elsewhere runs, cannot be changed."""

    code = ErrorCode.NON_EMPTY_GROUP


@dataclass(slots=True, kw_only=True)
class ServedGroup:
    """A group, as the gateway serves it."""

    topics: GroupTopics
    clients: GroupClients
    members: GroupMembers

    @classmethod
    def of(
        cls,
        group_id: str,
        queue: ClientQueue,
        topics: GroupTopics,
        reader: BatchReader,
        *,
        clock: Callable[[], int],
    ) -> ServedGroup:
        """Return the group whose engine is at the other end of the ``queue``."""
        return cls(
            topics=topics,
            clients=GroupClients(queue=queue, reader=reader),
            members=GroupMembers(group_id=group_id, queue=queue, topics=topics, clock=clock),
        )

    def names_of(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Let the group read the topics of these ``names``, which are by id. Return those that it reads."""
        found = self.topics.named(names)
        self.clients.names.update(found)
        return found


class ServedGroups(Protocol):
    """The groups by their ids. Its methods are for the thread of the event loop."""

    @property
    def stored(self) -> StoredGroups:
        """The place of their state."""
        ...

    def get(self, group_id: str) -> ServedGroup:
        """Return the group. Raises NotServedError, NotOwnedError, TooManyGroupsError."""
        ...

    def serves(self, group_id: str) -> bool:
        """Return whether a group of this name is served here, if there is one."""
        ...

    def owns(self, group_id: str) -> bool:
        """Return whether this gateway owns a group of this name, which is served."""
        ...

    def begun(self) -> Mapping[str, ServedGroup]:
        """Return the groups that clients have named; there may be more in the state."""
        ...

    def hosts(self, group_id: str) -> bool:
        """Return whether the engine of a group, if one runs, is one of this gateway's own."""
        ...

    async def change(self, group_id: str, change: Callable[[], _Result]) -> _Result:
        """Make a change to the state of a group without members, which no engine has meanwhile. Raises
        NonEmptyGroupError: its engine cannot be ended here; and what ``change`` raises."""
        ...

    def forget(self, group_id: str) -> None:
        """Forget a group that was deleted, unless clients have come since."""
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
    catalog: TopicCatalog
    clock: Callable[[], int]
    nodes: Nodes
    _groups: dict[str, ServedGroup] = field(default_factory=dict)
    _hosts: dict[str, GroupHost] = field(default_factory=dict)

    @property
    def stored(self) -> StoredGroups:
        """See ``ServedGroups``."""
        return StoredGroups(str(self.place.state), config=self.place.config)

    def get(self, group_id: str) -> ServedGroup:
        """See ``ServedGroups``."""
        if not self.serves(group_id):
            raise NotServedError(_NOT_SERVED)
        if not self.owns(group_id):
            raise NotOwnedError
        most = self.place.config.max_groups
        if group_id not in self._groups and len(self._groups) >= most:
            raise TooManyGroupsError(f"The gateway has reached its maximum of {most} groups.")
        return self._begun(group_id)

    def _begun(self, group_id: str) -> ServedGroup:
        """Return the group, whose engine begins with the first request to it."""
        if group_id not in self._groups:
            queue = ClientQueue(self.place.config)
            may_begin = partial(self.owns, group_id)
            host = GroupHost(group_id=group_id, place=self.place, clients=queue, may_begin=may_begin)
            topics = GroupTopics(host, self.catalog)
            self._groups[group_id] = ServedGroup.of(group_id, queue, topics, self.reader, clock=self.clock)
            self._hosts[group_id] = host
        return self._groups[group_id]

    def serves(self, group_id: str) -> bool:
        """See ``ServedGroups``."""
        return bool(group_id)

    def owns(self, group_id: str) -> bool:
        """See ``ServedGroups``."""
        return owner_of(group_id, self.nodes.live).node_id == self.nodes.me.node_id

    def hand_over(self, *, all_of_them: bool) -> None:
        """End the engines of groups that another gateway owns now, or of ``all_of_them``, as others may have taken them
        meanwhile: they begin again with the next client. From any thread; waits."""
        for group_id, host in [*self._hosts.items()]:
            if all_of_them or not self.owns(group_id):
                host.without_engine(lambda: None)

    def begun(self) -> Mapping[str, ServedGroup]:
        """See ``ServedGroups``."""
        return self._groups

    def hosts(self, group_id: str) -> bool:
        """See ``ServedGroups``."""
        host = self._hosts.get(group_id)
        return host is not None and host.is_running

    async def change(self, group_id: str, change: Callable[[], _Result]) -> _Result:
        """See ``ServedGroups``."""
        self._begun(group_id)
        return await asyncio.to_thread(self._hosts[group_id].without_engine, change)

    def forget(self, group_id: str) -> None:
        """See ``ServedGroups``."""
        host = self._hosts.get(group_id)
        if host is not None and host.is_idle:
            del self._groups[group_id], self._hosts[group_id]

    def stop(self) -> None:
        """See ``ServedGroups``."""
        for host in self._hosts.values():
            host.end()
        for host in self._hosts.values():
            host.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGroup:
    """ServedGroups with one group, whose engine runs elsewhere: in a Spark query."""

    group_id: str
    group: ServedGroup
    stored: StoredGroups

    def get(self, group_id: str) -> ServedGroup:
        """See ``ServedGroups``."""
        if not self.serves(group_id):
            raise NotServedError(_NOT_SERVED)
        return self.group

    def serves(self, group_id: str) -> bool:
        """See ``ServedGroups``."""
        return group_id == self.group_id

    def owns(self, group_id: str) -> bool:
        """See ``ServedGroups``."""
        return self.serves(group_id)

    def begun(self) -> Mapping[str, ServedGroup]:
        """See ``ServedGroups``."""
        return {self.group_id: self.group}

    def hosts(self, group_id: str) -> bool:  # noqa: ARG002
        """See ``ServedGroups``: the engine is a member, as tools see it."""
        return False

    async def change(self, group_id: str, change: Callable[[], _Result]) -> _Result:  # noqa: ARG002
        """Raise NonEmptyGroupError."""
        raise NonEmptyGroupError(f"Group {group_id} is run by a Spark query: stop it before you change the group.")

    def forget(self, group_id: str) -> None:
        """Do nothing: the group is never deleted here."""

    def stop(self) -> None:
        """Do nothing: the engine ends by itself."""
