"""ListGroups, ShareGroupDescribe and DeleteGroups (R136, R142, R145)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.coordinator.group import described, listed, matches
from share_spark.coordinator.group.views import DescribedGroup, DescribedMember, ListedGroup
from share_spark.gateway.access import Grant
from share_spark.gateway.apis import DELETE_GROUPS, LIST_GROUPS, SHARE_GROUP_DESCRIBE
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.known_groups import KnownGroup, KnownGroups, required
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.topic_ids import uuid_of
from share_spark.model.errors import ErrorCode, ShareError

_log = logging.getLogger(__name__)

_UNSEEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."
"""Kafka's text."""


@dataclass(frozen=True, slots=True)
class GroupAdmin:
    """The answers to requests about whole groups."""

    known: KnownGroups

    async def list(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a ListGroups. Filters came with versions 4 and 5; an earlier one asks for all."""
        states, types = getattr(request, "states_filter", ()), getattr(request, "types_filter", ())
        error, known = ErrorCode.NONE, list[KnownGroup]()
        try:
            known = await self.known.all()
        except ShareError as fault:
            _log.warning("the groups cannot be listed: %s", fault)  # the answer has no text
            error = fault.code
        may = await context.grant.groups(one.group.group_id for one in known)
        entries = [listed(one.group)._replace(state=one.state) for one in known if one.group.group_id in may]
        groups = [_listed(entry) for entry in entries if matches(entry, states, types)]
        values = {"throttle_time": timedelta(), "error_code": WireError(error), "groups": groups}
        return make_message(load_response_schema(LIST_GROUPS.key, context.api_version), values)

    async def describe(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a ShareGroupDescribe."""
        grant, with_operations = context.grant, request.include_authorized_operations
        found = [await self._description(one, grant) for one in request.group_ids]
        groups = [_described(one) | (await _operations(one, grant) if with_operations else {}) for one in found]
        values = {"throttle_time": timedelta(), "groups": groups}
        return make_message(load_response_schema(SHARE_GROUP_DESCRIBE.key, context.api_version), values)

    async def _description(self, group_id: str, grant: Grant) -> DescribedGroup:
        try:
            await grant.require_group(group_id)
            known = await self.known.find(group_id) if group_id else None
        except ShareError as fault:
            return DescribedGroup(group_id=group_id, error=fault.code, error_message=str(fault))
        if known is None:
            return described(group_id, None, {})
        topics = known.group.subscribed_topic_names
        if not await grant.topics(topics) >= {*topics}:
            return DescribedGroup(
                group_id=group_id, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=_UNSEEN_TOPICS
            )
        return replace(described(group_id, known.group, known.topics), state=known.state)

    async def delete(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a DeleteGroups: each group by itself."""
        results = [
            {"group_id": group_id, "error_code": WireError(await self._deleted(group_id, context.grant))}
            for group_id in request.groups_names
        ]
        values = {"throttle_time": timedelta(), "results": results}
        return make_message(load_response_schema(DELETE_GROUPS.key, context.api_version), values)

    async def _deleted(self, group_id: str, grant: Grant) -> ErrorCode:
        try:
            await grant.require_group(group_id)
            required(await self.known.find(group_id), group_id)
            await self.known.change(group_id, self.known.stored.delete, group_id)
        except ShareError as fault:
            _log.info("group %s is not deleted: %s", group_id, fault)  # the answer has no text
            return fault.code
        self.known.groups.forget(group_id)
        return ErrorCode.NONE


def _listed(entry: ListedGroup) -> dict[str, Any]:
    return {
        "group_id": entry.group_id,
        "protocol_type": entry.protocol_type,
        "group_state": str(entry.state),
        "group_type": str(entry.group_type),
    }


async def _operations(group: DescribedGroup, grant: Grant) -> dict[str, Any]:
    """Return the operations that the client may do with a group, in Kafka's bits; nothing: they are unknown."""
    if group.error:
        return {}
    return {"authorized_operations": sum(1 << one for one in await grant.rights.operations(group.group_id))}


def _described(group: DescribedGroup) -> dict[str, Any]:
    return {
        "error_code": WireError(group.error),
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": str(group.state),
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [_member(member) for member in group.members],
    }


def _member(member: DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": f"/{member.client_host}",  # as Kafka shows an address
        "subscribed_topic_names": member.subscribed_topic_names,
        "assignment": {"topic_partitions": list(_assigned(member))},
    }


def _assigned(member: DescribedMember) -> Iterable[dict[str, Any]]:
    for topic in member.assignment:
        yield {"topic_id": uuid_of(topic.topic_id), "topic_name": topic.topic, "partitions": topic.partitions}
