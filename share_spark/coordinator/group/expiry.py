"""The end of members that send no heartbeat (R116).

Session timers are volatile: who is seen when is a matter of the running engine, and a new one begins all of them anew
(R122).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from share_spark.coordinator.group.draft import Draft
from share_spark.coordinator.group.requests import GroupDecision, GroupLimits, Topics
from share_spark.coordinator.group.state import ShareGroup


def expired(
    group: ShareGroup, last_seen_ms: Mapping[str, int], started_ms: int, now_ms: int, limits: GroupLimits
) -> tuple[str, ...]:
    """Return the members whose session has ended at ``now_ms``.

    ``last_seen_ms``: the time of the last heartbeat by member id. A member that this engine has not seen yet counts as
    seen when the engine started, at ``started_ms``.
    """
    return tuple(
        member_id
        for member_id in group.members
        if now_ms - max(started_ms, last_seen_ms.get(member_id, started_ms)) >= limits.session_timeout_ms
    )


def remove_members(group: ShareGroup, member_ids: Iterable[str], topics: Topics) -> GroupDecision:
    """Remove members, as if they had left together (R115, R116). Of no members there are no records, and no answers."""
    draft = Draft(group.group_id, group)
    draft.remove_members(member_id for member_id in member_ids if member_id in group.members)
    if draft.records:
        draft.follow_topics(topics)
    return GroupDecision(tuple(draft.records), tuple(draft.initialize), ())
