"""Groups as ListGroups and ShareGroupDescribe show them (R142, R145): values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from share_spark.coordinator.group.records import Assignment
from share_spark.coordinator.group.requests import JOIN_EPOCH, Topics
from share_spark.coordinator.group.state import GroupState, ShareGroup
from share_spark.coordinator.group.types import GroupType
from share_spark.model.errors import ErrorCode

ASSIGNOR_NAME = "simple"
"""The name of the assignor (R123)."""

PROTOCOL_TYPE = "share"
"""The protocol type of every share group (R142)."""


class ListedGroup(NamedTuple):
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: GroupState
    group_type: GroupType


class AssignedTopic(NamedTuple):
    """Partitions of one topic that a member has."""

    topic_id: str
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member in a description."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: tuple[AssignedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A description. With an error all but the id is empty."""

    group_id: str
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state: GroupState = GroupState.DEAD
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedMember, ...] = ()


def listed(group: ShareGroup) -> ListedGroup:
    """Return the group as an entry of a list."""
    return ListedGroup(group.group_id, PROTOCOL_TYPE, group.state, GroupType.SHARE)


def matches(entry: ListedGroup, states: Collection[str], types: Collection[str]) -> bool:
    """Return whether a list has this entry. Filters compare without case; an empty one takes all (R142)."""
    return _takes(states, entry.state) and _takes(types, entry.group_type)


def described(group_id: str, group: ShareGroup | None, topics: Topics) -> DescribedGroup:
    """Return the description of a group; ``group`` None: there is none of that id.

    Partitions of topics that are not there any more are left out.
    """
    if not group_id:
        return DescribedGroup(
            group_id=group_id, error=ErrorCode.INVALID_GROUP_ID, error_message="The group id is empty."
        )
    if group is None:
        return DescribedGroup(
            group_id=group_id, error=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} not found."
        )
    names = {topic.topic_id: name for name, topic in topics.items()}
    return DescribedGroup(
        group_id=group_id,
        state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR_NAME,
        members=tuple(_member(group, member_id, names) for member_id in sorted(group.members)),
    )


def _member(group: ShareGroup, member_id: str, names: dict[str, str]) -> DescribedMember:
    member = group.members[member_id]
    current = group.assignments.get(member_id)
    return DescribedMember(
        member_id=member_id,
        rack_id=member.rack_id,
        member_epoch=current.member_epoch if current else JOIN_EPOCH,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        assignment=_named(current.partitions, names) if current else (),
    )


def _named(assignment: Assignment, names: dict[str, str]) -> tuple[AssignedTopic, ...]:
    return tuple(
        AssignedTopic(topic_id, names[topic_id], partitions)
        for topic_id, partitions in sorted(assignment.items())
        if topic_id in names
    )


def _takes(wanted: Collection[str], found: str) -> bool:
    return not wanted or found.lower() in {text.lower() for text in wanted}
