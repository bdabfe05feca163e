"""Members of a group that send heartbeats as a test wants them, without a client's library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kio.index import load_request_schema, load_response_schema

from share_spark import ShareGroupAdmin
from share_spark.coordinator.group import ShareGroup
from share_spark.gateway.apis import SHARE_GROUP_HEARTBEAT
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.broker_connection import Address, BrokerConnection, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.topic_ids import topic_id_of
from tests.support.share_consumers import GROUP, TOPIC, Place

LOADING, NOT_COORDINATOR = 14, 16


@dataclass(slots=True)
class RawMember:
    """A member. ``epoch``: the one that it was told last; ``held``: its assignment, as topic id and partition."""

    name: str
    group_id: str = GROUP
    epoch: int = 0
    held: set[tuple[str, int]] = field(default_factory=set)

    def beat(self, at: BrokerConnection, *topics: str, epoch: int | None = None, attempts: int = 5) -> int:
        """Send a heartbeat, again while no engine is there. Return the error code."""
        for _ in range(attempts):
            answer = self._asked(at, topics, self.epoch if epoch is None else epoch)
            if answer.error_code != LOADING:
                break
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                found = answer.assignment.topic_partitions
                self.held = {(topic_id_of(one.topic_id), number) for one in found for number in one.partitions}
        return int(answer.error_code)

    def join(self, at: BrokerConnection, *topics: str) -> None:
        assert self.beat(at, *(topics or (TOPIC,)), epoch=0) == 0

    def leave(self, at: BrokerConnection) -> None:
        assert self.beat(at, epoch=-1) == 0

    def _asked(self, at: BrokerConnection, topics: tuple[str, ...], epoch: int) -> Any:
        version = SHARE_GROUP_HEARTBEAT.versions[-1]
        values = {
            "group_id": self.group_id,
            "member_id": self.name,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": topics or None,
        }
        request = make_message(load_request_schema(SHARE_GROUP_HEARTBEAT.key, version), values)
        return at.ask(request, load_response_schema(SHARE_GROUP_HEARTBEAT.key, version))


@contextmanager
def connection(address: Address) -> Iterator[BrokerConnection]:
    with connected(address, BrokerLogin(), 30.0) as found:
        yield found


def stored(place: Place, group_id: str = GROUP) -> ShareGroup:
    """The members and epochs in the files of the log."""
    found = ShareGroupAdmin(place.state).look().reader.group(group_id).members
    assert found is not None
    return found


def log_version(place: Place) -> int:
    return ShareGroupAdmin(place.state).look().reader.log.version
