"""The effect of a ShareGroupHeartbeat: at most a few records, and an answer (R105-R117, R119-R124).

Differences to Kafka 4.2, all in what a member learns earlier: share-partitions are initialised in the same commit, so a
member that joins has its assignment in the first answer; and a member that still names its previous epoch, as the last
answer was lost, is told its assignment again.

The order of the checks, the error codes and their texts are Kafka's (``GroupMetadataManager``,
``GroupCoordinatorService``). Member ids are made by clients: an empty one is refused, as in version 1 of the request.
"""

from __future__ import annotations

from collections.abc import Iterable

from share_spark.coordinator.fault import Fault
from share_spark.coordinator.group.draft import Draft, metadata_hash
from share_spark.coordinator.group.records import CurrentMemberAssignment, GroupRecord, MemberMetadata
from share_spark.coordinator.group.requests import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    BatchDecision,
    GroupDecision,
    GroupLimits,
    Heartbeat,
    HeartbeatResponse,
    Topics,
)
from share_spark.coordinator.group.state import ShareGroup, latest, new_group, replay
from share_spark.coordinator.messages import InitializeState
from share_spark.model.errors import ErrorCode


def heartbeats(
    group: ShareGroup | None, requests: Iterable[Heartbeat], topics: Topics, limits: GroupLimits
) -> BatchDecision:
    """Decide requests of one group, each after those before it. Of what they write, the latest of each key is kept."""
    records: list[GroupRecord] = []
    initialize: list[InitializeState] = []
    responses: list[HeartbeatResponse] = []
    for request in requests:
        decision = heartbeat(group, request, topics, limits)
        group = replay(decision.records, group)
        records += decision.records
        initialize += decision.initialize
        responses.append(decision.response)
    return BatchDecision(latest(records), tuple(initialize), tuple(responses))


def heartbeat(group: ShareGroup | None, request: Heartbeat, topics: Topics, limits: GroupLimits) -> GroupDecision:
    """Return the records and the answer of one request; ``group`` None: there is no such group.

    A heartbeat that changes nothing has no records. The caller restarts the session timer of a member whose answer has
    no error, and stops that of one that leaves.
    """
    fault = malformed(request) or _refusal(group, request, limits)
    if fault is not None:
        return GroupDecision((), (), HeartbeatResponse(error=fault.code, error_message=fault.message))
    draft = Draft(group or new_group(request.group_id))
    if request.member_epoch == LEAVE_EPOCH:
        return _left(draft, request, topics)
    return _stayed(draft, request, topics, limits)


# ------------------------------------------------------------------------------------------------ checks


def malformed(request: Heartbeat) -> Fault | None:
    """Return INVALID_REQUEST for what is wrong whatever the state is (R106)."""
    if not request.member_id.strip():
        return _invalid("MemberId can't be empty.")
    if not request.group_id.strip():
        return _invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        return _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        return _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        return _invalid("MemberEpoch is invalid.")
    return None


def _refusal(group: ShareGroup | None, request: Heartbeat, limits: GroupLimits) -> Fault | None:
    """Check that there are the group, room in it, and the member, and then its epoch (R105, R109, R114)."""
    joins, leaves = request.member_epoch == JOIN_EPOCH, request.member_epoch == LEAVE_EPOCH
    if group is None:
        missing = f"Group {request.group_id} not found." if leaves else f"Share group {request.group_id} not found."
        return None if joins else Fault(ErrorCode.GROUP_ID_NOT_FOUND, missing)
    if request.member_id in group.members:
        return None if joins or leaves else _fenced(group.assignments[request.member_id], request.member_epoch)
    if not leaves and len(group.members) >= limits.max_size:
        return Fault(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum capacity of {limits.max_size} members.",
        )
    if joins:
        return None
    return Fault(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}."
    )


