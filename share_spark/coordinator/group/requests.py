"""Requests of members, what is known beside the group, and answers: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from share_spark.coordinator.group.records import Assignment, GroupRecord
from share_spark.coordinator.messages import InitializeState
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ErrorCode

JOIN_EPOCH = 0
"""The member epoch of a heartbeat that joins, or joins again (R107)."""

LEAVE_EPOCH = -1
"""The member epoch of a heartbeat that leaves (R115)."""


class TopicMetadata(NamedTuple):
    """A topic as it is now: partitions 0 to ``partitions`` - 1. A topic that is made anew has another id."""

    topic_id: str
    partitions: int


Topics = Mapping[str, TopicMetadata]
"""The topics that are there now, by name: at least all those of them that members subscribe to. One that is missing
counts as deleted, so while the brokers cannot be asked, these are the topics as they were last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Settings of a group. ``max_size``: the number of members (R109)."""

    max_size: int = 200
    heartbeat_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000

    @classmethod
    def of(cls, config: GroupConfig) -> GroupLimits:
        """Return the limits that are in the settings of the group."""
        return cls(
            max_size=config.max_group_size,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            session_timeout_ms=config.session_timeout_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A ShareGroupHeartbeat of a member. ``rack_id``, ``subscribed_topic_names`` None: as before (R108).

    ``client_id`` and ``client_host`` are those of the connection.
    """

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """The answer to a heartbeat. ``assignment`` None: as before (R112)."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequests:
    """The requests to a group that are decided together: first the members that are ``gone`` are removed, as their
    session has ended, and then the ``heartbeats`` are taken."""

    heartbeats: tuple[Heartbeat, ...] = ()
    gone: tuple[str, ...] = ()
    topics: Topics
    limits: GroupLimits


class GroupDecision(NamedTuple):
    """The outcome of requests: ``records`` of the group, and share-partitions to ``initialize``, all in one commit.

    ``responses``: one per request, in order; they go out after it. Without records there is nothing to commit.
    """

    records: tuple[GroupRecord, ...]
    initialize: tuple[InitializeState, ...]
    responses: tuple[HeartbeatResponse, ...]
