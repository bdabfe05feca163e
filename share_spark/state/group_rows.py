"""The records of a group (its members, epochs and assignments) in rows of the state log, and back. Pure: values and
Arrow.

A row has all group records of one commit. Where a segment begins these are all that count (``GROUP_SNAPSHOT``),
otherwise those that are new (``GROUP_UPDATE``). Each is a kind of Kafka's (10 to 15), the member that it is about, and
its other fields as JSON; null instead is a tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.coordinator.group import GroupRecord, ShareGroup, replay
from share_spark.coordinator.group.records import (
    CurrentMemberAssignment,
    GroupMetadata,
    MemberMetadata,
    RecordKey,
    RecordKind,
    StatePartitionMetadata,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    Tombstone,
    TopicState,
)

GROUP_SNAPSHOT, GROUP_UPDATE = "GroupSnapshot", "GroupUpdate"

GROUP_RECORDS = pa.list_(pa.struct([("kind", pa.int8()), ("member_id", pa.string()), ("record", pa.string())]))
"""The column with the records of a group."""

_KEY_FIELDS = ("group_id", "member_id")

_TYPES: Mapping[RecordKind, type[Any]] = {
    RecordKind.MEMBER_METADATA: MemberMetadata,
    RecordKind.GROUP_METADATA: GroupMetadata,
    RecordKind.TARGET_ASSIGNMENT_METADATA: TargetAssignmentMetadata,
    RecordKind.TARGET_ASSIGNMENT_MEMBER: TargetAssignmentMember,
    RecordKind.CURRENT_MEMBER_ASSIGNMENT: CurrentMemberAssignment,
    RecordKind.STATE_PARTITION_METADATA: StatePartitionMetadata,
}


def group_values(records: Iterable[GroupRecord]) -> list[dict[str, Any]]:
    """Return the records as one value of GROUP_RECORDS."""
    return [{"kind": int(one.key.kind), "member_id": one.key.member_id, "record": _text(one)} for one in records]


def group_after(group: ShareGroup | None, rows: pa.Table, group_id: str) -> ShareGroup | None:
    """Return the group after rows of the log, in their order; those that have no records of it change nothing."""
    own = rows.select(["kind", "group_records"]).filter(pc.field("kind").isin([GROUP_SNAPSHOT, GROUP_UPDATE]))
    for row in own.to_pylist():
        records = [_record(group_id, **one) for one in row["group_records"] or ()]
        group = replay(records, None if row["kind"] == GROUP_SNAPSHOT else group)
    return group


def _text(record: GroupRecord) -> str | None:
    if isinstance(record, Tombstone):
        return None
    values = {one.name: getattr(record, one.name) for one in fields(record) if one.name not in _KEY_FIELDS}
    return json.dumps(values, separators=(",", ":"))


def _record(group_id: str, kind: int, member_id: str | None, record: str | None) -> GroupRecord:
    key = RecordKey(RecordKind(kind), group_id, member_id)
    if record is None:
        return Tombstone(key=key)
    values = {name: _PARSED.get(name, _as_it_is)(value) for name, value in json.loads(record).items()}
    named = {} if member_id is None else {"member_id": member_id}
    found: GroupRecord = _TYPES[key.kind](group_id=group_id, **named, **values)
    return found


def _as_it_is(value: Any) -> Any:
    return value


def _assignment(value: Mapping[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {topic_id: tuple(partitions) for topic_id, partitions in value.items()}


def _topics(value: Mapping[str, tuple[str, list[int]]]) -> dict[str, TopicState]:
    return {topic_id: TopicState(name, tuple(partitions)) for topic_id, (name, partitions) in value.items()}


_PARSED: Mapping[str, Callable[[Any], Any]] = {
    "subscribed_topic_names": tuple,
    "partitions": _assignment,
    "initialized": _topics,
    "deleting": _topics,
}
"""The fields whose values JSON does not give back as they were."""