def _fenced(known: CurrentMemberAssignment, epoch: int) -> Fault | None:
    """Refuse an epoch that is neither the member's present nor its previous one (R114)."""
    if epoch in (known.member_epoch, known.previous_member_epoch):
        return None
    end = "The member must abandon all its partitions and rejoin."
    if epoch > known.member_epoch:
        relation = f"a greater member epoch ({epoch}) than the one known by the group coordinator"
        return Fault(
            ErrorCode.FENCED_MEMBER_EPOCH, f"The share group member has {relation} ({known.member_epoch}). {end}"
        )
    relation = f"a smaller member epoch ({epoch}) than the one known by the group coordinator ({known.member_epoch})"
    previous = f"it does not match the previous member epoch ({known.previous_member_epoch})"
    return Fault(ErrorCode.FENCED_MEMBER_EPOCH, f"The share group member has {relation}, and {previous}. {end}")


def _invalid(message: str) -> Fault:
    return Fault(ErrorCode.INVALID_REQUEST, message)


# --------------------------------------------------------------------------------------------- decisions


def _stayed(draft: Draft, request: Heartbeat, topics: Topics, limits: GroupLimits) -> GroupDecision:
    """Take what the member says, follow the topics, and move the member to its target (R107-R113)."""
    known = draft.group.members.get(request.member_id)
    before = draft.group.assignments.get(request.member_id)
    member = _described(known, request)
    draft.write(member)
    resubscribed = known is None or known.subscribed_topic_names != member.subscribed_topic_names
    _follow_topics(draft, topics, resubscribed)
    after = _moved_to_target(draft, request.member_id)
    response = HeartbeatResponse(
        member_id=request.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        assignment=None if _is_told(request, before, after) else after.partitions,
    )
    return GroupDecision(tuple(draft.records), tuple(draft.initialize), response)


def _is_told(request: Heartbeat, before: CurrentMemberAssignment | None, after: CurrentMemberAssignment) -> bool:
    """Return whether the member knows its assignment: it has the epoch of it, and asks for nothing anew (R112)."""
    if before is None or request.subscribed_topic_names is not None:
        return False
    return request.member_epoch == before.member_epoch and before.partitions == after.partitions


def _described(known: MemberMetadata | None, request: Heartbeat) -> MemberMetadata:
    """Return the member as the request describes it; what is not given stays as it was (R108)."""
    names = request.subscribed_topic_names
    if names is None:
        names = known.subscribed_topic_names if known else ()
    rack_id = request.rack_id if request.rack_id is not None or known is None else known.rack_id
    return MemberMetadata(
        group_id=request.group_id,
        member_id=request.member_id,
        rack_id=rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=tuple(sorted(set(names))),
    )


def _follow_topics(draft: Draft, topics: Topics, resubscribed: bool) -> None:
    """Raise the group epoch if subscriptions or topics changed, and compute the target if that is due (R111, R119).

    A member that left, or whose session ended, has raised the epoch before, and left the target to this heartbeat.
    """
    draft.initialize_state(topics, state_epoch=draft.group.epoch + 1)
    found = metadata_hash(draft.group.subscribed_topic_names, topics)
    if resubscribed or draft.initialize or found != draft.group.metadata.metadata_hash:
        draft.bump_epoch(topics)
    if draft.group.epoch > draft.group.assignment_epoch:
        draft.compute_target(topics)


def _moved_to_target(draft: Draft, member_id: str) -> CurrentMemberAssignment:
    """Move the member to its target at once: two members may hold a partition at the same time (R113)."""
    group = draft.group
    known = group.assignments.get(member_id)
    if known is not None and known.member_epoch == group.assignment_epoch:
        return known
    moved = CurrentMemberAssignment(
        group_id=group.group_id,
        member_id=member_id,
        member_epoch=group.assignment_epoch,
        previous_member_epoch=known.member_epoch if known else JOIN_EPOCH,
        partitions=group.targets[member_id].partitions,
    )
    draft.write(moved)
    return moved


def _left(draft: Draft, request: Heartbeat, topics: Topics) -> GroupDecision:
    """Forget the member. Others get its partitions with their own next heartbeat (R115)."""
    draft.remove_members([request.member_id])
    draft.bump_epoch(topics)
    response = HeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
    return GroupDecision(tuple(draft.records), (), response)
