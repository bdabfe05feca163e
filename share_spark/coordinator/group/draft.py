"""The records of one decision while it is made, and the group that they lead to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from share_spark.coordinator.group.assignor import assign
from share_spark.coordinator.group.records import (
    CurrentMemberAssignment,
    GroupRecord,
    MemberMetadata,
    RecordKey,
    RecordKind,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    Tombstone,
    TopicState,
)
from share_spark.coordinator.group.requests import JOIN_EPOCH, Topics
from share_spark.coordinator.group.state import ShareGroup, evolve, known_record, new_group
from share_spark.coordinator.messages import InitializeState


class Draft:
    """A group with the ``records`` of a decision applied, and the share-partitions that it has to ``initialize``.

    ``exists``: there is such a group, or will be by these records.
    """

    def __init__(self, group_id: str, group: ShareGroup | None) -> None:
        self.group_id = group_id
        self.group = group or new_group(group_id)
        self.exists = group is not None
        self.records: list[GroupRecord] = []
        self.initialize: list[InitializeState] = []
        self._epoch_is_due = False

    def write(self, record: GroupRecord) -> None:
        """Add a record. One that says what is known already is left out."""
        if known_record(self.group, record.key) == record:
            return
        after = evolve(self.group, record)
        assert after is not None, "a draft does not end its group"
        self.group = after
        self.exists = True
        self.records.append(record)

    # ------------------------------------------------------------------------------------------- members

    def put_member(self, member: MemberMetadata) -> None:
        """Add a member, or describe it anew; another subscription makes a group epoch due (R119)."""
        known = self.group.members.get(member.member_id)
        if known is None or known.subscribed_topic_names != member.subscribed_topic_names:
            self._epoch_is_due = True
        self.write(member)

    def remove_members(self, member_ids: Iterable[str]) -> None:
        """Forget members, each with its assignments, which makes a group epoch due (R115, R119)."""
        kinds = (RecordKind.CURRENT_MEMBER_ASSIGNMENT, RecordKind.TARGET_ASSIGNMENT_MEMBER, RecordKind.MEMBER_METADATA)
        for member_id in member_ids:
            for kind in kinds:
                self.write(Tombstone(key=RecordKey(kind, self.group_id, member_id)))
            self._epoch_is_due = True

    def move_to_target(self, member_id: str) -> CurrentMemberAssignment:
        """Give a member its target at once: two members may hold a partition at the same time (R113)."""
        known = self.group.assignments.get(member_id)
        epoch = self.group.assignment_epoch
        if known is not None and known.member_epoch == epoch:
            return known
        moved = CurrentMemberAssignment(
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            previous_member_epoch=known.member_epoch if known else JOIN_EPOCH,
            partitions=self.group.targets[member_id].partitions,
        )
        self.write(moved)
        return moved

    # ------------------------------------------------------------------------------------ epochs and target

    def follow_topics(self, topics: Topics) -> None:
        """Raise the group epoch if that is due, or the topics that can be assigned are others than before (R119).

        Then compute the target, unless nobody is there: that is left to the next member (R111, R120).
        """
        assignable = self._assignable(topics)
        found = metadata_hash(assignable)
        if self._epoch_is_due or found != self.group.metadata.metadata_hash:
            self.write(replace(self.group.metadata, epoch=self.group.epoch + 1, metadata_hash=found))
            self._epoch_is_due = False
        if self.group.members and self.group.epoch > self.group.assignment_epoch:
            names = assignable.items()
            self.write_state({topic_id: TopicState(name, tuple(range(many))) for name, (topic_id, many) in names})
            self._compute_target({name: topic.topic_id for name, topic in names})

    def write_state(self, wanted: Mapping[str, TopicState]) -> None:
        """Give state to the ``wanted`` partitions, by topic id, that have none (R127, R128)."""
        initialized = dict(self.group.topics.initialized)
        for topic_id, (name, partitions) in wanted.items():
            known = initialized[topic_id].partitions if topic_id in initialized else ()
            new = sorted(set(partitions).difference(known))
            if not new:
                continue
            initialized[topic_id] = TopicState(name, tuple(sorted({*known, *new})))
            self.initialize += [
                InitializeState(topic_id=topic_id, partition=partition, state_epoch=self.group.epoch)
                for partition in new
            ]
        self.write(replace(self.group.topics, initialized=initialized))

    def _assignable(self, topics: Topics) -> Topics:
        """Return the subscribed topics that are there, without those whose state is being deleted (R133)."""
        deleting = self.group.topics.deleting
        return {
            name: topics[name]
            for name in sorted(self.group.subscribed_topic_names)
            if name in topics and topics[name].topic_id not in deleting
        }

    def _compute_target(self, topic_ids: Mapping[str, str]) -> None:
        """Compute the target of all members, for the present group epoch (R120, R123, R124)."""
        group = self.group
        targets = assign(
            {
                member_id: frozenset(topic_ids[name] for name in member.subscribed_topic_names if name in topic_ids)
                for member_id, member in group.members.items()
            },
            {topic_id: state.partitions for topic_id, state in group.topics.initialized.items()},
            {member_id: target.partitions for member_id, target in group.targets.items()},
        )
        for member_id, partitions in targets.items():
            self.write(TargetAssignmentMember(group_id=self.group_id, member_id=member_id, partitions=partitions))
        self.write(TargetAssignmentMetadata(group_id=self.group_id, assignment_epoch=group.epoch))


def metadata_hash(topics: Topics) -> int:
    """Return 64 bits that change with names, ids and partitions of ``topics``; 0: none.

    Kafka's hash of the same is another one.
    """
    if not topics:
        return 0
    found = [(name, *topics[name]) for name in sorted(topics)]
    digest = hashlib.blake2b(json.dumps(found).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
