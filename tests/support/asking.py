"""Requests to a gateway as values, on one connection, without a client's library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from kio.index import load_request_schema, load_response_schema

from share_spark.gateway import apis
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.broker_connection import Address, BrokerConnection, connected
from share_spark.kafka.broker_login import BrokerLogin
from tests.support.share_consumers import GROUP


class Asking:
    """Requests on one connection, each in the latest version that is served."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection

    def ask(self, api: apis.Api, **values: object) -> Any:
        request = make_message(load_request_schema(api.key, api.versions[-1]), values)
        return self.connection.ask(request, load_response_schema(api.key, api.versions[-1]))

    def share_fetch(
        self,
        group_id: str,
        member_id: str,
        topic_id: Any,
        epoch: int = 0,
        *,
        accepted: tuple[int, int] | None = None,
        max_wait_ms: int = 500,
        max_records: int = 10,
        acquire_mode: int = 0,
    ) -> Any:
        """The answer to a fetch of partition 0. ``accepted``: the first and the last offset of what is accepted."""
        first, last = accepted or (0, 0)
        batch = {"first_offset": first, "last_offset": last, "acknowledge_types": (1,)}
        partition = {"partition_index": 0, "acknowledgement_batches": [] if accepted is None else [batch]}
        return self.ask(
            apis.SHARE_FETCH,
            group_id=group_id,
            member_id=member_id,
            share_session_epoch=epoch,
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=max_records,
            batch_size=max_records,
            share_acquire_mode=acquire_mode,
            is_renew_ack=False,
            topics=[{"topic_id": topic_id, "partitions": [partition]}],
            forgotten_topics_data=(),
        )

    def heartbeat(self, group_id: str, member_id: str, *topics: str, epoch: int = 0) -> Any:
        values = {"member_id": member_id, "member_epoch": epoch, "rack_id": None, "subscribed_topic_names": topics}
        return self.ask(apis.SHARE_GROUP_HEARTBEAT, group_id=group_id, **values)

    def described(self, group_id: str = GROUP, *, with_operations: bool = False) -> Any:
        (found,) = self.ask(
            apis.SHARE_GROUP_DESCRIBE, group_ids=(group_id,), include_authorized_operations=with_operations
        ).groups
        return found

    def state(self, group_id: str = GROUP) -> str:
        found = self.described(group_id)
        return "" if found.error_code else str(found.group_state)

    def listed(self, **filters: object) -> dict[str, str]:
        asked = {"states_filter": (), "types_filter": (), **filters}
        return {one.group_id: one.group_state for one in self.ask(apis.LIST_GROUPS, **asked).groups}

    def offsets(self, group_id: str = GROUP) -> dict[tuple[str, int], tuple[int, int]]:
        """(start offset, lag) by topic and partition."""
        asked = [{"group_id": group_id, "topics": None}]
        (group,) = self.ask(apis.DESCRIBE_SHARE_GROUP_OFFSETS, groups=asked).groups
        assert not group.error_code, group.error_message
        return {
            (topic.topic_name, one.partition_index): (one.start_offset, one.lag)
            for topic in group.topics
            for one in topic.partitions
        }

    def alter(self, *offsets: tuple[str, int, int], group_id: str = GROUP) -> Any:
        topics = [
            {"topic_name": topic, "partitions": [{"partition_index": partition, "start_offset": offset}]}
            for topic, partition, offset in offsets
        ]
        return self.ask(apis.ALTER_SHARE_GROUP_OFFSETS, group_id=group_id, topics=topics)

    def delete_offsets(self, *topics: str, group_id: str = GROUP) -> Any:
        named = [{"topic_name": topic} for topic in topics]
        return self.ask(apis.DELETE_SHARE_GROUP_OFFSETS, group_id=group_id, topics=named)

    def delete(self, group_id: str = GROUP) -> int:
        (result,) = self.ask(apis.DELETE_GROUPS, groups_names=(group_id,)).results
        return int(result.error_code)

    def alter_configs(self, group_id: str = GROUP, kind: int = 32, **configs: str | None) -> tuple[int, str | None]:
        changes = [
            {"name": name.replace("_", "."), "config_operation": 0 if value is not None else 1, "value": value}
            for name, value in configs.items()
        ]
        resource = {"resource_type": kind, "resource_name": group_id, "configs": changes}
        (result,) = self.ask(apis.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False).responses
        return int(result.error_code), result.error_message


@contextmanager
def asking(address: Address) -> Iterator[Asking]:
    with connected(address, BrokerLogin(), 30.0) as connection:
        yield Asking(connection)
