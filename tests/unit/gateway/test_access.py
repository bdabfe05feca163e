"""What users may do: the rules by themselves, each request of a user who may do less, and real clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from kio.schema.errors import ErrorCode

from share_spark.gateway import apis
from share_spark.gateway.access import EVERYTHING, NEEDS, Grant, Need, Rules
from share_spark.gateway.door import Door
from share_spark.gateway.users import User, Users, users_text
from share_spark.kafka.broker_connection import Address, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from tests.support.asking import Asking
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, work_off
from tests.unit.gateway.test_admin_requests import ACCEPT
from tests.unit.gateway.test_server import wait_for

SECRET, OTHER, SEEN = "hunter2", "audit", "orders-old"
NO_GROUP, NO_TOPIC = ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed
RULES = {
    "root": EVERYTHING,
    "uses": Rules(groups=("bill*",), topics=("orders-*",)),
    "administers": Rules(groups=("bill*",), topics=("orders-*",), administers=True),
    "nobody": Rules(),
}


def test_each_request_that_is_served_has_its_need() -> None:
    served = {api.key for api, _ in apis.served_versions()}
    assert NEEDS.keys() == served - set(apis.BEFORE_LOGIN)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("billing", "billing", True),
        ("billing", "billing2", False),
        ("billing*", "billing", True),
        ("billing*", "billing2", True),
        ("billing*", "bill", False),
        ("*", "", True),
        ("a.c", "abc", False),
        ("Billing", "billing", False),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    for need in NEEDS.values():
        grant = Grant(Rules(groups=(pattern,), topics=(pattern,), administers=True), need)
        expected = {name} if matches else set()
        assert (asyncio.run(grant.groups((name,))), asyncio.run(grant.topics((name,)))) == (expected, expected)


def test_changes_are_for_administrators() -> None:
    need = Need(administers=True)
    grants = [Grant(Rules(groups=("*",), administers=is_one), need) for is_one in (False, True)]
    assert [asyncio.run(grant.group("any")) for grant in grants] == [False, True]


# ------------------------------------------------------------------------------------------- by requests


@pytest.fixture(scope="module")
def users() -> Users:
    found = Users.none()
    for name, rules in RULES.items():
        found = found.with_user(name, User.of(SECRET.encode(), rules))
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Two topics, of which ``uses`` may use the second one."""
    place = Place.below(tmp_path, partitions=1)
    place.log.create_topic(SEEN, 1)
    place.produce(1, 10)
    return place


@pytest.fixture
def address(place: Place, users: Users, tmp_path: Path) -> Iterator[Address]:
    file = tmp_path / "users.toml"
    file.write_text(users_text(users))
    with place.gateway(door=Door.of(Address("127.0.0.1", 0), tls=None, users=str(file))) as found:
        with asking(found, "root") as root:
            for group in (GROUP, OTHER):
                root.alter((TOPIC, 0, 1), (SEEN, 0, 0), group_id=group)
        yield found


def security(user: str) -> dict[str, str]:
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": SECRET}
    return {"security.protocol": "SASL_PLAINTEXT", **login}


@contextmanager
def asking(address: Address, user: str) -> Iterator[Asking]:
    login = BrokerLogin.of(KafkaOptions.parse({"bootstrap.servers": "b:1", **security(user)}))
    with connected(address, login, 30) as connection:
        yield Asking(connection)


def metadata(client: Asking, *names: str) -> dict[str, ErrorCode]:
    topics = [{"name": name, "topic_id": None} for name in names] if names else None
    asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return {topic.name: topic.error_code for topic in client.ask(apis.METADATA, topics=topics, **asked).topics}


def topic_id(client: Asking) -> Any:
    asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    (found,) = client.ask(apis.METADATA, topics=[{"name": TOPIC, "topic_id": None}], **asked).topics
    return found.topic_id


def heartbeat(client: Asking, group: str, *topics: str) -> ErrorCode:
    return client.heartbeat(group, "me", *topics).error_code


def share_fetch(client: Asking, group: str, topic: Any) -> Any:
    return client.share_fetch(group, "vQ2/U/tR+dG0mYc0hG5Zgw", topic, max_wait_ms=100)


def share_acknowledge(client: Asking, group: str) -> ErrorCode:
    asked = {"member_id": "vQ2/U/tR+dG0mYc0hG5Zgw", "share_session_epoch": 1, "is_renew_ack": False, "topics": ()}
    return client.ask(apis.SHARE_ACKNOWLEDGE, group_id=group, **asked).error_code


def test_topics_that_a_user_may_not_use_are_left_out_or_refused(address: Address) -> None:
    with asking(address, "root") as root, asking(address, "uses") as user:
        assert metadata(root).keys() == {TOPIC, SEEN}
        assert metadata(user) == {SEEN: ErrorCode.none}
        # None is told whether there is a topic that he may not use.
        none = ErrorCode.none
        assert metadata(user, TOPIC, "nowhere", SEEN) == {TOPIC: NO_TOPIC, "nowhere": NO_TOPIC, SEEN: none}
        by_id = [{"name": None, "topic_id": topic_id(root)}]
        asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        (found,) = user.ask(apis.METADATA, topics=by_id, **asked).topics
        assert (found.name, found.error_code, found.partitions) == (None, NO_TOPIC, ())
        described = {"response_partition_limit": 100, "cursor": None}
        for names, expected in (((), {SEEN: none}), ((TOPIC, SEEN), {TOPIC: NO_TOPIC, SEEN: none})):
            topics = [{"name": name} for name in names]
            answer = user.ask(apis.DESCRIBE_TOPIC_PARTITIONS, topics=topics, **described)
            assert {topic.name: topic.error_code for topic in answer.topics} == expected
        wanted = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
        listed = [{"name": name, "partitions": wanted} for name in (TOPIC, SEEN)]
        answer = user.ask(apis.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=listed)
        assert [one.partitions[0].error_code for one in answer.topics] == [NO_TOPIC, none]


