"""The effect of ShareGroupHeartbeats: the records that they need, and an answer to each (R105-R117, R119-R124).

Requests that wait are decided together: first what members say of themselves, then the group epoch and the target, at
most once, then each member's move to its target. So a hundred members that start at once cause one new target, and
none of them is told an assignment that the next one has made old.

Differences to Kafka 4.2, beside that, all in what a member learns earlier: share-partitions are initialized in the same
commit, so a member that joins has its assignment in the first answer; and a member that still names its previous
epoch, as the last answer was lost, is told its assignment again.

The order of the checks, the error codes and their texts are Kafka's (``GroupMetadataManager``,
``GroupCoordinatorService``). Member ids are made by clients: an empty one is refused, as in version 1 of the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from share_spark.coordinator.fault import Fault
from share_spark.coordinator.group.draft import Draft
from share_spark.coordinator.group.records import CurrentMemberAssignment, MemberMetadata
from share_spark.coordinator.group.requests import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    GroupDecision,
    GroupLimits,
    Heartbeat,
    HeartbeatResponse,
    Topics,
)
from share_spark.coordinator.group.state import ShareGroup, latest
from share_spark.model.errors import ErrorCode


def heartbeats(
    group_id: str, group: ShareGroup | None, requests: Sequence[Heartbeat], topics: Topics, limits: GroupLimits
) -> GroupDecision:
    """Return the records and the answers of requests of one group; ``group`` None: there is no such group.

    Heartbeats that change nothing have no records. The caller restarts the session timer of each member whose answer
    has no error, and stops that of one that leaves.
    """
    draft = Draft(group_id, group)
    faults = [_refused_or_taken(draft, request, limits) for request in requests]
    if any(fault is None for fault in faults):
        draft.follow_topics(topics)
    responses = tuple(
        _refusal(fault) if fault else _accepted(draft, group, request, limits)
        for request, fault in zip(requests, faults, strict=True)
    )
    return GroupDecision(latest(draft.records), tuple(draft.initialize), responses)


def _refused_or_taken(draft: Draft, request: Heartbeat, limits: GroupLimits) -> Fault | None:
    """Take what the member says of itself, unless the request is refused."""
    fault = _malformed(draft.group_id, request) or _fault(draft, request, limits)
    if fault is not None:
        return fault
    if request.member_epoch == LEAVE_EPOCH:
        draft.remove_members([request.member_id])
        return None
    known = draft.group.members.get(request.member_id)
    draft.put_member(_described(draft.group_id, known, request))
    return None


# ------------------------------------------------------------------------------------------------ checks


def _malformed(group_id: str, request: Heartbeat) -> Fault | None:
    """Return INVALID_REQUEST for what is wrong whatever the state is (R106)."""
    if not request.member_id.strip():
        return _invalid("MemberId can't be empty.")
    if not group_id.strip():
        return _invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        return _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        return _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        return _invalid("MemberEpoch is invalid.")
    return None


def _fault(draft: Draft, request: Heartbeat, limits: GroupLimits) -> Fault | None:
    """Check that there are the group, room in it, and the member, and then its epoch (R105, R109, R114)."""
    joins, leaves = request.member_epoch == JOIN_EPOCH, request.member_epoch == LEAVE_EPOCH
    members = draft.group.members
    if not draft.exists:
        missing = f"Group {draft.group_id} not found." if leaves else f"Share group {draft.group_id} not found."
        return None if joins else Fault(ErrorCode.GROUP_ID_NOT_FOUND, missing)
    if request.member_id in members:
        return None if joins or leaves else _fenced(draft.group.assignments.get(request.member_id), request)
    if not leaves and len(members) >= limits.max_size:
        full = f"The share group has reached its maximum capacity of {limits.max_size} members."
        return Fault(ErrorCode.GROUP_MAX_SIZE_REACHED, full)
    return None if joins else _unknown_member(draft.group_id, request.member_id)


def _fenced(known: CurrentMemberAssignment | None, request: Heartbeat) -> Fault | None:
    """Refuse an epoch that is neither the member's present nor its previous one (R114).

    ``known`` None: the member joins with the same batch, and has no epoch yet.
    """
    epoch, present = request.member_epoch, known.member_epoch if known else JOIN_EPOCH
    previous = known.previous_member_epoch if known else JOIN_EPOCH
    if epoch in (present, previous):
        return None
    end = "The member must abandon all its partitions and rejoin."
    relation = f"a {'greater' if epoch > present else 'smaller'} member epoch ({epoch}) than the one known by the group"
    other = "" if epoch > present else f", and it does not match the previous member epoch ({previous})"
    return Fault(
        ErrorCode.FENCED_MEMBER_EPOCH, f"The share group member has {relation} coordinator ({present}){other}. {end}"
    )


def _unknown_member(group_id: str, member_id: str) -> Fault:
    return Fault(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def _invalid(message: str) -> Fault:
    return Fault(ErrorCode.INVALID_REQUEST, message)


# ----------------------------------------------------------------------------------------------- members


def _described(group_id: str, known: MemberMetadata | None, request: Heartbeat) -> MemberMetadata:
    """Return the member as the request describes it; what is not given stays as it was (R108)."""
    names = request.subscribed_topic_names
    if names is None:
        names = known.subscribed_topic_names if known else ()
    return MemberMetadata(
        group_id=group_id,
        member_id=request.member_id,
        rack_id=known.rack_id if known and request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=tuple(sorted(set(names))),
    )


# ----------------------------------------------------------------------------------------------- answers


def _refusal(fault: Fault) -> HeartbeatResponse:
    return HeartbeatResponse(error=fault.code, error_message=fault.message)


def _accepted(draft: Draft, group: ShareGroup | None, request: Heartbeat, limits: GroupLimits) -> HeartbeatResponse:
    """Move the member to its target, and tell it the epoch and, if it does not know it, the assignment (R112, R113)."""
    if request.member_epoch == LEAVE_EPOCH:
        return HeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
    if request.member_id not in draft.group.members:  # it has left with a later request of the same batch
        return _refusal(_unknown_member(draft.group_id, request.member_id))
    before = group.assignments.get(request.member_id) if group else None
    after = draft.move_to_target(request.member_id)
    return HeartbeatResponse(
        member_id=request.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        assignment=None if _is_told(request, before, after) else after.partitions,
    )


def _is_told(request: Heartbeat, before: CurrentMemberAssignment | None, after: CurrentMemberAssignment) -> bool:
    """Return whether the member knows its assignment: it has the epoch of it, and asks for nothing anew (R112)."""
    if before is None or request.subscribed_topic_names is not None:
        return False
    return request.member_epoch == before.member_epoch and before.partitions == after.partitions
