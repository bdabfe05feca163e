"""A Kafka cluster's own share groups (KIP-932): read, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from share_spark.kafka.broker_admin import BrokerAdmin
from share_spark.kafka.broker_connection import Address, BrokerConnection, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.share_group_requests import (
    API_VERSIONS,
    DESCRIBE_GROUPS,
    DESCRIBE_OFFSETS,
    LIST_GROUPS,
    VERSIONS,
    ask,
    asked_descriptions,
    asked_groups,
    asked_offsets,
    asked_versions,
)
from share_spark.model.errors import ErrorCode, TopicError, TopicUnreachableError

LOCKS = "group.share.partition.max.record.locks"
"""The broker's setting: how many records of a share-partition may be acquired at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """A consumer. ``subscribed``: topics; ``assigned``: partitions by topic."""

    member_id: str
    client_id: str
    host: str
    epoch: int
    subscribed: Sequence[str]
    assigned: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPartition:
    """A share-partition. ``start_offset`` -1: not begun; ``lag`` None: not known. ``fault``: why nothing is known of
    it, empty if it is."""

    topic: str
    partition: int
    start_offset: int
    lag: int | None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGroup:
    """A share group. ``state``: as the broker names it. ``partitions``: by topic and partition. ``fault``: why it could
    not be read, empty if it could."""

    group_id: str
    state: str
    assignor: str = ""
    members: Sequence[ClusterMember] = ()
    partitions: Sequence[ClusterPartition] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``locks``: LOCKS, None where the brokers do not say."""

    servers: str
    groups: Sequence[ClusterGroup]
    locks: int | None


@dataclass(slots=True)
class ClusterShareGroups:
    """Of the cluster that ``options`` lead to. Raises ConfigError: some cannot be used for our own connections."""

    options: KafkaOptions
    request_timeout_ms: int
    _login: BrokerLogin = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._login = BrokerLogin.of(self.options)

    def look(self) -> Cluster:
        """As of now. Raises TopicUnreachableError (no answer), TopicError (the brokers know no share groups)."""
        admin = BrokerAdmin(self.options, self.request_timeout_ms)
        brokers = {number: Address(host, port) for number, host, port in admin.brokers()}
        groups = [group for broker in brokers.values() for group in self._groups(broker)]
        locks = admin.broker_setting(next(iter(brokers)), LOCKS)
        return Cluster(
            servers=self.options.bootstrap_servers,
            groups=sorted(groups, key=lambda group: group.group_id),
            locks=int(locks) if locks and locks.isdecimal() else None,
        )

    def _groups(self, broker: Address) -> list[ClusterGroup]:
        """Those that this broker coordinates."""
        try:
            with connected(broker, self._login, self.request_timeout_ms / 1_000) as connection:
                return list(_groups_of(broker, connection))
        except (OSError, ValueError) as fault:
            reason = self.options.without_secrets(str(fault))
            raise TopicUnreachableError(f"Kafka at {broker} gave no answer ({reason})") from fault


def _groups_of(broker: Address, connection: BrokerConnection) -> Iterator[ClusterGroup]:
    _check_version(broker, connection)
    listed = _ask(broker, connection, LIST_GROUPS, asked_groups())["groups"]
    names = [one["group_id"] for one in listed]
    if not names:
        return
    described = _ask(broker, connection, DESCRIBE_GROUPS, asked_descriptions(names))["groups"]
    offsets = _ask(broker, connection, DESCRIBE_OFFSETS, asked_offsets(names))["groups"]
    offsets_by_group = {one["group_id"]: one for one in offsets}
    for one in described:
        yield cluster_group(one, offsets_by_group.get(one["group_id"], {"error": 0, "topics": ()}))


def _check_version(broker: Address, connection: BrokerConnection) -> None:
    known = {one["key"]: one for one in _ask(broker, connection, API_VERSIONS, asked_versions())["versions"]}
    for key, version in VERSIONS.items():
        if key not in known or not known[key]["least"] <= version <= known[key]["most"]:
            raise TopicError(f"Kafka at {broker} cannot tell of share groups (Kafka 4.2 can, with share groups on)")


def _ask(broker: Address, connection: BrokerConnection, key: int, body: bytes) -> dict[str, Any]:
    found = ask(connection, key, body)
    if found.get("error"):
        raise TopicError(f"Kafka at {broker} refuses to list its groups ({_error_name(found['error'])})")
    return found


def cluster_group(described: Mapping[str, Any], offsets: Mapping[str, Any]) -> ClusterGroup:
    """Of what ShareGroupDescribe and DescribeShareGroupOffsets say of one group."""
    return ClusterGroup(
        group_id=described["group_id"],
        state=described["state"],
        assignor=described["assignor"],
        members=[_member(one) for one in described["members"]],
        partitions=sorted(_partitions(offsets["topics"]), key=lambda one: (one.topic, one.partition)),
        fault=_fault(described) or _fault(offsets),
    )


def _member(one: Mapping[str, Any]) -> ClusterMember:
    return ClusterMember(
        member_id=one["member_id"],
        client_id=one["client_id"],
        host=one["host"],
        epoch=one["epoch"],
        subscribed=one["topics"],
        assigned={part["topic"]: part["partitions"] for part in one["assignment"]["assigned"]},
    )


def _partitions(topics: Iterable[Mapping[str, Any]]) -> Iterator[ClusterPartition]:
    for topic in topics:
        for one in topic["partitions"]:
            yield ClusterPartition(
                topic=topic["topic"],
                partition=one["partition"],
                start_offset=one["start_offset"],
                lag=None if one["lag"] < 0 else one["lag"],
                fault=_fault(one),
            )


def _fault(found: Mapping[str, Any]) -> str:
    return (found.get("message") or _error_name(found["error"])) if found["error"] else ""


def _error_name(code: int) -> str:
    """As Kafka names it, where this project knows it."""
    return ErrorCode(code).name if code in set(ErrorCode) else f"error {code}"


def advice(group: ClusterGroup, locks: int | None) -> list[str]:
    """What to change so that each consumer gets records; empty if there is nothing to say.

    A consumer acquires up to ``max.poll.records`` of a share-partition at once. Above locks ÷ consumers the first ones
    take all that may be acquired, and the others get nothing until those are done.
    """
    found = [f"{_named(one)} got no partition" for one in group.members if not any(one.assigned.values())]
    counts: dict[tuple[str, int], int] = {}
    for one in group.members:
        for topic, partitions in one.assigned.items():
            for partition in partitions:
                counts[topic, partition] = counts.get((topic, partition), 0) + 1
    if locks is not None and counts:
        (topic, partition), most = max(counts.items(), key=lambda item: item[1])
        if most > 1:
            found.append(
                f"{topic}, partition {partition} has {most} consumers: keep their max.poll.records below "
                f"{locks // most:,} ({locks:,} record locks ÷ {most}), else some of them get nothing"
            )
    return found


def _named(member: ClusterMember) -> str:
    return f"consumer {member.member_id} ({member.client_id} at {member.host.removeprefix('/')})"
