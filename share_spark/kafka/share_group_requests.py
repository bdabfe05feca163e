"""Requests about a cluster's own share groups that librdkafka's admin client does not have, in versions of Kafka 4.2:
ListGroups for share groups, ShareGroupDescribe, DescribeShareGroupOffsets. The messages are those of ``kio``, which are
generated from the broker's own message definitions. All functions raise OSError and ValueError, as
``BrokerConnection``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kio.schema.api_versions.v2 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.describe_share_group_offsets.v1 import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kio.schema.describe_share_group_offsets.v1.request import DescribeShareGroupOffsetsRequestGroup
from kio.schema.describe_share_group_offsets.v1.response import DescribeShareGroupOffsetsResponseGroup
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.share_group_describe.v1 import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from kio.schema.share_group_describe.v1.response import DescribedGroup
from kio.schema.types import GroupId

from share_spark.kafka.broker_connection import BrokerConnection

# DescribeShareGroupOffsets 1 has the lag (KIP-1226).
_NEEDED = (ListGroupsRequest, ShareGroupDescribeRequest, DescribeShareGroupOffsetsRequest)


def knows_share_groups(broker: BrokerConnection) -> bool:
    """Return whether the broker knows the requests of this module."""
    # Version 2, as later ones have tagged fields: brokers may add some, and kio reads only those that it knows.
    answer = broker.ask(ApiVersionsRequest(), ApiVersionsResponse)
    known = {one.api_key: range(one.min_version, one.max_version + 1) for one in answer.api_keys}
    return all(one.__version__ in known.get(one.__api_key__, ()) for one in _NEEDED)


def listed_groups(broker: BrokerConnection) -> ListGroupsResponse:
    """List the share groups that the broker coordinates, in any state."""
    return broker.ask(ListGroupsRequest(types_filter=("share",)), ListGroupsResponse)


def described_groups(broker: BrokerConnection, group_ids: Sequence[GroupId]) -> Sequence[DescribedGroup]:
    """Describe groups: their members, and what those are assigned."""
    request = ShareGroupDescribeRequest(group_ids=tuple(group_ids), include_authorized_operations=False)
    return broker.ask(request, ShareGroupDescribeResponse).groups


def described_offsets(
    broker: BrokerConnection, group_ids: Iterable[GroupId]
) -> Sequence[DescribeShareGroupOffsetsResponseGroup]:
    """Describe start offset and lag of all share-partitions of the groups."""
    groups = tuple(DescribeShareGroupOffsetsRequestGroup(group_id=one, topics=None) for one in group_ids)
    return broker.ask(DescribeShareGroupOffsetsRequest(groups=groups), DescribeShareGroupOffsetsResponse).groups
