"""The type of a group id: which protocol may use it (R110, R138-R141)."""

from __future__ import annotations

from enum import StrEnum

from share_spark.coordinator.fault import Fault
from share_spark.model.errors import ErrorCode


class GroupType(StrEnum):
    """The types of groups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


def refusal_to_join(group_id: str, owner: GroupType | None, asked: GroupType) -> Fault | None:
    """Return why a member of type ``asked`` cannot join: the id belongs to, or is reserved for, the type ``owner``.

    ``owner`` None: the id is free. A share group that is asked of another type is not found, as in Kafka 4.2; all
    others are INCONSISTENT_GROUP_PROTOCOL (R140).
    """
    if owner is None or owner is asked:
        return None
    if asked is GroupType.SHARE:
        return Fault(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
    return Fault(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Group {group_id} is a {owner} group.")


def refusal_of_offsets(group_id: str) -> Fault:
    """Return the answer to a request for the committed offsets of a share group: it has none (R141)."""
    return Fault(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is a share group, without committed offsets.")
