"""The members of one group: their heartbeats, and the end of those that send none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.coordinator.group import (
    GroupLimits,
    Heartbeat,
    HeartbeatResponse,
    ShareGroup,
    Topics,
    expired,
    heartbeats,
    new_group,
    remove_members,
    replay,
)
from share_spark.gateway.apis import SHARE_GROUP_HEARTBEAT
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.topic_ids import uuid_of
from share_spark.model.errors import ErrorCode


@dataclass(slots=True, kw_only=True)
class GroupMembers:
    """The members, for the thread of the event loop. They are not durable: after a restart of the gateway a member is
    unknown, and joins again. So a group is there from the beginning: an unknown one is the end of librdkafka's
    consumer."""

    group_id: str
    clock: Callable[[], int]
    limits: GroupLimits = field(default_factory=GroupLimits)
    _group: ShareGroup = field(init=False)
    _seen_ms: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._group = new_group(self.group_id)

    def heartbeat(self, request: Heartbeat, topics: Topics) -> HeartbeatResponse:
        """Return the answer."""
        self.expire(topics)
        records, _, (response,) = heartbeats(self.group_id, self._group, [request], topics, self.limits)
        self._group = replay(records, self._group) or self._group
        if response.error is ErrorCode.NONE:
            self._note(request)
        return response

    @property
    def group(self) -> ShareGroup:
        """The group as it is now."""
        return self._group

    @property
    def topic_names(self) -> frozenset[str]:
        """The topics that members subscribe to."""
        return frozenset(self._group.subscribed_topic_names)

    def expire(self, topics: Topics) -> None:
        """Remove the members whose session has ended."""
        gone = expired(self._group, self._seen_ms, 0, self.clock(), self.limits)
        if gone:
            self._group = replay(remove_members(self._group, gone, topics).records, self._group) or self._group
            for member_id in gone:
                self._seen_ms.pop(member_id, None)

    def _note(self, request: Heartbeat) -> None:
        if request.member_epoch < 0:
            self._seen_ms.pop(request.member_id, None)
        else:
            self._seen_ms[request.member_id] = self.clock()


def heartbeat_answer(version: int, response: HeartbeatResponse) -> ResponsePayload:
    """Return the answer to a ShareGroupHeartbeat."""
    values: dict[str, Any] = {
        "throttle_time": timedelta(),
        "error_code": WireError(response.error),
        "error_message": response.error_message,
        "member_id": response.member_id,
        "member_epoch": response.member_epoch,
        "heartbeat_interval": timedelta(milliseconds=response.heartbeat_interval_ms),
        "assignment": None,
    }
    if response.assignment is not None:
        values["assignment"] = {
            "topic_partitions": [
                {"topic_id": uuid_of(topic_id), "partitions": partitions}
                for topic_id, partitions in response.assignment.items()
            ]
        }
    return make_message(load_response_schema(SHARE_GROUP_HEARTBEAT.key, version), values)
