"""The members of one group: their heartbeats, and the end of those that send none.

What changes the group is asked of its engine, and answered once it is durable. One ask is under way at a time; what
comes meanwhile is in the next one, so many heartbeats share a commit. A heartbeat that changes nothing is answered at
once, by the group as of the last commit:

    heartbeat  ->  what would it change?  ->  nothing: answer
                                          ->  something: ask, with all that wait  ->  the engine commits  ->  answer

Session timers are no state: they begin anew for all members with each engine (R122).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.coordinator.group import (
    GroupLimits,
    GroupRequests,
    Heartbeat,
    HeartbeatResponse,
    ShareGroup,
    Topics,
    decide_together,
    expired,
    new_group,
    remove_members,
    replay,
)
from share_spark.gateway.apis import SHARE_GROUP_HEARTBEAT
from share_spark.gateway.client_queue import ClientQueue, GroupUnavailableError
from share_spark.gateway.group_topics import GroupTopics
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.topic_ids import uuid_of
from share_spark.model.errors import ErrorCode

_PATIENCE_S = 3.0
"""The time for which a heartbeat waits for an engine. Clients ask again after the error that follows."""

_PATIENCE_REPLACED_S = 0.5
"""The same where the engine was replaced. Clients look for the coordinator then, without a pause if they find this one
again."""

_LEAST_WAIT_S = 0.5
"""The least time between two looks for sessions that have ended."""

_NO_ENGINE = HeartbeatResponse(
    error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error_message="No engine has the group at present."
)

_REPLACED = HeartbeatResponse(error=ErrorCode.NOT_COORDINATOR, error_message="Another engine has the group, elsewhere.")


@dataclass(slots=True, kw_only=True)
class GroupMembers:
    """The members, for the thread of the event loop. ``queue``: to the engine, which has the group."""

    group_id: str
    queue: ClientQueue
    topics: GroupTopics
    clock: Callable[[], int]
    _seen_ms: dict[str, int] = field(default_factory=dict)
    _began_ms: int = 0
    _engines: int = 0
    _waiting: list[tuple[Heartbeat, asyncio.Future[HeartbeatResponse]]] = field(default_factory=list)
    _asking: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None

    async def heartbeat(self, request: Heartbeat) -> HeartbeatResponse:
        """Return the answer. Raises TopicError, TopicUnreachableError."""
        named = request.subscribed_topic_names or ()
        if not self.queue.is_open:
            await self.topics.of(named)  # the engine begins
            patience_s = _PATIENCE_REPLACED_S if self.queue.was_replaced else _PATIENCE_S
            if not await self.queue.is_open_within(patience_s):
                return self._without_engine
        topics = await self.topics.of(self.group.subscribed_topic_names.union(named))
        decision = decide_together(self.group, self._requests([request], topics))
        if decision.records:
            return await self._asked(request)
        (response,) = decision.responses
        self._note(request, response)
        self._watch_sessions()
        return response

    @property
    def limits(self) -> GroupLimits:
        """The limits of members, by the settings of the group."""
        return GroupLimits.of(self.queue.config)

    @property
    def _without_engine(self) -> HeartbeatResponse:
        """The answer while no engine has the group here. Clients stay after the one, and go elsewhere after the
        other."""
        return _REPLACED if self.queue.was_replaced else _NO_ENGINE

    @property
    def is_known(self) -> bool:
        """Whether an engine has told of the group."""
        return self.queue.is_open

    @property
    def group(self) -> ShareGroup:
        """The group as of the last commit. It is there from the beginning: an unknown one is the end of librdkafka's
        consumer."""
        return self.queue.group or new_group(self.group_id)

    def present(self, topics: Topics) -> ShareGroup:
        """Return the group without the members whose session has ended. ``topics``: those that members subscribe to."""
        group = self.group
        return replay(remove_members(group, self._gone(), topics).records, group) or group

    # ------------------------------------------------------------------------------------------------ asking

    async def _asked(self, request: Heartbeat) -> HeartbeatResponse:
        """Ask with the next ask, and return the answer. If the client is gone by then, what it said still counts."""
        answer: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._ask_soon()
        return await answer

    def _ask_soon(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_all())

    async def _ask_all(self) -> None:
        """Ask until nobody waits; at least once, as sessions may have ended."""
        while True:
            taken, self._waiting = self._waiting, []
            try:
                responses = await self._responses([request for request, _ in taken])
            except GroupUnavailableError:
                _answer(taken, [self._without_engine] * len(taken))
            except Exception as fault:  # noqa: BLE001 - whoever asked is told, and the others go on
                _refuse(taken, fault)
            else:
                _answer(taken, responses)
            if not self._waiting:
                break
        self._watch_sessions()

    async def _responses(self, requests: Sequence[Heartbeat]) -> Sequence[HeartbeatResponse]:
        names = self.group.subscribed_topic_names.union(*(one.subscribed_topic_names or () for one in requests))
        asked = self._requests(requests, await self.topics.of(names))
        answer = await self.queue.ask_group(asked)
        for request, response in zip(requests, answer.responses, strict=True):
            self._note(request, response)
        return answer.responses

    def _requests(self, requests: Iterable[Heartbeat], topics: Topics) -> GroupRequests:
        return GroupRequests(heartbeats=tuple(requests), gone=self._gone(), topics=topics, limits=self.limits)

    # ---------------------------------------------------------------------------------------------- sessions

    def _note(self, request: Heartbeat, response: HeartbeatResponse) -> None:
        """Begin the session of a member anew, or end it."""
        if response.error is not ErrorCode.NONE:
            return
        if request.member_epoch < 0:
            self._seen_ms.pop(request.member_id, None)
        else:
            self._seen_ms[request.member_id] = self.clock()

    def _gone(self) -> tuple[str, ...]:
        """Return the members whose session has ended."""
        self._begin_sessions()
        return expired(self.group, self._seen_ms, self._began_ms, self.clock(), self.limits)

    def _begin_sessions(self) -> None:
        """Begin all sessions anew with each engine: members may have been elsewhere before it."""
        if self._engines != self.queue.engines:
            self._engines, self._began_ms, self._seen_ms = self.queue.engines, self.clock(), {}

    def _watch_sessions(self) -> None:
        """Look again when the next session may end."""
        if self._timer is None and self.group.members:
            seen = min(max(self._began_ms, self._seen_ms.get(one, 0)) for one in self.group.members)
            left_s = (seen + self.limits.session_timeout_ms - self.clock()) / 1_000
            self._timer = asyncio.get_running_loop().call_later(max(_LEAST_WAIT_S, left_s), self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.queue.is_open:
            return
        if self._gone():
            self._ask_soon()
        else:
            self._watch_sessions()


_Waiting = Sequence[tuple[Heartbeat, "asyncio.Future[HeartbeatResponse]"]]


def _answer(waiting: _Waiting, responses: Sequence[HeartbeatResponse]) -> None:
    for (_, answer), response in zip(waiting, responses, strict=True):
        if not answer.done():
            answer.set_result(response)


def _refuse(waiting: _Waiting, fault: Exception) -> None:
    for _, answer in waiting:
        if not answer.done():
            answer.set_exception(fault)


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
