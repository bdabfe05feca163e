"""The five requests of brokers about the state of share-partitions, as raw requests, and what consumers see of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import AcknowledgeType
from kio.schema.errors import ErrorCode

from share_spark.gateway import apis
from share_spark.gateway.access import EVERYTHING, Rules
from share_spark.gateway.door import Door
from share_spark.gateway.users import User, Users, users_text
from share_spark.kafka.broker_connection import Address, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_ids import uuid_of
from tests.support.asking import Asking, asking
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, polled, refuse_errors

ACCEPT = AcknowledgeType.ACCEPT
ACKNOWLEDGED, ARCHIVED = 2, 4

NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition

RULES = {
    "root": EVERYTHING,
    "administers": Rules(groups=("*",), topics=("*",), administers=True),
    "broker": Rules(acts_as_broker=True),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.below(tmp_path, partitions=2)
    place.produce(1, 40)
    return place


class Broker:
    """Requests about one group and topic, each of one partition."""

    def __init__(self, tools: Asking, topic_id: UUID, group: str = GROUP) -> None:
        self.tools, self.topic_id, self.group = tools, topic_id, group

    def ask(self, api: apis.Api, partition: int = 0, **said: object) -> Any:
        topics = [{"topic_id": self.topic_id, "partitions": [{"partition": partition, **said}]}]
        ((topic,),) = (self.tools.ask(api, group_id=self.group, topics=topics).results,)
        (found,) = topic.partitions
        assert (topic.topic_id, found.partition) == (self.topic_id, partition)
        return found

    def initialize(self, state_epoch: int, start_offset: int) -> ErrorCode:
        return self.ask(
            apis.INITIALIZE_SHARE_GROUP_STATE, state_epoch=state_epoch, start_offset=start_offset
        ).error_code

    def write(self, state_epoch: int, leader_epoch: int, start_offset: int, *batches: Sequence[int]) -> ErrorCode:
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        found: list[Mapping[str, int]] = [dict(zip(names, batch, strict=True)) for batch in batches]
        epochs = {"state_epoch": state_epoch, "leader_epoch": leader_epoch}
        return self.ask(
            apis.WRITE_SHARE_GROUP_STATE, **epochs, start_offset=start_offset, state_batches=found
        ).error_code

    def read(self, leader_epoch: int = -1) -> tuple[Any, ...]:
        """(error, state epoch, start offset, batches)."""
        found = self.ask(apis.READ_SHARE_GROUP_STATE, leader_epoch=leader_epoch)
        batches = [
            (one.first_offset, one.last_offset, one.delivery_state, one.delivery_count) for one in found.state_batches
        ]
        return found.error_code, found.state_epoch, found.start_offset, batches

    def summary(self) -> tuple[Any, ...]:
        """(error, state epoch, leader epoch, start offset)."""
        found = self.ask(apis.READ_SHARE_GROUP_STATE_SUMMARY, leader_epoch=-1)
        return found.error_code, found.state_epoch, found.leader_epoch, found.start_offset

    def delete(self) -> ErrorCode:
        return self.ask(apis.DELETE_SHARE_GROUP_STATE).error_code


def topic_id(place: Place) -> UUID:
    return uuid_of(place.log.describe(TOPIC).topic_id)


def test_a_state_from_its_begin_to_its_end(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        broker = Broker(tools, topic_id(place))
        assert broker.read() == (UNKNOWN, 0, 0, [])
        assert broker.write(1, 1, 5) is UNKNOWN
        assert broker.initialize(3, 5) is NONE
        assert broker.read() == (NONE, 3, 5, [])
        assert broker.initialize(2, 0) is ErrorCode.fenced_state_epoch
        assert broker.write(3, 7, -1, (5, 5, ACKNOWLEDGED, 1), (7, 8, ARCHIVED, 5), (9, 9, 0, 2)) is NONE
        assert broker.write(3, 6, -1) is ErrorCode.fenced_leader_epoch
        assert broker.write(2, 7, -1) is ErrorCode.fenced_state_epoch
        # In the log final batches at the front are passed over, and holes are filled (R66).
        assert broker.read() == (NONE, 3, 6, [(6, 6, 0, 0), (7, 8, ARCHIVED, 5), (9, 9, 0, 2)])
        assert broker.summary() == (NONE, 3, 7, 6)
        assert broker.read(6)[0] is ErrorCode.fenced_leader_epoch
        assert broker.read(9)[0] is NONE
        assert broker.summary() == (NONE, 3, 9, 6)
        assert (broker.delete(), broker.delete()) == (NONE, NONE)
        assert broker.summary() == (UNKNOWN, 0, 0, 0)


def test_consumers_go_on_from_what_was_written(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        broker = Broker(tools, topic_id(place))
        assert broker.initialize(1, 5) is NONE
        assert broker.write(1, 1, -1, (7, 8, ACKNOWLEDGED, 1), (9, 9, 0, 2)) is NONE
        with consumer(address) as found:
            counts: dict[int, int] = {}
            while 19 not in counts:
                for message in polled(found):
                    if message.partition() == 0:
                        counts[message.offset() or 0] = message.delivery_count()
                    found.acknowledge(message, ACCEPT)
                refuse_errors(found.commit_sync())
            # A group with members has a leader: its engine.
            assert broker.write(1, 2, 10) is ErrorCode.non_empty_group
        assert counts == {5: 1, 6: 1, 9: 3, **dict.fromkeys(range(10, 20), 1)}
        assert broker.summary()[3] == 20


def test_a_request_without_entries_has_an_empty_answer(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        for group, topics in (("", [{"topic_id": topic_id(place), "partitions": [{"partition": 0}]}]), (GROUP, [])):
            assert tools.ask(apis.DELETE_SHARE_GROUP_STATE, group_id=group, topics=topics).results == ()


@contextmanager
def as_user(address: Address, name: str) -> Iterator[Asking]:
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": name, "sasl.password": "hunter2"}
    options = KafkaOptions.parse({"bootstrap.servers": "b:1", "security.protocol": "SASL_PLAINTEXT", **login})
    with connected(address, BrokerLogin.of(options), 30) as at:
        yield Asking(at)


def test_only_who_may_act_as_a_broker_is_answered(place: Place, tmp_path: Path) -> None:
    users = Users.none()
    for name, rules in RULES.items():
        users = users.with_user(name, User.of(b"hunter2", rules))
    file = tmp_path / "users.toml"
    file.write_text(users_text(users))
    refused = ErrorCode.cluster_authorization_failed
    with place.gateway(door=Door.of(Address("127.0.0.1", 0), tls=None, users=str(file))) as address:
        with as_user(address, "administers") as tools:
            broker = Broker(tools, topic_id(place))
            assert {broker.initialize(1, 0), broker.write(1, 1, 0), broker.delete()} == {refused}
            assert (broker.read(), broker.summary()) == ((refused, 0, 0, []), (refused, 0, 0, 0))
        with as_user(address, "broker") as tools:
            broker = Broker(tools, topic_id(place))
            assert broker.initialize(1, 5) is NONE
            assert broker.read() == (NONE, 1, 5, [])
            assert not tools.listed()
        with as_user(address, "root") as tools:
            assert set(tools.listed()) == {GROUP}
