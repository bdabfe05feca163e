"""The answers of the cluster of gateways: who is there, who leads what, who coordinates groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from share_spark.coordinator.group import TopicMetadata
from share_spark.gateway.access import GROUP_REFUSED
from share_spark.gateway.apis import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.nodes import Node, leader_of, owner_of
from share_spark.kafka.topic_ids import uuid_of

_CLUSTER_ID = "share_spark"

_OF_GROUPS = 0
"""The key type of FindCoordinator for groups; share groups are groups."""


def metadata_answer(
    version: int,
    nodes: Sequence[Node],
    topics: Mapping[str, TopicMetadata],
    missing: Mapping[str, ErrorCode],
    unknown: Mapping[str, ErrorCode] = {},
) -> ResponsePayload:
    """Return the answer to Metadata. ``missing``: names of topics that are not there, or not for this client;
    ``unknown``: such ids."""
    found = [
        {
            "error_code": ErrorCode.none,
            "name": name,
            "topic_id": uuid_of(topic.topic_id),
            "is_internal": False,
            "partitions": [described_partition(topic.topic_id, number, nodes) for number in range(topic.partitions)],
        }
        for name, topic in topics.items()
    ]
    not_found: list[dict[str, Any]] = [
        {"error_code": error, "name": name, "topic_id": None, "is_internal": False, "partitions": ()}
        for name, error in missing.items()
    ]
    not_found += [
        {
            "error_code": error,
            "name": None,
            "topic_id": uuid_of(topic_id),
            "is_internal": False,
            "partitions": (),
        }
        for topic_id, error in unknown.items()
    ]
    values = {
        "throttle_time": timedelta(),
        "brokers": [{**_place(node), "rack": None} for node in nodes],
        "cluster_id": _CLUSTER_ID,
        "controller_id": nodes[0].node_id,
        "topics": [*found, *not_found],
        "error_code": ErrorCode.none,
    }
    return make_message(load_response_schema(METADATA.key, version), values)


def described_partition(topic_id: str, number: int, nodes: Sequence[Node]) -> dict[str, Any]:
    """Return a partition. A single node leads it, and has it."""
    leader = leader_of(topic_id, number, nodes).node_id
    return {
        "error_code": ErrorCode.none,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": 0,
        "replica_nodes": (leader,),
        "isr_nodes": (leader,),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": (),
    }


def cluster_answer(version: int, nodes: Sequence[Node]) -> ResponsePayload:
    """Return the answer to DescribeCluster: all nodes, which are brokers."""
    brokers = [
        {"broker_id": node_id, "host": address.host, "port": address.port, "rack": None, "is_fenced": False}
        for node_id, address, *_ in nodes
    ]
    values = {
        "throttle_time": timedelta(),
        "error_code": ErrorCode.none,
        "error_message": None,
        "cluster_id": _CLUSTER_ID,
        "controller_id": nodes[0].node_id,
        "brokers": brokers,
    }
    return make_message(load_response_schema(DESCRIBE_CLUSTER.key, version), values)


def find_coordinator_answer(
    version: int, nodes: Sequence[Node], key_type: int, keys: Sequence[str], refused: Collection[str]
) -> ResponsePayload:
    """Return the answer to FindCoordinator: the owner of each group that is not ``refused``; nothing else is
    coordinated here."""
    is_ours = key_type == _OF_GROUPS
    coordinators = [{"key": key, **_coordinator(owner_of(key, nodes), is_ours, key in refused)} for key in keys]
    # Before version 4 there is one, which has no place of its own.
    alone = coordinators[0] if coordinators else {}
    values = {**alone, "throttle_time": timedelta(), "coordinators": coordinators}
    return make_message(load_response_schema(FIND_COORDINATOR.key, version), values)


def _coordinator(node: Node, is_ours: bool, is_refused: bool) -> dict[str, Any]:
    if is_ours and not is_refused:
        return {"error_code": ErrorCode.none, "error_message": None, **_place(node)}
    error, text = ErrorCode.group_authorization_failed, GROUP_REFUSED
    if not is_ours:
        error, text = ErrorCode.invalid_request, "only groups have a coordinator here"
    return {"error_code": error, "error_message": text, "node_id": -1, "host": "", "port": -1}


def _place(node: Node) -> dict[str, Any]:
    return {"node_id": node.node_id, "host": node.address.host, "port": node.address.port}
