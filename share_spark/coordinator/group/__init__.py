"""The group coordinator of one share group, pure: members, epochs, assignments, and which topics have state.

How it works. A group is a value (``ShareGroup``): the latest record of each key. ``heartbeat(group, request, topics,
limits)`` answers one request with the records that it needs; ``evolve(group, record)`` is the only function that makes
a new state, live and in recovery. A request sees the topics as an argument, so new partitions and topics that are gone
show at the next heartbeat.

    heartbeat --> member, subscription, topics changed?  --> group epoch + 1
                                                                |  group epoch > assignment epoch?
                  assignment in the answer <-- member epoch <-- target of all members

The caller decides all requests that wait (``heartbeats``), appends the records together with the share-partitions to
``initialize`` in one commit, and then answers and goes on with ``replay(records, group)``. A commit that failed has
changed nothing. Session timers are its own (``expired``).

Not imported here: pyspark, os, time, random, threading, socket, logging, and the package ``partition``.
"""

from share_spark.coordinator.group.admin import (
    AdminDecision,
    NewOffset,
    alter_offsets,
    begin_deletion,
    delete_group,
    end_deletion,
    not_empty,
    topics_to_delete,
)
from share_spark.coordinator.group.expiry import expired, remove_members
from share_spark.coordinator.group.heartbeat import heartbeat, heartbeats
from share_spark.coordinator.group.requests import (
    BatchDecision,
    GroupDecision,
    GroupLimits,
    Heartbeat,
    HeartbeatResponse,
    TopicMetadata,
    Topics,
)
from share_spark.coordinator.group.state import GroupState, ShareGroup, evolve, latest, new_group, replay, snapshot
from share_spark.coordinator.group.types import GroupType, refusal_of_offsets, refusal_to_join
from share_spark.coordinator.group.views import described, listed, matches

__all__ = [
    "AdminDecision",
    "BatchDecision",
    "GroupDecision",
    "GroupLimits",
    "GroupState",
    "GroupType",
    "Heartbeat",
    "HeartbeatResponse",
    "NewOffset",
    "ShareGroup",
    "TopicMetadata",
    "Topics",
    "alter_offsets",
    "begin_deletion",
    "delete_group",
    "described",
    "end_deletion",
    "evolve",
    "expired",
    "heartbeat",
    "heartbeats",
    "latest",
    "listed",
    "matches",
    "new_group",
    "not_empty",
    "refusal_of_offsets",
    "refusal_to_join",
    "remove_members",
    "replay",
    "snapshot",
    "topics_to_delete",
]
