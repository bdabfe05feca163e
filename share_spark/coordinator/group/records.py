"""The durable records of a share group, of the kinds that Kafka 4.2 keeps in ``__consumer_offsets``.

Of each key the latest record counts, as in a compacted topic; a tombstone ends a key. Kind 9 of the KIP, the topics
that members subscribe to, is gone in Kafka 4.2: their hash is a part of kind 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

Assignment = Mapping[str, tuple[int, ...]]
"""Topic id to partitions, ascending. A topic without partitions is left out."""


class RecordKind(IntEnum):
    """The kinds of records, by the version of their key in Kafka."""

    MEMBER_METADATA = 10
    GROUP_METADATA = 11
    TARGET_ASSIGNMENT_METADATA = 12
    TARGET_ASSIGNMENT_MEMBER = 13
    CURRENT_MEMBER_ASSIGNMENT = 14
    STATE_PARTITION_METADATA = 15


class RecordKey(NamedTuple):
    """The key of a record; ``member_id`` None: a kind of which the group has one."""

    kind: RecordKind
    group_id: str
    member_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """A member as it has described itself (kind 10). ``subscribed_topic_names``: sorted."""

    group_id: str
    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]

    @property
    def key(self) -> RecordKey:
        """The key of this record."""
        return RecordKey(RecordKind.MEMBER_METADATA, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """The group itself (kind 11). ``metadata_hash``: of the subscribed topics, to notice that they changed."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0

    @property
    def key(self) -> RecordKey:
        """The key of this record."""
        return RecordKey(RecordKind.GROUP_METADATA, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignmentMetadata:
    """The group epoch that the target assignments were computed for (kind 12)."""

    group_id: str
    assignment_epoch: int = 0

    @property
    def key(self) -> RecordKey:
        """The key of this record."""
        return RecordKey(RecordKind.TARGET_ASSIGNMENT_METADATA, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignmentMember:
    """The partitions that a member is to have (kind 13)."""

    group_id: str
    member_id: str
    partitions: Assignment

    @property
    def key(self) -> RecordKey:
        """The key of this record."""
        return RecordKey(RecordKind.TARGET_ASSIGNMENT_MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentMemberAssignment:
    """The partitions that a member was told, and its epochs (kind 14). Kafka's member state is always stable here."""

    group_id: str
    member_id: str
    member_epoch: int
    previous_member_epoch: int
    partitions: Assignment

    @property
    def key(self) -> RecordKey:
        """The key of this record."""
        return RecordKey(RecordKind.CURRENT_MEMBER_ASSIGNMENT, self.group_id, self.member_id)


class TopicState(NamedTuple):
    """A topic with share-partition state: its name, and the partitions that have it, ascending."""

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePartitionMetadata:
    """The topics that have share-partition state, by topic id, and those whose state is being deleted (kind 15).

    A topic is in one of the two. Kafka has a third list, of what is being initialised; here that takes no time.
    """

    group_id: str
    initialized: Mapping[str, TopicState] = field(default_factory=dict)
    deleting: Mapping[str, TopicState] = field(default_factory=dict)

    @property
    def key(self) -> RecordKey:
        """The key of this record."""
        return RecordKey(RecordKind.STATE_PARTITION_METADATA, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """The end of a key."""

    key: RecordKey


GroupRecord = (
    MemberMetadata
    | GroupMetadata
    | TargetAssignmentMetadata
    | TargetAssignmentMember
    | CurrentMemberAssignment
    | StatePartitionMetadata
    | Tombstone
)
