"""The groups that clients' tools are told of: those with members here, and those with state in the tables."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from share_spark.admin.group_details import GroupPhase
from share_spark.coordinator.group import (
    GroupState,
    ShareGroup,
    Topics,
    new_group,
    remove_members,
    replay,
)
from share_spark.gateway.served_groups import NonEmptyGroupError, NotOwnedError, ServedGroup, ServedGroups
from share_spark.gateway.stored_groups import StoredGroups
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.model.errors import ErrorCode, ShareError

_Result = TypeVar("_Result")


class UnknownGroupError(ShareError):
    """The user: there is no group of this name."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class KnownGroup(NamedTuple):
    """A group. ``topics``: those that its members subscribe to, as they are now. ``state``: as tools are told it."""

    group: ShareGroup
    topics: Topics
    state: GroupState


@dataclass(slots=True)
class KnownGroups:
    """All groups. Its methods are for the thread of the event loop. ``began_s``: when the gateway began."""

    groups: ServedGroups
    catalog: TopicCatalog
    began_s: float = field(default_factory=time.monotonic)

    @property
    def stored(self) -> StoredGroups:
        """The place of their state."""
        return self.groups.stored

    async def all(self) -> list[KnownGroup]:
        """Return all groups, by their names. Raises ConfigError, StateError, TopicUnreachableError."""
        phases = await asyncio.to_thread(self.stored.phases)
        names = {*phases, *self.groups.begun()}
        found = [await self._known(name, phases.get(name)) for name in sorted(names) if self.groups.owns(name)]
        return [one for one in found if one is not None]

    async def find(self, group_id: str) -> KnownGroup | None:
        """Return a group; None if there is none of this name. Raises NotOwnedError, and as ``all``."""
        if not self.groups.serves(group_id):
            return None
        if not self.groups.owns(group_id):
            raise NotOwnedError
        return await self._known(group_id, await asyncio.to_thread(self.stored.phase, group_id))

    async def change(self, group_id: str, change: Callable[..., _Result], *arguments: object) -> _Result:
        """Make a change, which waits for the storage, to a group without members; it may be new. Raises
        NonEmptyGroupError, and what ``change`` raises."""
        known = await self.find(group_id)
        if known is not None and known.state is GroupState.STABLE:
            raise NonEmptyGroupError("The group is not empty.")
        return await self.groups.change(group_id, lambda: change(*arguments))

    async def _known(self, group_id: str, phase: GroupPhase | None) -> KnownGroup | None:
        served = self.groups.begun().get(group_id)
        if served is not None and served.members.is_known:
            group, topics = await self._present(served)
        else:
            group, topics = await self._stored(group_id, phase)
        if phase is None and group.epoch == 0:
            return None
        is_run_elsewhere = phase is GroupPhase.STABLE and not self.groups.hosts(group_id)
        return KnownGroup(group, topics, GroupState.STABLE if is_run_elsewhere else group.state)

    async def _present(self, served: ServedGroup) -> tuple[ShareGroup, Topics]:
        """Return the group without the members whose session has ended."""
        topics = await self._topics(served.members.group)
        return served.members.present(topics), topics

    async def _stored(self, group_id: str, phase: GroupPhase | None) -> tuple[ShareGroup, Topics]:
        """Return a group that no engine here has at present. Its members may come back, until a session has passed
        since this gateway began."""
        group = None if phase is None else await asyncio.to_thread(self.stored.members, group_id)
        if group is None:
            return new_group(group_id), {}
        topics = await self._topics(group)
        if time.monotonic() - self.began_s >= self.stored.config.session_timeout_ms / 1_000:
            group = replay(remove_members(group, group.members, topics).records, group) or group
        return group, topics

    async def _topics(self, group: ShareGroup) -> Topics:
        return await asyncio.to_thread(self.catalog.of, group.subscribed_topic_names)


def required(known: KnownGroup | None, group_id: str) -> KnownGroup:
    """Return the group. Raises UnknownGroupError: it is not there."""
    if known is None:
        raise UnknownGroupError(f"Group {group_id} not found.")
    return known
