"""The rights of a principal at a cluster, asked on a connection that is logged in as that principal.

A broker tells which operations the principal may do with a topic or the cluster, but only to whoever may describe it;
and for a group only its coordinator does, to which a login by SCRAM cannot be taken. But for each operation there is a
request that any broker refuses if just this right is missing, and that changes nothing: a heartbeat of nobody, a
deletion of no offset, a fetch of no partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from enum import IntEnum

from kio.schema.describe_configs.v1 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v1.request import DescribeConfigsResource
from kio.schema.describe_groups.v3 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v4 import FetchRequest, FetchResponse
from kio.schema.fetch.v4.request import FetchPartition, FetchTopic
from kio.schema.heartbeat.v2 import HeartbeatRequest, HeartbeatResponse
from kio.schema.incremental_alter_configs.v0 import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from kio.schema.incremental_alter_configs.v0.request import AlterConfigsResource
from kio.schema.metadata.v8 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v8.request import MetadataRequestTopic
from kio.schema.offset_delete.v0 import OffsetDeleteRequest, OffsetDeleteResponse
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from share_spark.kafka.broker_stream import BrokerStream


class Operation(IntEnum):
    """An operation of Kafka. The number is Kafka's, and that of its bit in a set of them."""

    READ = 3
    DELETE = 6
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


GROUP_OPERATIONS = tuple(one for one in Operation if one is not Operation.CLUSTER_ACTION)
"""Those on a group."""

_GROUP = i8(32)
"""The type of resource."""

_NOBODY = i32(-1)
"""The generation of no member."""

_NO_PARTITION = FetchPartition(partition=i32(-1), fetch_offset=i64(0), partition_max_bytes=i32(0))

_NO_TOPIC = "."
"""The name of no topic: Kafka refuses to make it."""

_A_CONSUMER, _A_REPLICA = BrokerId(-1), BrokerId(2**31 - 1)
"""The side that a fetch says it is of."""

_AT_ONCE = i32Timedelta.parse(timedelta())

_PERMITTED = frozenset(
    (
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.group_id_not_found,
        ErrorCode.non_empty_group,
        ErrorCode.invalid_group_id,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.leader_not_available,
    )
)
"""Answers about a group or a topic, which is looked for only after the right was found."""

_REFUSED = frozenset(
    (ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed, ErrorCode.invalid_request)
)
"""Answers without the right. Before Kafka 4.0 groups have no configs, and requests for them are invalid."""


async def cluster_allows(connection: BrokerStream, operation: Operation) -> bool:
    """Return whether the principal may do this with the cluster (DESCRIBE, CLUSTER_ACTION). Raises OSError,
    ValueError."""
    if operation is Operation.CLUSTER_ACTION:
        return _is_permitted((await _fetch(connection, (_NO_TOPIC,), _A_REPLICA)).get(_NO_TOPIC))
    request = MetadataRequest(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=False,
    )
    # Whoever may not describe the cluster is told of no operation.
    return (await connection.ask(request, MetadataResponse)).cluster_authorized_operations > 0


async def topics_open_to(connection: BrokerStream, operation: Operation, topics: Collection[str]) -> frozenset[str]:
    """Return those of these topics with which the principal may do this (READ, DESCRIBE); they need not be there.
    Raises OSError, ValueError."""
    if operation is Operation.READ:
        errors = await _fetch(connection, topics, _A_CONSUMER)
    else:
        errors = await _topic_description(connection, topics)
    return frozenset(topic for topic in topics if _is_permitted(errors.get(topic)))


async def _fetch(connection: BrokerStream, topics: Iterable[str], by: BrokerId) -> Mapping[str, ErrorCode]:
    """Fetch a partition that no topic has. A consumer may do it that may read the topic, a replica that may act as a
    broker; to both Kafka's refusal is one of the topic."""
    request = FetchRequest(
        replica_id=by,
        max_wait=_AT_ONCE,
        min_bytes=i32(0),
        topics=tuple(FetchTopic(topic=TopicName(one), partitions=(_NO_PARTITION,)) for one in topics),
    )
    answer = await connection.ask(request, FetchResponse)
    return {topic.topic: one.error_code for topic in answer.responses for one in topic.partitions}


async def _topic_description(connection: BrokerStream, topics: Iterable[str]) -> Mapping[str, ErrorCode]:
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(one)) for one in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return {one.name: one.error_code for one in (await connection.ask(request, MetadataResponse)).topics}


async def groups_open_to(connection: BrokerStream, operation: Operation, group_ids: Collection[str]) -> frozenset[str]:
    """Return those of these groups with which the principal may do this; they need not be there. Raises OSError,
    ValueError."""
    errors = await _errors(connection, operation, group_ids)
    return frozenset(group_id for group_id in group_ids if _is_permitted(errors.get(group_id)))


async def _errors(
    connection: BrokerStream, operation: Operation, group_ids: Collection[str]
) -> Mapping[str, ErrorCode]:
    match operation:
        case Operation.READ:
            return {one: await _heartbeat(connection, one) for one in group_ids}
        case Operation.DELETE:
            return {one: await _offset_deletion(connection, one) for one in group_ids}
        case Operation.DESCRIBE:
            return await _description(connection, group_ids)
        case Operation.DESCRIBE_CONFIGS:
            return await _config_description(connection, group_ids)
        case Operation.ALTER_CONFIGS:
            return await _config_change(connection, group_ids)
        case Operation.CLUSTER_ACTION:
            return dict.fromkeys(group_ids, ErrorCode.group_authorization_failed)


def _is_permitted(error: ErrorCode | None) -> bool:
    if error in _PERMITTED:
        return True
    if error in _REFUSED:
        return False
    raise ValueError(f"the answer does not tell the right ({'none' if error is None else error.name})")


async def _heartbeat(connection: BrokerStream, group_id: str) -> ErrorCode:
    request = HeartbeatRequest(group_id=GroupId(group_id), generation_id=_NOBODY, member_id="")
    return (await connection.ask(request, HeartbeatResponse)).error_code


async def _offset_deletion(connection: BrokerStream, group_id: str) -> ErrorCode:
    request = OffsetDeleteRequest(group_id=GroupId(group_id), topics=())
    return (await connection.ask(request, OffsetDeleteResponse)).error_code


async def _description(connection: BrokerStream, group_ids: Iterable[str]) -> Mapping[str, ErrorCode]:
    names = tuple(map(GroupId, group_ids))
    request = DescribeGroupsRequest(groups=names, include_authorized_operations=False)
    return {one.group_id: one.error_code for one in (await connection.ask(request, DescribeGroupsResponse)).groups}


async def _config_description(connection: BrokerStream, group_ids: Iterable[str]) -> Mapping[str, ErrorCode]:
    resources = tuple(
        DescribeConfigsResource(resource_type=_GROUP, resource_name=one, configuration_keys=()) for one in group_ids
    )
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False)
    answer = await connection.ask(request, DescribeConfigsResponse)
    return {one.resource_name: one.error_code for one in answer.results}


async def _config_change(connection: BrokerStream, group_ids: Iterable[str]) -> Mapping[str, ErrorCode]:
    resources = tuple(AlterConfigsResource(resource_type=_GROUP, resource_name=one, configs=()) for one in group_ids)
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=True)
    answer = await connection.ask(request, IncrementalAlterConfigsResponse)
    return {one.resource_name: one.error_code for one in answer.responses}
