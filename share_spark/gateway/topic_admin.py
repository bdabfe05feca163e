"""DescribeTopicPartitions and ListOffsets: the topics as tools ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.coordinator.group import TopicMetadata
from share_spark.gateway.apis import DESCRIBE_TOPIC_PARTITIONS, LIST_OFFSETS
from share_spark.gateway.cluster_answers import described_partition
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.nodes import Node, Nodes
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.kafka.topic_ids import uuid_of
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import LogEnds

_LATEST, _EARLIEST = -1, -2
"""Timestamps that stand for an end of the log."""

_NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class TopicAdmin:
    """The answers to requests about topics."""

    catalog: TopicCatalog
    nodes: Nodes

    async def describe(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a DescribeTopicPartitions, always whole: its limit is not needed, and there is never more to come."""
        names = [topic.name for topic in request.topics]
        if names:
            may = await context.grant.topics(names)
            found = await asyncio.to_thread(self.catalog.of, may)
        else:
            found = await asyncio.to_thread(self.catalog.all)
            may = await context.grant.topics(found)
        topics = [_topic(name, found.get(name), name in may, self.nodes.live) for name in names or sorted(may)]
        values = {"throttle_time": timedelta(), "topics": topics, "next_cursor": None}
        return make_message(load_response_schema(DESCRIBE_TOPIC_PARTITIONS.key, context.api_version), values)

    async def list_offsets(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a ListOffsets."""
        may = await context.grant.topics(topic.name for topic in request.topics)
        topics = [
            await asyncio.to_thread(self._offsets, topic) if topic.name in may else _refused(topic)
            for topic in request.topics
        ]
        values = {"throttle_time": timedelta(), "topics": topics}
        return make_message(load_response_schema(LIST_OFFSETS.key, context.api_version), values)

    def _offsets(self, topic: Any) -> dict[str, Any]:
        try:
            ends = self.catalog.log.log_ends(topic.name)
        except TopicUnreachableError:
            raise
        except TopicError:
            ends = {}
        # One look for all partitions: it opens files, or asks the cluster.
        since_ms = {one.timestamp for one in topic.partitions if one.timestamp >= 0 and one.partition_index in ends}
        since = {at_ms: self.catalog.log.offsets_at(topic.name, at_ms) for at_ms in since_ms}
        return {"name": topic.name, "partitions": [_offset(one, ends, since) for one in topic.partitions]}


def _refused(topic: Any) -> dict[str, Any]:
    error = WireError.topic_authorization_failed
    return {
        "name": topic.name,
        "partitions": [_listed(one.partition_index, error, _NO_OFFSET) for one in topic.partitions],
    }


def _offset(one: Any, ends: Mapping[int, LogEnds], since: Mapping[int, Mapping[int, int]]) -> dict[str, Any]:
    """Return the offset of a partition. ``since``: first offsets by the times that were asked for, and partition."""
    end = ends.get(one.partition_index)
    if end is None:
        return _listed(one.partition_index, WireError.unknown_topic_or_partition, _NO_OFFSET)
    if one.timestamp in (_LATEST, _EARLIEST):
        offset = end.end_offset if one.timestamp == _LATEST else end.log_start_offset
        return _listed(one.partition_index, WireError.none, offset)
    if one.timestamp < 0:
        return _listed(one.partition_index, WireError.invalid_request, _NO_OFFSET)
    offset = since[one.timestamp][one.partition_index]
    return _listed(one.partition_index, WireError.none, offset if offset < end.end_offset else _NO_OFFSET)


def _listed(partition: int, error: WireError, offset: int) -> dict[str, Any]:
    """Return an answer; it does not tell the timestamp of the record at ``offset``."""
    return {
        "partition_index": partition,
        "error_code": error,
        "timestamp": -1,
        "offset": offset,
        "leader_epoch": 0 if offset >= 0 else -1,
    }


def _topic(name: str, found: TopicMetadata | None, may: bool, nodes: Sequence[Node]) -> dict[str, Any]:
    missing = WireError.unknown_topic_or_partition if may else WireError.topic_authorization_failed
    partitions = [] if found is None else range(found.partitions)
    topic_id = "" if found is None else found.topic_id
    return {
        "error_code": missing if found is None else WireError.none,
        "name": name,
        "topic_id": None if found is None else uuid_of(found.topic_id),
        "is_internal": False,
        "partitions": [described_partition(topic_id, number, nodes) for number in partitions],
    }
