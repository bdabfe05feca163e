"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets (R134, R135, R137)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.admin.group_changes import NewOffset, StartAt, moved
from share_spark.admin.group_details import PartitionOffsets, offsets_of
from share_spark.admin.state_reader import GroupState
from share_spark.coordinator.group import TopicMetadata
from share_spark.gateway.access import TOPIC_REFUSED, Grant
from share_spark.gateway.apis import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.known_groups import KnownGroups, required
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.topic_ids import uuid_of
from share_spark.model.errors import ErrorCode, ShareError
from share_spark.model.ids import SharePartitionKey

_NO_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
_REFUSED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TOPIC_REFUSED)
_NO_OFFSETS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete.")
_DONE = (ErrorCode.NONE, None)

_UNKNOWN = -1
"""A start offset, or a lag, that is not known."""

Topics = Mapping[str, TopicMetadata]

Outcome = tuple[ErrorCode, str | None]
"""An error with its text."""


@dataclass(frozen=True, slots=True)
class OffsetAdmin:
    """The answers to requests about the offsets of groups."""

    known: KnownGroups

    # -------------------------------------------------------------------------------------------- describe

    async def describe(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a DescribeShareGroupOffsets."""
        groups = [await self._described(asked, context.grant) for asked in request.groups]
        values = {"throttle_time": timedelta(), "groups": groups}
        return make_message(load_response_schema(DESCRIBE_SHARE_GROUP_OFFSETS.key, context.api_version), values)

    async def _described(self, asked: Any, grant: Grant) -> dict[str, Any]:
        try:
            await grant.require_group(asked.group_id)
            required(await self.known.find(asked.group_id), asked.group_id)
            group = await asyncio.to_thread(self.known.stored.find, asked.group_id)
            names = [] if group is None else [topic for topic, _ in group.partitions.values()]
            names += [topic.topic_name for topic in asked.topics or ()]
            found = await asyncio.to_thread(self._offsets, asked, group, await grant.topics(names))
        except ShareError as fault:
            return {"group_id": asked.group_id, "topics": (), **_error((fault.code, str(fault)))}
        return {"group_id": asked.group_id, "topics": found, **_error(_DONE)}

    def _offsets(self, asked: Any, group: GroupState | None, may: Collection[str]) -> list[dict[str, Any]]:
        """Return what is asked: some partitions, or, without ``topics``, all that have state and ``may`` be seen."""
        topics = self.known.catalog.of(may)
        rows = {} if group is None else self._rows(group, topics)
        if asked.topics is None:
            wanted: dict[str, Iterable[int]] = {}
            for topic, partition in rows:
                wanted[topic] = [*wanted.get(topic, ()), partition]
        else:
            wanted = {topic.topic_name: topic.partitions for topic in asked.topics}
        return [
            {
                "topic_name": topic,
                "topic_id": uuid_of(topics[topic].topic_id) if topic in topics else None,
                "partitions": [
                    _partition(one, rows.get((topic, one)), _DONE if topic in may else _REFUSED) for one in partitions
                ],
            }
            for topic, partitions in wanted.items()
        ]

    def _rows(self, group: GroupState, topics: Topics) -> dict[tuple[str, int], PartitionOffsets]:
        """Return the offsets of the topics that are there now: one made anew under the same name is another."""
        ids = {topic.topic_id for topic in topics.values()}
        there = {key: found for key, found in group.partitions.items() if key.topic_id in ids}
        ends = {topic: self.known.catalog.log.log_ends(topic) for topic in {topic for topic, _ in there.values()}}
        return {(row.topic, row.partition): row for row in offsets_of(replace(group, partitions=there), ends)}

    # ----------------------------------------------------------------------------------------------- alter

    async def alter(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer an AlterShareGroupOffsets: one commit. The group, and the share-partitions, may be new."""
        try:
            await context.grant.require_group(request.group_id)
            may = await context.grant.topics(topic.topic_name for topic in request.topics)
            topics = await asyncio.to_thread(self.known.catalog.of, may)
            await self.known.change(request.group_id, self._begin_anew, request, topics)
        except ShareError as fault:
            return _changed(ALTER_SHARE_GROUP_OFFSETS.key, context, (fault.code, str(fault)), ())
        responses = [
            {
                "topic_name": topic.topic_name,
                "topic_id": _id_in(topics, topic.topic_name),
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        **_error(_outcome(topics, topic, one) if topic.topic_name in may else _REFUSED),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        return _changed(ALTER_SHARE_GROUP_OFFSETS.key, context, _DONE, responses)

    def _begin_anew(self, request: Any, topics: Topics) -> None:
        group = self.known.stored.find(request.group_id)
        offsets = [
            self._new_offset(request.group_id, topic.topic_name, topics[topic.topic_name].topic_id, one, group)
            for topic in request.topics
            for one in topic.partitions
            if _outcome(topics, topic, one) == _DONE
        ]
        self.known.stored.begin_at(offsets)

    def _new_offset(self, group_id: str, topic: str, topic_id: str, one: Any, group: GroupState | None) -> NewOffset:
        key = SharePartitionKey(group_id, topic_id, one.partition_index)
        before = group.partitions.get(key) if group is not None else None
        end = self.known.catalog.log.log_ends(topic)[one.partition_index]
        return NewOffset(
            key=key,
            topic=topic,
            offset=moved(StartAt.OFFSET, one.start_offset, 0, end, None),
            state_epoch=0 if before is None else before[1].state_epoch + 1,
        )

    # ---------------------------------------------------------------------------------------------- delete

    async def delete(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a DeleteShareGroupOffsets: one commit."""
        names = [topic.topic_name for topic in request.topics]
        try:
            await context.grant.require_group(request.group_id)
            required(await self.known.find(request.group_id), request.group_id)
            may = await context.grant.topics(names)
            topics = await asyncio.to_thread(self.known.catalog.of, may)
            deleted = await self.known.change(request.group_id, self._delete, request.group_id, topics)
        except ShareError as fault:
            return _changed(DELETE_SHARE_GROUP_OFFSETS.key, context, (fault.code, str(fault)), ())
        responses = [
            {
                "topic_name": name,
                "topic_id": _id_in(topics, name),
                **_error(_deletion(name, topics, deleted) if name in may else _REFUSED),
            }
            for name in names
        ]
        return _changed(DELETE_SHARE_GROUP_OFFSETS.key, context, _DONE, responses)

    def _delete(self, group_id: str, topics: Topics) -> set[str]:
        """Delete the group's state of these topics; return those that it had."""
        group = self.known.stored.find(group_id)
        known = {topic for topic, _ in group.partitions.values()} if group is not None else set()
        found = known.intersection(topics)
        if found:
            self.known.stored.delete_offsets(group_id, found)
        return found


def _partition(partition: int, row: PartitionOffsets | None, outcome: Outcome) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "start_offset": _UNKNOWN if row is None else row.start_offset,
        "leader_epoch": 0 if row is None else max(0, row.leader_epoch),
        "lag": _UNKNOWN if row is None or row.lag is None else row.lag,
        **_error(outcome),
    }


def _outcome(topics: Topics, topic: Any, one: Any) -> Outcome:
    """Return whether a partition of a request is there."""
    found = topics.get(topic.topic_name)
    return _DONE if found is not None and 0 <= one.partition_index < found.partitions else _NO_TOPIC


def _deletion(name: str, topics: Topics, deleted: Collection[str]) -> Outcome:
    if name not in topics:
        return _NO_TOPIC
    return _DONE if name in deleted else _NO_OFFSETS


def _id_in(topics: Topics, name: str) -> Any:
    return uuid_of(topics[name].topic_id) if name in topics else None


def _error(outcome: Outcome) -> dict[str, Any]:
    code, text = outcome
    return {"error_code": WireError(code), "error_message": text}


def _changed(
    key: int, context: RequestContext, outcome: Outcome, responses: Sequence[Mapping[str, Any]]
) -> ResponsePayload:
    values = {"throttle_time": timedelta(), **_error(outcome), "responses": responses}
    return make_message(load_response_schema(key, context.api_version), values)
