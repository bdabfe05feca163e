"""The rights of users: their rules, and what each kind of request takes. No I/O.

Kafka has a right for each operation on each group and topic. Here a user may use groups and topics by their names, and
may administer the groups, or not; the errors, and what lists leave out, are those of a broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from share_spark.gateway import apis
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
class Rules:
    """The rules of one user. ``groups`` and ``topics``: names, or beginnings of names with a star after them.
    ``administers``: may change and delete these groups, their offsets and their settings. ``acts_as_broker``: may read
    and write the state of all groups (Kafka: the operation ClusterAction)."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    administers: bool = False
    acts_as_broker: bool = False


EVERYTHING = Rules(groups=("*",), topics=("*",), administers=True, acts_as_broker=True)
"""The rules where nobody has to log in."""


class Need(Enum):
    """The right that a request takes, for each of the groups and topics in it."""

    USE = auto()
    ADMINISTER = auto()
    ACT_AS_BROKER = auto()


NEEDS: Mapping[int, Need] = {
    apis.LIST_OFFSETS.key: Need.USE,
    apis.METADATA.key: Need.USE,
    apis.FIND_COORDINATOR.key: Need.USE,
    apis.LIST_GROUPS.key: Need.USE,
    apis.DESCRIBE_CONFIGS.key: Need.USE,
    apis.DELETE_GROUPS.key: Need.ADMINISTER,
    apis.INCREMENTAL_ALTER_CONFIGS.key: Need.ADMINISTER,
    apis.DESCRIBE_CLUSTER.key: Need.USE,
    apis.DESCRIBE_TOPIC_PARTITIONS.key: Need.USE,
    apis.SHARE_GROUP_HEARTBEAT.key: Need.USE,
    apis.SHARE_GROUP_DESCRIBE.key: Need.USE,
    apis.SHARE_FETCH.key: Need.USE,
    apis.SHARE_ACKNOWLEDGE.key: Need.USE,
    apis.INITIALIZE_SHARE_GROUP_STATE.key: Need.ACT_AS_BROKER,
    apis.READ_SHARE_GROUP_STATE.key: Need.ACT_AS_BROKER,
    apis.WRITE_SHARE_GROUP_STATE.key: Need.ACT_AS_BROKER,
    apis.DELETE_SHARE_GROUP_STATE.key: Need.ACT_AS_BROKER,
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: Need.ACT_AS_BROKER,
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: Need.USE,
    apis.ALTER_SHARE_GROUP_OFFSETS.key: Need.ADMINISTER,
    apis.DELETE_SHARE_GROUP_OFFSETS.key: Need.ADMINISTER,
}
"""The right for each request that groups or topics are in. DescribeCluster has none of them: it is for everybody."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The groups and topics that a request of a user may be about."""

    rules: Rules
    need: Need

    @classmethod
    def of(cls, rules: Rules, api_key: int) -> Grant:
        """Return the grant for a request of this API."""
        return cls(rules, NEEDS[api_key])

    def group(self, group_id: str) -> bool:
        """Return whether the request may be about this group."""
        is_right = self.need is Need.USE or self.rules.administers
        return is_right and _has(self.rules.groups, group_id)

    def topic(self, topic: str) -> bool:
        """Return whether the request may be about this topic."""
        return _has(self.rules.topics, topic)

    @property
    def cluster(self) -> bool:
        """Whether the request may do what brokers do."""
        return self.need is Need.ACT_AS_BROKER and self.rules.acts_as_broker

    def require_group(self, group_id: str) -> None:
        """Raise GroupRefusedError unless the request may be about this group."""
        if not self.group(group_id):
            raise GroupRefusedError(GROUP_REFUSED)


GROUP_REFUSED, TOPIC_REFUSED = "Group authorization failed.", "Topic authorization failed."
"""Kafka's texts."""


def _has(patterns: tuple[str, ...], name: str) -> bool:
    return any(_matches(pattern, name) for pattern in patterns)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
