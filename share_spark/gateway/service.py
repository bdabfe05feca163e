"""The meaning of requests: each kind of request has a method that answers it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from ssl import SSLContext
from typing import Any

from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import RequestPayload

from share_spark.coordinator.group import Heartbeat, HeartbeatResponse
from share_spark.gateway import apis
from share_spark.gateway.access import GROUP_REFUSED, TOPIC_REFUSED
from share_spark.gateway.cluster_answers import cluster_answer, find_coordinator_answer, metadata_answer
from share_spark.gateway.config_admin import ConfigAdmin
from share_spark.gateway.frames import Answer
from share_spark.gateway.group_admin import GroupAdmin
from share_spark.gateway.group_members import heartbeat_answer
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.known_groups import KnownGroups
from share_spark.gateway.nodes import Nodes
from share_spark.gateway.offset_admin import OffsetAdmin
from share_spark.gateway.passing_on import PassingOn
from share_spark.gateway.served_groups import NotServedError, ServedGroups
from share_spark.gateway.share_service import ShareService
from share_spark.gateway.state_admin import StateAdmin
from share_spark.gateway.topic_admin import TopicAdmin
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.kafka.topic_ids import topic_id_of
from share_spark.model.errors import ErrorCode, TopicError, TopicUnreachableError

_log = logging.getLogger(__name__)

_UNSURE_S = 0.2
"""The time until another node looks again who owns a group."""

_NO_TOPIC, _NO_RIGHT = WireError.unknown_topic_or_partition, WireError.topic_authorization_failed

_GROUP_REFUSED = HeartbeatResponse(error=ErrorCode.GROUP_AUTHORIZATION_FAILED, error_message=GROUP_REFUSED)
_TOPIC_REFUSED = HeartbeatResponse(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=TOPIC_REFUSED)
_NOT_NOW = HeartbeatResponse(
    error=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message="The topics of the group cannot be looked up now."
)


class Service:
    """A Handler of all requests. ``nodes``: that clients are told to connect to. ``tls``: with which gateways connect
    to each other."""

    def __init__(self, groups: ServedGroups, catalog: TopicCatalog, nodes: Nodes, tls: SSLContext | None) -> None:
        self._groups, self._catalog, self._nodes = groups, catalog, nodes
        self._shares, self._others = ShareService(groups, catalog), PassingOn(nodes, catalog, tls)
        known = KnownGroups(groups, catalog)
        group_admin, offset_admin = GroupAdmin(known), OffsetAdmin(known)
        state_admin = StateAdmin(known)
        config_admin, topic_admin = ConfigAdmin(groups), TopicAdmin(catalog, nodes)
        self._answers: dict[int, Callable[[RequestContext, Any], Awaitable[Answer | None]]] = {
            apis.METADATA.key: self._metadata,
            apis.FIND_COORDINATOR.key: self._find_coordinator,
            apis.SHARE_GROUP_HEARTBEAT.key: self._heartbeat,
            apis.SHARE_FETCH.key: partial(self._by_owner, self._shares.fetch),
            apis.SHARE_ACKNOWLEDGE.key: partial(self._by_owner, self._shares.acknowledge),
            apis.LIST_GROUPS.key: group_admin.list,
            apis.SHARE_GROUP_DESCRIBE.key: group_admin.describe,
            apis.DELETE_GROUPS.key: group_admin.delete,
            apis.INITIALIZE_SHARE_GROUP_STATE.key: state_admin.answer,
            apis.READ_SHARE_GROUP_STATE.key: state_admin.answer,
            apis.WRITE_SHARE_GROUP_STATE.key: state_admin.answer,
            apis.DELETE_SHARE_GROUP_STATE.key: state_admin.answer,
            apis.READ_SHARE_GROUP_STATE_SUMMARY.key: state_admin.answer,
            apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: offset_admin.describe,
            apis.ALTER_SHARE_GROUP_OFFSETS.key: offset_admin.alter,
            apis.DELETE_SHARE_GROUP_OFFSETS.key: offset_admin.delete,
            apis.DESCRIBE_CONFIGS.key: config_admin.describe,
            apis.INCREMENTAL_ALTER_CONFIGS.key: config_admin.alter,
            apis.DESCRIBE_CLUSTER.key: self._describe_cluster,
            apis.DESCRIBE_TOPIC_PARTITIONS.key: topic_admin.describe,
            apis.LIST_OFFSETS.key: topic_admin.list_offsets,
        }

    async def answer(self, context: RequestContext, request: RequestPayload) -> Answer | None:
        """See ``Handler``. A topic log that does not answer closes the connection: clients connect again."""
        try:
            return await self._answers[context.api_key](context, request)
        except TopicError as fault:
            _log.warning("a request of %s has no answer: %s", context.client_host, fault)
            return None

    def closed(self, connection_id: int) -> None:
        """See ``Handler``."""
        self._shares.closed(connection_id)
        self._others.closed(connection_id)

    async def _by_owner(
        self, here: Callable[..., Awaitable[Answer]], context: RequestContext, request: Any
    ) -> Answer | None:
        """Answer ``here`` what is asked of a group that this node owns, and pass on the rest. What another node has
        passed on by mistake has no answer: it looks again who owns the group."""
        group_id = request.group_id or ""
        is_elsewhere = self._groups.serves(group_id) and not self._groups.owns(group_id)
        if is_elsewhere and await context.grant.group(group_id):
            if context.via is not None:
                await asyncio.sleep(_UNSURE_S)
                return None
            topic_ids = {topic_id_of(topic.topic_id) for topic in request.topics}
            passed = await self._others.answer(context, group_id, topic_ids)
            if passed is not None:
                return passed
        return await here(context, request)

    async def _metadata(self, context: RequestContext, request: Any) -> Answer:
        """Describe the topics that are asked for: by name, from version 10 on also by id; without any, all of them.
        Topics are never made, whatever the client allows."""
        if request.topics is None or (context.api_version == 0 and not request.topics):
            topics = await asyncio.to_thread(self._catalog.all)
            may = await context.grant.topics(topics)
            seen = {name: topic for name, topic in topics.items() if name in may}
            return metadata_answer(context.api_version, self._nodes.live, seen, {})
        by_id = [topic_id_of(topic.topic_id) for topic in request.topics if topic.name is None]
        found = await asyncio.to_thread(self._catalog.by_id, by_id)
        names = [topic.name for topic in request.topics if topic.name is not None]
        may = await context.grant.topics([*names, *found.values()])
        names += [name for name in found.values() if name in may]
        topics = await asyncio.to_thread(self._catalog.of, [name for name in names if name in may])
        missing = {name: _NO_TOPIC if name in may else _NO_RIGHT for name in names if name not in topics}
        unknown = {one: _NO_RIGHT if one in found else WireError.unknown_topic_id for one in by_id}
        unseen = {one: error for one, error in unknown.items() if found.get(one) not in may}
        return metadata_answer(context.api_version, self._nodes.live, topics, missing, unseen)

    async def _find_coordinator(self, context: RequestContext, request: Any) -> Answer:
        keys = request.coordinator_keys if context.api_version >= 4 else (request.key,)
        refused = {*keys} - await context.grant.groups(keys)
        key_type = getattr(request, "key_type", 0)
        return find_coordinator_answer(context.api_version, self._nodes.live, key_type, keys, refused)

    async def _describe_cluster(self, context: RequestContext, _request: Any) -> Answer:
        return cluster_answer(context.api_version, self._nodes.live)

    async def _heartbeat(self, context: RequestContext, request: Any) -> Answer:
        grant, names = context.grant, request.subscribed_topic_names
        if not await grant.group(request.group_id):
            return heartbeat_answer(context.api_version, _GROUP_REFUSED)
        if not await grant.topics(names or ()) >= {*(names or ())}:
            return heartbeat_answer(context.api_version, _TOPIC_REFUSED)
        heartbeat = Heartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            client_id=context.client_id or "",
            client_host=context.client_host,
            rack_id=request.rack_id,
            subscribed_topic_names=None if names is None else tuple(names),
        )
        try:
            response = await self._groups.get(request.group_id).members.heartbeat(heartbeat)
        except NotServedError as fault:
            response = HeartbeatResponse(error=fault.code, error_message=str(fault))
        except TopicUnreachableError:
            response = _NOT_NOW
        return heartbeat_answer(context.api_version, response)
