"""Changes of a group by its administrator, and the end of topics (R126, R130-R137).

What a decision says of the group and of the share-partitions is one commit. So a deletion is ``end_deletion`` alone,
unless the caller cannot drop the state of a topic in the same commit: then ``begin_deletion`` keeps the topic from
being assigned and initialised until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from share_spark.coordinator.fault import Fault
from share_spark.coordinator.group.draft import Draft
from share_spark.coordinator.group.records import GroupRecord, RecordKey, RecordKind, Tombstone, TopicState
from share_spark.coordinator.group.state import ShareGroup
from share_spark.coordinator.messages import InitializeState
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey

GROUP_KINDS = (
    RecordKind.TARGET_ASSIGNMENT_METADATA,
    RecordKind.STATE_PARTITION_METADATA,
    RecordKind.GROUP_METADATA,
)
"""The kinds of which a group has one, in the order in which they end; the group's own is the last (R136)."""


class NewOffset(NamedTuple):
    """A start offset that a share-partition is to have from now on."""

    topic: str
    topic_id: str
    partition: int
    start_offset: int


class AlterDecision(NamedTuple):
    """The outcome of new offsets: records, and share-partitions to initialize anew, all in one commit.

    ``refused``: the state of their topics is being deleted, and cannot begin anew before that has ended.
    """

    records: tuple[GroupRecord, ...]
    initialize: tuple[InitializeState, ...]
    refused: tuple[NewOffset, ...]


class DeleteDecision(NamedTuple):
    """The outcome of a deletion: records, and share-partitions to delete, all in one commit."""

    records: tuple[GroupRecord, ...]
    delete: tuple[SharePartitionKey, ...]


def not_empty(group_id: str, group: ShareGroup | None) -> Fault | None:
    """Return why offsets of this group, or the group, cannot be changed: it is not there, or has members."""
    if group is None:
        return Fault(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if group.members:
        return Fault(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    return None


def share_partitions(group: ShareGroup) -> tuple[SharePartitionKey, ...]:
    """Return all share-partitions with state; a list of offsets has these (R137)."""
    return _keys(group.group_id, group.topics.initialized)


def alter_offsets(group_id: str, group: ShareGroup | None, offsets: Sequence[NewOffset]) -> AlterDecision:
    """Begin share-partitions anew at the given offsets, in a group without members that may be new (R134).

    The group epoch rises, and with it the state epoch of what is begun anew. Kafka 4.2 leaves it as it is; the KIP
    raises it.
    """
    draft = Draft(group_id, group)
    deleting = draft.group.topics.deleting
    taken = [offset for offset in offsets if offset.topic_id not in deleting]
    draft.write(replace(draft.group.metadata, epoch=draft.group.epoch + 1))
    wanted: dict[str, TopicState] = {}
    for topic, topic_id, partition, _ in taken:
        known = wanted.get(topic_id, TopicState(topic, ()))
        wanted[topic_id] = TopicState(topic, (*known.partitions, partition))
    draft.write_state(wanted)
    initialize = tuple(
        InitializeState(topic_id=topic_id, partition=number, state_epoch=draft.group.epoch, start_offset=start_offset)
        for _, topic_id, number, start_offset in taken
    )
    return AlterDecision(
        tuple(draft.records), initialize, tuple(offset for offset in offsets if offset.topic_id in deleting)
    )


def topics_to_delete(group: ShareGroup, existing: Collection[str]) -> tuple[str, ...]:
    """Return the ids of topics whose state has to go: they are not among ``existing``, all topic ids that are there, or
    their deletion has begun and not ended (R126, R130, R132)."""
    gone = (topic_id for topic_id in group.topics.initialized if topic_id not in existing)
    return (*gone, *group.topics.deleting)


def begin_deletion(group: ShareGroup, topic_ids: Iterable[str]) -> DeleteDecision:
    """Mark topics as being deleted, and return their share-partitions (R131); of a topic without state, nothing."""
    topics = group.topics
    chosen = {topic_id: topics.initialized[topic_id] for topic_id in topic_ids if topic_id in topics.initialized}
    draft = Draft(group.group_id, group)
    initialized = {topic_id: state for topic_id, state in topics.initialized.items() if topic_id not in chosen}
    draft.write(replace(topics, initialized=initialized, deleting={**topics.deleting, **chosen}))
    return DeleteDecision(tuple(draft.records), _keys(group.group_id, chosen))


def end_deletion(group: ShareGroup, topic_ids: Collection[str]) -> DeleteDecision:
    """Forget topics whose share-partitions go with this commit, whether their deletion had begun or not (R131)."""
    topics = group.topics
    known = {**topics.initialized, **topics.deleting}
    draft = Draft(group.group_id, group)
    initialized, deleting = (
        {topic_id: state for topic_id, state in part.items() if topic_id not in topic_ids}
        for part in (topics.initialized, topics.deleting)
    )
    draft.write(replace(topics, initialized=initialized, deleting=deleting))
    chosen = {topic_id: state for topic_id, state in known.items() if topic_id in topic_ids}
    return DeleteDecision(tuple(draft.records), _keys(group.group_id, chosen))


def delete_group(group: ShareGroup) -> DeleteDecision:
    """End a group without members, and all its share-partitions (R136)."""
    assert not group.members, "not_empty refuses it"
    tombstones = tuple(Tombstone(key=RecordKey(kind, group.group_id)) for kind in GROUP_KINDS)
    state = {**group.topics.initialized, **group.topics.deleting}
    return DeleteDecision(tombstones, _keys(group.group_id, state))


def _keys(group_id: str, topics: Mapping[str, TopicState]) -> tuple[SharePartitionKey, ...]:
    return tuple(
        SharePartitionKey(group_id, topic_id, partition)
        for topic_id, state in topics.items()
        for partition in state.partitions
    )