def test_groups_that_a_user_may_not_use_are_left_out_or_refused(address: Address) -> None:
    with asking(address, "root") as root, asking(address, "uses") as user, asking(address, "nobody") as nobody:
        assert [set(client.listed()) for client in (root, user, nobody)] == [{GROUP, OTHER}, {GROUP}, set()]
        found = user.ask(apis.FIND_COORDINATOR, key_type=0, coordinator_keys=(GROUP, OTHER)).coordinators
        assert [(one.key, one.error_code) for one in found] == [(GROUP, ErrorCode.none), (OTHER, NO_GROUP)]
        asked = {"group_ids": (GROUP, OTHER), "include_authorized_operations": False}
        found = user.ask(apis.SHARE_GROUP_DESCRIBE, **asked).groups
        assert [one.error_code for one in found] == [ErrorCode.none, NO_GROUP]
        groups = [{"group_id": group, "topics": None} for group in (GROUP, OTHER)]
        found = user.ask(apis.DESCRIBE_SHARE_GROUP_OFFSETS, groups=groups).groups
        assert [(one.error_code, [topic.topic_name for topic in one.topics]) for one in found] == [
            (ErrorCode.none, [SEEN]),
            (NO_GROUP, []),
        ]
        partitions = [{"topic_name": name, "partitions": (0,)} for name in (TOPIC, SEEN)]
        (one,) = user.ask(apis.DESCRIBE_SHARE_GROUP_OFFSETS, groups=[{"group_id": GROUP, "topics": partitions}]).groups
        assert [topic.partitions[0].error_code for topic in one.topics] == [NO_TOPIC, ErrorCode.none]
        resources = [
            {"resource_type": 32, "resource_name": group, "configuration_keys": None} for group in (GROUP, OTHER)
        ]
        asked = {"include_synonyms": False, "include_documentation": False}
        results = user.ask(apis.DESCRIBE_CONFIGS, resources=resources, **asked).results
        assert [(one.error_code, bool(one.configs)) for one in results] == [(ErrorCode.none, True), (NO_GROUP, False)]


def test_a_group_whose_members_read_topics_that_a_user_may_not_use_is_not_described(address: Address) -> None:
    with asking(address, "root") as root, asking(address, "uses") as user:
        assert heartbeat(root, GROUP, TOPIC) == ErrorCode.none
        (found,) = user.ask(apis.SHARE_GROUP_DESCRIBE, group_ids=(GROUP,), include_authorized_operations=False).groups
        assert (found.error_code, found.members) == (NO_TOPIC, ())


def test_a_member_needs_its_group_and_its_topics(address: Address) -> None:
    with asking(address, "root") as root, asking(address, "uses") as user:
        assert heartbeat(user, OTHER, SEEN) == NO_GROUP
        assert heartbeat(user, GROUP, TOPIC) == NO_TOPIC
        assert heartbeat(user, GROUP, SEEN) == ErrorCode.none
        topic = topic_id(root)
        assert share_fetch(user, OTHER, topic).error_code == NO_GROUP
        fetched = share_fetch(user, GROUP, topic)
        (partition,) = fetched.responses[0].partitions
        assert (fetched.error_code, partition.error_code, partition.records) == (ErrorCode.none, NO_TOPIC, b"")
        assert share_acknowledge(user, OTHER) == NO_GROUP
        assert share_acknowledge(user, GROUP) == ErrorCode.none


def test_changes_need_an_administrator_of_the_group_and_its_topics(address: Address) -> None:
    with asking(address, "uses") as user, asking(address, "administers") as one, asking(address, "root") as root:
        for client, group in ((user, GROUP), (one, OTHER)):
            assert client.alter((SEEN, 0, 0), group_id=group).error_code == NO_GROUP
            assert client.delete_offsets(SEEN, group_id=group).error_code == NO_GROUP
            assert client.delete(group) == NO_GROUP
            assert client.alter_configs(group, share_record_lock_duration_ms="40000")[0] == NO_GROUP
        before = root.offsets()
        altered = one.alter((TOPIC, 0, 5), (SEEN, 0, 0))
        assert [topic.partitions[0].error_code for topic in altered.responses] == [NO_TOPIC, ErrorCode.none]
        deleted = one.delete_offsets(TOPIC, SEEN)
        assert [topic.error_code for topic in deleted.responses] == [NO_TOPIC, ErrorCode.none]
        assert root.offsets() == {(TOPIC, 0): before[TOPIC, 0]}
        assert one.alter_configs(GROUP, share_record_lock_duration_ms="40000") == (0, None)
        assert one.delete(GROUP) == 0
        assert set(root.listed()) == {OTHER}


# ------------------------------------------------------------------------------------- by a share consumer


def test_a_share_consumer_is_told_and_gets_nothing(address: Address) -> None:
    with consumer(address, security=security("root")) as found:
        work_off(found, 9, lambda _: ACCEPT)
    told: list[str] = []
    with consumer(address, group=OTHER, security=security("uses")) as found:

        def is_told() -> bool:
            try:
                messages = found.poll(timeout=0.5)
            except KafkaException as fault:
                told.append(str(fault))
            else:
                assert all(message.error() is not None for message in messages)
                told.extend(str(message.error()) for message in messages)
            return bool(told)

        wait_for(is_told)
    assert any("GROUP_AUTHORIZATION_FAILED" in one or "authorization failed" in one.lower() for one in told), told
