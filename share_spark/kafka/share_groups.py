"""A Kafka cluster's own share groups (KIP-932): read, never changed.

The requests are those that librdkafka's admin client does not have, in versions of Kafka 4.2: ListGroups for share
groups, ShareGroupDescribe, DescribeShareGroupOffsets. Their messages are those of ``kio``, which are generated from the
broker's own message definitions. Functions that take a ``BrokerConnection`` raise OSError and ValueError, as it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kio.schema.describe_share_group_offsets.v1 import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kio.schema.describe_share_group_offsets.v1.request import DescribeShareGroupOffsetsRequestGroup
from kio.schema.describe_share_group_offsets.v1.response import (
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponseTopic,
)
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.share_group_describe.v1 import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from kio.schema.share_group_describe.v1.response import DescribedGroup, Member
from kio.schema.types import GroupId

from share_spark.kafka.broker_admin import BrokerAdmin
from share_spark.kafka.broker_connection import Address, BrokerConnection, connected, known_versions
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import ErrorCode, TopicError, TopicUnreachableError

LOCKS = "group.share.partition.max.record.locks"
"""The broker's setting that limits how many records of a share-partition may be acquired at a time."""

# DescribeShareGroupOffsets 1 has the lag (KIP-1226).
_NEEDED = (ListGroupsRequest, ShareGroupDescribeRequest, DescribeShareGroupOffsetsRequest)


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
    """A share-partition. ``start_offset`` -1: not begun; ``lag`` None: not known. ``fault``: the reason why it is not
    known, else empty."""

    topic: str
    partition: int
    start_offset: int
    lag: int | None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGroup:
    """A share group. ``state``: the broker's name for it. ``partitions``: by topic and partition. ``fault``: the reason
    why it could not be read, else empty."""

    group_id: str
    state: str
    assignor: str = ""
    members: Sequence[ClusterMember] = ()
    partitions: Sequence[ClusterPartition] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The share groups of a Kafka cluster. ``locks``: the setting LOCKS, None if the brokers have none."""

    servers: str
    groups: Sequence[ClusterGroup]
    locks: int | None


@dataclass(slots=True)
class ClusterShareGroups:
    """Reader of a cluster's share groups. Raises ConfigError: some of ``options`` cannot be used for our own
    connections."""

    options: KafkaOptions
    request_timeout_ms: int
    _login: BrokerLogin = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._login = BrokerLogin.of(self.options)

    def look(self) -> Cluster:
        """Read all share groups. Raises TopicUnreachableError (no answer), TopicError (the brokers know no share
        groups)."""
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
        """Return the groups that this broker coordinates."""
        try:
            with connected(broker, self._login, self.request_timeout_ms / 1_000) as connection:
                return list(_groups_of(broker, connection))
        except (OSError, ValueError) as fault:
            reason = self.options.without_secrets(str(fault))
            raise TopicUnreachableError(f"Kafka at {broker} gave no answer ({reason})") from fault


def _groups_of(broker: Address, connection: BrokerConnection) -> Iterator[ClusterGroup]:
    if not _knows_share_groups(connection):
        raise TopicError(f"Kafka at {broker} cannot tell of share groups (Kafka 4.2 can, with share groups on)")
    listed = _listed_groups(connection)
    if listed.error_code:
        raise TopicError(f"Kafka at {broker} refuses to list its groups ({_error_name(listed.error_code)})")
    names = [one.group_id for one in listed.groups]
    if not names:
        return
    described = _described_groups(connection, names)
    offsets = {one.group_id: one for one in _described_offsets(connection, names)}
    for one in described:
        yield cluster_group(one, offsets.get(one.group_id))


def cluster_group(described: DescribedGroup, offsets: DescribeShareGroupOffsetsResponseGroup | None) -> ClusterGroup:
    """Return the group in answers to ShareGroupDescribe and DescribeShareGroupOffsets. ``offsets`` None: the broker has
    none for it."""
    return ClusterGroup(
        group_id=described.group_id,
        state=described.group_state,
        assignor=described.assignor_name,
        members=[_member(one) for one in described.members],
        partitions=sorted(_partitions(offsets.topics if offsets else ()), key=lambda one: (one.topic, one.partition)),
        fault=_fault(described) or (_fault(offsets) if offsets else ""),
    )


def _member(one: Member) -> ClusterMember:
    return ClusterMember(
        member_id=one.member_id,
        client_id=one.client_id,
        host=one.client_host,
        epoch=one.member_epoch,
        subscribed=one.subscribed_topic_names,
        assigned={part.topic_name: part.partitions for part in one.assignment.topic_partitions},
    )


def _partitions(topics: Iterable[DescribeShareGroupOffsetsResponseTopic]) -> Iterator[ClusterPartition]:
    for topic in topics:
        for one in topic.partitions:
            yield ClusterPartition(
                topic=topic.topic_name,
                partition=one.partition_index,
                start_offset=one.start_offset,
                lag=None if one.lag < 0 else one.lag,
                fault=_fault(one),
            )


class _Checked(Protocol):
    """A part of an answer that may have an error of its own."""

    @property
    def error_code(self) -> int: ...

    @property
    def error_message(self) -> str | None: ...


def _fault(found: _Checked) -> str:
    return (found.error_message or _error_name(found.error_code)) if found.error_code else ""


def _error_name(code: int) -> str:
    """Return Kafka's name of an error, if this project knows it."""
    return ErrorCode(code).name if code in set(ErrorCode) else f"error {code:d}"


def advice(group: ClusterGroup, locks: int | None) -> list[str]:
    """Return advice so that each consumer gets records; empty if there is none.

    A consumer acquires up to ``max.poll.records`` of a share-partition at once. Above locks ÷ consumers the first ones
    take all that may be acquired, and the others get nothing until those are finished.
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


def _knows_share_groups(broker: BrokerConnection) -> bool:
    """Return whether the broker knows the requests of this module."""
    known = known_versions(broker)
    return all(one.__version__ in known.get(one.__api_key__, ()) for one in _NEEDED)


def _listed_groups(broker: BrokerConnection) -> ListGroupsResponse:
    """List the share groups that the broker coordinates, in any state."""
    return broker.ask(ListGroupsRequest(types_filter=("share",)), ListGroupsResponse)


def _described_groups(broker: BrokerConnection, group_ids: Sequence[GroupId]) -> Sequence[DescribedGroup]:
    """Describe groups: their members, and what those are assigned."""
    request = ShareGroupDescribeRequest(group_ids=tuple(group_ids), include_authorized_operations=False)
    return broker.ask(request, ShareGroupDescribeResponse).groups


def _described_offsets(
    broker: BrokerConnection, group_ids: Iterable[GroupId]
) -> Sequence[DescribeShareGroupOffsetsResponseGroup]:
    """Describe start offset and lag of all share-partitions of the groups."""
    groups = tuple(DescribeShareGroupOffsetsRequestGroup(group_id=one, topics=None) for one in group_ids)
    return broker.ask(DescribeShareGroupOffsetsRequest(groups=groups), DescribeShareGroupOffsetsResponse).groups
