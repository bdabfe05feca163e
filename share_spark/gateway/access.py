"""The rights of users: what each kind of request takes, and the rules of users in a file. No I/O.

The rights are Kafka's: an operation on each group and each topic in a request; the errors, and what lists leave out,
are those of a broker. A cluster knows them by its ACLs (``cluster_rights``). By the rules of a file a user may use
groups and topics by their names, and may administer the groups, or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from share_spark.gateway import apis
from share_spark.kafka.principal_rights import GROUP_OPERATIONS, Operation
from share_spark.model.errors import ErrorCode, ShareError


class GroupRefusedError(ShareError):
    """The client: its user has no right to do this with a group."""

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class ClusterRefusedError(ShareError):
    """The client: its user has no right to act as a broker."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def __init__(self) -> None:
        super().__init__("Cluster authorization failed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The right that a request takes. ``group``, ``topic``: the operation on each of those in it.
    ``is_for_describers``: who may describe the cluster may do it with each group. ``administers``: by the rules of a
    file it is for administrators. ``acts_as_broker``: it is about no group or topic, but the state of all groups."""

    group: Operation = Operation.DESCRIBE
    topic: Operation = Operation.DESCRIBE
    is_for_describers: bool = False
    administers: bool = False
    acts_as_broker: bool = False


NEEDS: Mapping[int, Need] = {
    apis.LIST_OFFSETS.key: Need(),
    apis.METADATA.key: Need(),
    apis.FIND_COORDINATOR.key: Need(),
    apis.LIST_GROUPS.key: Need(is_for_describers=True),
    apis.DESCRIBE_CONFIGS.key: Need(group=Operation.DESCRIBE_CONFIGS),
    apis.DELETE_GROUPS.key: Need(group=Operation.DELETE, administers=True),
    apis.INCREMENTAL_ALTER_CONFIGS.key: Need(group=Operation.ALTER_CONFIGS, administers=True),
    apis.DESCRIBE_CLUSTER.key: Need(),
    apis.DESCRIBE_TOPIC_PARTITIONS.key: Need(),
    apis.SHARE_GROUP_HEARTBEAT.key: Need(group=Operation.READ),
    apis.SHARE_GROUP_DESCRIBE.key: Need(),
    apis.SHARE_FETCH.key: Need(group=Operation.READ, topic=Operation.READ),
    apis.SHARE_ACKNOWLEDGE.key: Need(group=Operation.READ, topic=Operation.READ),
    apis.INITIALIZE_SHARE_GROUP_STATE.key: Need(acts_as_broker=True),
    apis.READ_SHARE_GROUP_STATE.key: Need(acts_as_broker=True),
    apis.WRITE_SHARE_GROUP_STATE.key: Need(acts_as_broker=True),
    apis.DELETE_SHARE_GROUP_STATE.key: Need(acts_as_broker=True),
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: Need(acts_as_broker=True),
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: Need(),
    apis.ALTER_SHARE_GROUP_OFFSETS.key: Need(group=Operation.READ, topic=Operation.READ, administers=True),
    apis.DELETE_SHARE_GROUP_OFFSETS.key: Need(group=Operation.DELETE, topic=Operation.READ, administers=True),
}
"""The right for each request that groups or topics are in. DescribeCluster has none of them: it is for everybody."""


class Rights(Protocol):
    """The rights of a user, for the thread of the event loop. Where they have to be asked for, methods raise
    TopicUnreachableError."""

    async def permitted_groups(self, need: Need, group_ids: Iterable[str]) -> frozenset[str]:
        """Return those of these groups that a request with this need may be about."""
        ...

    async def permitted_topics(self, need: Need, topics: Iterable[str]) -> frozenset[str]:
        """Return those of these topics that a request with this need may be about."""
        ...

    async def is_broker(self) -> bool:
        """Return whether the user may do what brokers do (Kafka: the operation ClusterAction)."""
        ...

    async def operations(self, group_id: str) -> frozenset[Operation]:
        """Return what the user may do with a group that may be described."""
        ...

    async def passed_on(self, need: Need, topics: Iterable[str]) -> Rules:
        """Return the rules by which another gateway answers a request with this need. Its group is one that it may be
        about, and these are all the topics."""
        ...


_OPERATIONS = frozenset((Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one user, who has these Rights. ``groups`` and ``topics``: names, or beginnings of names with a star
    after them. ``administers``: may change and delete these groups, their offsets and their settings.
    ``acts_as_broker``: may read and write the state of all groups (Kafka: the operation ClusterAction)."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    administers: bool = False
    acts_as_broker: bool = False

    async def permitted_groups(self, need: Need, group_ids: Iterable[str]) -> frozenset[str]:
        """See ``Rights``."""
        is_right = self.administers or not need.administers
        return _matching(self.groups, group_ids) if is_right else frozenset()

    async def permitted_topics(self, need: Need, topics: Iterable[str]) -> frozenset[str]:  # noqa: ARG002
        """See ``Rights``."""
        return _matching(self.topics, topics)

    async def is_broker(self) -> bool:
        """See ``Rights``."""
        return self.acts_as_broker

    async def operations(self, group_id: str) -> frozenset[Operation]:  # noqa: ARG002
        """See ``Rights``."""
        return frozenset(GROUP_OPERATIONS) if self.administers else _OPERATIONS

    async def passed_on(self, need: Need, topics: Iterable[str]) -> Rules:  # noqa: ARG002
        """See ``Rights``."""
        return self


EVERYTHING = Rules(groups=("*",), topics=("*",), administers=True, acts_as_broker=True)
"""The rules where nobody has to log in."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The groups and topics that a request of a user may be about. Its methods raise what those of ``rights`` do."""

    rights: Rights
    need: Need

    @classmethod
    def of(cls, rights: Rights, api_key: int) -> Grant:
        """Return the grant for a request of this API."""
        return cls(rights, NEEDS[api_key])

    async def groups(self, group_ids: Iterable[str]) -> frozenset[str]:
        """Return those of these groups that the request may be about."""
        return await self.rights.permitted_groups(self.need, group_ids)

    async def topics(self, topics: Iterable[str]) -> frozenset[str]:
        """Return those of these topics that the request may be about."""
        return await self.rights.permitted_topics(self.need, topics)

    async def group(self, group_id: str) -> bool:
        """Return whether the request may be about this group."""
        return group_id in await self.groups((group_id,))

    async def cluster(self) -> bool:
        """Return whether the request may do what brokers do."""
        return self.need.acts_as_broker and await self.rights.is_broker()

    async def passed_on(self, topics: Iterable[str]) -> Rules:
        """Return the rules by which another gateway answers the request: see ``Rights``."""
        return await self.rights.passed_on(self.need, topics)

    async def require_group(self, group_id: str) -> None:
        """Raise GroupRefusedError unless the request may be about this group."""
        if not await self.group(group_id):
            raise GroupRefusedError(GROUP_REFUSED)


GROUP_REFUSED, TOPIC_REFUSED = "Group authorization failed.", "Topic authorization failed."
"""Kafka's texts."""


def _matching(patterns: tuple[str, ...], names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if any(_matches(pattern, name) for pattern in patterns))


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
