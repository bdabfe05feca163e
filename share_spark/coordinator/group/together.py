"""All that is asked of a group at once: sessions that have ended, and heartbeats, in one decision."""

from __future__ import annotations

from share_spark.coordinator.group.expiry import remove_members
from share_spark.coordinator.group.heartbeat import heartbeats
from share_spark.coordinator.group.requests import GroupDecision, GroupRequests
from share_spark.coordinator.group.state import ShareGroup, latest, replay


def decide_together(group: ShareGroup, asked: GroupRequests) -> GroupDecision:
    """Return the records and the answers. Without records nothing changes, and there is nothing to commit."""
    removed = remove_members(group, asked.gone, asked.topics)
    left = replay(removed.records, group)
    found = heartbeats(group.group_id, left, asked.heartbeats, asked.topics, asked.limits)
    initialize = (*removed.initialize, *found.initialize)
    return GroupDecision(latest([*removed.records, *found.records]), initialize, found.responses)
