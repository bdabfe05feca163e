"""The group coordinator of one share group, pure: members, epochs, assignments, and which topics have state.

How it works. A group is a value (``ShareGroup``): the latest record of each key. ``heartbeats(group_id, group,
requests, topics, limits)`` gives the records that requests need, and their answers; ``evolve(group, record)`` is the
only function that makes a new state, live and in recovery. The topics as they are now are an argument, so new
partitions and topics that are gone show at the next heartbeat.

    members join, leave,                              target of      each member that asks
    subscribe; topics change  -->  group epoch + 1  -->  all    -->  moves to it, and is told
                                   record 11             records     record 14
    records 10                                           13, 12      -> the answer

The caller decides all requests that wait (``decide_together``), appends the records in one commit, and then answers
and goes on with ``replay(records, group)``. A commit that failed has changed nothing. Session timers are its own
(``expired``).

Not imported here: pyspark, os, time, random, threading, socket, logging, and the package ``partition``.
"""

from share_spark.coordinator.group.admin import (
    AlterDecision,
    DeleteDecision,
    NewOffset,
    alter_offsets,
    begin_deletion,
    delete_group,
    end_deletion,
    not_empty,
    share_partitions,
    topics_to_delete,
)
from share_spark.coordinator.group.expiry import expired, remove_members
from share_spark.coordinator.group.heartbeat import heartbeats
from share_spark.coordinator.group.records import GroupRecord
from share_spark.coordinator.group.requests import (
    GroupDecision,
    GroupLimits,
    GroupRequests,
    Heartbeat,
    HeartbeatResponse,
    TopicMetadata,
    Topics,
)
from share_spark.coordinator.group.state import GroupState, ShareGroup, evolve, latest, new_group, replay, snapshot
from share_spark.coordinator.group.together import decide_together
from share_spark.coordinator.group.types import GroupType, refusal_of_offsets, refusal_to_join
from share_spark.coordinator.group.views import described, listed, matches

__all__ = [
    "AlterDecision",
    "DeleteDecision",
    "GroupDecision",
    "GroupLimits",
    "GroupRecord",
    "GroupRequests",
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
    "decide_together",
    "delete_group",
    "described",
    "end_deletion",
    "evolve",
    "expired",
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
    "share_partitions",
    "snapshot",
    "topics_to_delete",
]
