"""The state of a share group from its records: live and in recovery the same function (R121, R122)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from share_spark.coordinator.group.records import (
    CurrentMemberAssignment,
    GroupMetadata,
    GroupRecord,
    MemberMetadata,
    RecordKey,
    RecordKind,
    StatePartitionMetadata,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    Tombstone,
)


class GroupState(StrEnum):
    """The states of a share group, as Kafka's tools print them (R125). A group that is not there is Dead."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroup:
    """A share group: the latest record of each key. The last three are by member id, and have the same members."""

    group_id: str
    metadata: GroupMetadata
    target: TargetAssignmentMetadata
    topics: StatePartitionMetadata
    members: Mapping[str, MemberMetadata] = field(default_factory=dict)
    targets: Mapping[str, TargetAssignmentMember] = field(default_factory=dict)
    assignments: Mapping[str, CurrentMemberAssignment] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The group epoch: it rises whenever the target has to be computed anew (R119)."""
        return self.metadata.epoch

    @property
    def assignment_epoch(self) -> int:
        """The group epoch that the target was computed for (R120)."""
        return self.target.assignment_epoch

    @property
    def state(self) -> GroupState:
        """Whether it has members (R125)."""
        return GroupState.STABLE if self.members else GroupState.EMPTY

    @property
    def subscribed_topic_names(self) -> frozenset[str]:
        """The names of the topics that any member subscribes to."""
        return frozenset().union(*(member.subscribed_topic_names for member in self.members.values()))


_FIELDS = {
    RecordKind.GROUP_METADATA: "metadata",
    RecordKind.TARGET_ASSIGNMENT_METADATA: "target",
    RecordKind.STATE_PARTITION_METADATA: "topics",
}

_FIELDS_BY_MEMBER = {
    RecordKind.MEMBER_METADATA: "members",
    RecordKind.TARGET_ASSIGNMENT_MEMBER: "targets",
    RecordKind.CURRENT_MEMBER_ASSIGNMENT: "assignments",
}


def new_group(group_id: str) -> ShareGroup:
    """Return the state before any record."""
    return ShareGroup(
        group_id=group_id,
        metadata=GroupMetadata(group_id=group_id),
        target=TargetAssignmentMetadata(group_id=group_id),
        topics=StatePartitionMetadata(group_id=group_id),
    )


def evolve(group: ShareGroup | None, record: GroupRecord) -> ShareGroup | None:
    """Return the group after ``record``; None: there is no such group, as before its first record.

    The tombstone of the group's own record ends the group, with all that is still there of it.
    """
    key = record.key
    if not isinstance(record, Tombstone):
        return _with(group or new_group(key.group_id), key, record)
    if group is None or key.kind is RecordKind.GROUP_METADATA:
        return None
    return _without(group, key)


def replay(records: Iterable[GroupRecord], group: ShareGroup | None = None) -> ShareGroup | None:
    """Return the group after ``records`` of it, in log order, on top of ``group``."""
    for record in records:
        group = evolve(group, record)
    return group


def snapshot(group: ShareGroup) -> tuple[GroupRecord, ...]:
    """Return the records that make ``group`` again from nothing."""
    of_members = (by_member.values() for by_member in (group.members, group.targets, group.assignments))
    return (group.metadata, group.target, group.topics, *(record for records in of_members for record in records))


def latest(records: Iterable[GroupRecord]) -> tuple[GroupRecord, ...]:
    """Leave out the records that later ones of the same key replace, where all are committed together.

    Their order does not matter: a group that ends has a tombstone for each key before.
    """
    return tuple({record.key: record for record in records}.values())


def known_record(group: ShareGroup, key: RecordKey) -> GroupRecord | None:
    """Return the record of ``key`` that counts."""
    if key.kind in _FIELDS:
        record: GroupRecord = getattr(group, _FIELDS[key.kind])
        return record
    by_member: Mapping[str | None, GroupRecord] = getattr(group, _FIELDS_BY_MEMBER[key.kind])
    return by_member.get(key.member_id)


def _with(group: ShareGroup, key: RecordKey, record: GroupRecord) -> ShareGroup:
    if key.kind in _FIELDS:
        return _replaced(group, _FIELDS[key.kind], record)
    name = _FIELDS_BY_MEMBER[key.kind]
    return _replaced(group, name, {**getattr(group, name), key.member_id: record})


def _without(group: ShareGroup, key: RecordKey) -> ShareGroup:
    if key.kind in _FIELDS:
        return _replaced(group, _FIELDS[key.kind], getattr(new_group(group.group_id), _FIELDS[key.kind]))
    name = _FIELDS_BY_MEMBER[key.kind]
    return _replaced(group, name, {m: r for m, r in getattr(group, name).items() if m != key.member_id})


def _replaced(group: ShareGroup, name: str, value: Any) -> ShareGroup:
    return replace(group, **{name: value})
