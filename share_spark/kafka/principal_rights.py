"""The rights of a principal at a cluster, asked on a connection that is logged in as that principal.

A broker tells in its Metadata which operations the principal may do with a topic. For a group only its coordinator
tells it, and a login by SCRAM cannot be taken to another broker. But for each operation there is a request that any
broker refuses if just this right is missing, and that changes nothing: a heartbeat of nobody, a deletion of no offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum

from kio.schema.describe_configs.v1 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v1.request import DescribeConfigsResource
from kio.schema.describe_groups.v3 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v2 import HeartbeatRequest, HeartbeatResponse
from kio.schema.incremental_alter_configs.v0 import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from kio.schema.incremental_alter_configs.v0.request import AlterConfigsResource
from kio.schema.metadata.v8 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v8.request import MetadataRequestTopic
from kio.schema.offset_delete.v0 import OffsetDeleteRequest, OffsetDeleteResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32

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
    )
)
"""Answers of a coordinator, which is asked only after the right was found."""

_REFUSED = frozenset((ErrorCode.group_authorization_failed, ErrorCode.invalid_request))
"""Answers without the right. Before Kafka 4.0 groups have no configs, and requests for them are invalid."""


async def topics_open_to(connection: BrokerStream, operation: Operation, topics: Iterable[str]) -> frozenset[str]:
    """Return those of these topics with which the principal may do this; they need not be there. Raises OSError,
    ValueError."""
    answer = await connection.ask(_metadata(topics), MetadataResponse)
    return frozenset(one.name for one in answer.topics if _has(one.topic_authorized_operations, operation))


async def cluster_allows(connection: BrokerStream, operation: Operation) -> bool:
    """Return whether the principal may do this with the cluster. Raises OSError, ValueError."""
    answer = await connection.ask(_metadata(()), MetadataResponse)
    return _has(answer.cluster_authorized_operations, operation)


def _metadata(topics: Iterable[str]) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def _has(operations: int, operation: Operation) -> bool:
    """Return whether an operation is in a set, which is negative if it is not known."""
    return operations > 0 and bool(operations >> operation & 1)


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
