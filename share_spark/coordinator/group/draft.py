"""The records of one decision while it is made, and the group that they lead to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace

from share_spark.coordinator.group.assignor import assign
from share_spark.coordinator.group.records import (
    GroupRecord,
    RecordKey,
    RecordKind,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    Tombstone,
    TopicState,
)
from share_spark.coordinator.group.requests import Topics
from share_spark.coordinator.group.state import ShareGroup, evolve, known_record
from share_spark.coordinator.messages import InitializeState


class Draft:
    """A group with the ``records`` of a decision applied, and the share-partitions that it has to ``initialize``."""

    def __init__(self, group: ShareGroup) -> None:
        self.group = group
        self.records: list[GroupRecord] = []
        self.initialize: list[InitializeState] = []

    def write(self, record: GroupRecord) -> None:
        """Add a record. One that says what is known already is left out."""
        if known_record(self.group, record.key) == record:
            return
        after = evolve(self.group, record)
        assert after is not None, "a draft does not end its group"
        self.group = after
        self.records.append(record)

    def remove_members(self, member_ids: Iterable[str]) -> None:
        """Forget members, each with its assignments (R115)."""
        kinds = (RecordKind.CURRENT_MEMBER_ASSIGNMENT, RecordKind.TARGET_ASSIGNMENT_MEMBER, RecordKind.MEMBER_METADATA)
        for member_id in member_ids:
            for kind in kinds:
                self.write(Tombstone(key=RecordKey(kind, self.group.group_id, member_id)))

    def bump_epoch(self, topics: Topics) -> None:
        """Raise the group epoch, for the topics as they are now (R119)."""
        found = metadata_hash(self.group.subscribed_topic_names, topics)
        self.write(replace(self.group.metadata, epoch=self.group.epoch + 1, metadata_hash=found))

    def initialize_state(self, topics: Topics, state_epoch: int) -> None:
        """Give state to all partitions of subscribed topics that have none (R127, R128).

        Not where the state of the topic is being deleted (R133).
        """
        known = self.group.topics
        wanted = {
            topics[name].topic_id: TopicState(name, tuple(range(topics[name].partitions)))
            for name in sorted(self.group.subscribed_topic_names)
            if name in topics and topics[name].topic_id not in known.deleting
        }
        self.write_state(wanted, state_epoch)

    def write_state(self, wanted: dict[str, TopicState], state_epoch: int) -> None:
        """Give state to the ``wanted`` partitions, by topic id, that have none."""
        initialized = dict(self.group.topics.initialized)
        for topic_id, (name, partitions) in wanted.items():
            known = initialized[topic_id].partitions if topic_id in initialized else ()
            new = sorted(set(partitions).difference(known))
            if not new:
                continue
            initialized[topic_id] = TopicState(name, tuple(sorted({*known, *new})))
            self.initialize += [InitializeState(topic_id=topic_id, partition=p, state_epoch=state_epoch) for p in new]
        if initialized != self.group.topics.initialized:
            self.write(replace(self.group.topics, initialized=initialized))

    def compute_target(self, topics: Topics) -> None:
        """Compute the target of all members, for the present group epoch (R120, R123, R124)."""
        group = self.group
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id in group.topics.initialized}
        targets = assign(
            {
                member_id: frozenset(ids[name] for name in member.subscribed_topic_names if name in ids)
                for member_id, member in group.members.items()
            },
            {topic_id: state.partitions for topic_id, state in group.topics.initialized.items()},
            {member_id: target.partitions for member_id, target in group.targets.items()},
        )
        for member_id, partitions in targets.items():
            self.write(TargetAssignmentMember(group_id=group.group_id, member_id=member_id, partitions=partitions))
        self.write(TargetAssignmentMetadata(group_id=group.group_id, assignment_epoch=group.epoch))


def metadata_hash(topic_names: frozenset[str], topics: Topics) -> int:
    """Return 64 bits that change with the ids and partitions of the topics that are there of ``topic_names``; 0: none.

    Kafka's hash of the same is another one.
    """
    found = [(name, *topics[name]) for name in sorted(topic_names) if name in topics]
    if not found:
        return 0
    digest = hashlib.blake2b(json.dumps(found).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
