"""What users of a gateway may do who log in at a real Kafka 4.2: what they may do there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import AcknowledgeType, KafkaException
from confluent_kafka.admin import (
    AclOperation,
    AclPermissionType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kio.schema.errors import ErrorCode

from share_spark.gateway import apis, cluster_rights
from share_spark.gateway.nodes import owner_of
from share_spark.kafka.broker_connection import Address, LoginRefusedError
from share_spark.kafka.topic_ids import uuid_of
from tests.kafka.test_broker import create_topic
from tests.kafka.test_gateway_on_kafka import produce
from tests.support.asking import Asking
from tests.support.cluster_of_users import (
    ALICE,
    BOB,
    GROUP,
    HIDDEN,
    NOBODY,
    OTHER,
    OTHERS,
    ROOT,
    SECRET,
    TOPIC,
    ClusterOfUsers,
    asking_as,
    gateway_of_users,
    security,
)
from tests.support.share_consumers import consumer, polled, work_off
from tests.unit.gateway.test_access import heartbeat, metadata, share_fetch
from tests.unit.gateway.test_server import wait_for
from tests.unit.gateway.test_several_gateways import acquired, coordinator, fetch, node

NO_GROUP, NO_TOPIC = ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed
NO_RIGHT = (NO_GROUP, NO_TOPIC, ErrorCode.cluster_authorization_failed)
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
TOPICS, GROUPS, CLUSTERS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
NAMES = {TOPICS: HIDDEN, GROUPS: OTHER, CLUSTERS: "kafka-cluster"}

STATE = {"initialized", "state read", "state written", "state deleted", "state summary"}
SEEN_TOPIC, SEEN_GROUP = {"metadata", "topic", "offset"}, {"coordinator", "described", "offsets described"}
CONFIGS, NEW_CONFIGS = {"configs"}, {"configs", "new configs"}

OPENED_BY: dict[tuple[ResourceType, AclOperation], set[str]] = {
    (GROUPS, READ): SEEN_GROUP | {"heartbeat", "fetch", "altered"},
    (GROUPS, AclOperation.DELETE): SEEN_GROUP | {"offsets deleted", "deleted"},
    (GROUPS, DESCRIBE): SEEN_GROUP,
    (GROUPS, AclOperation.DESCRIBE_CONFIGS): CONFIGS,
    (GROUPS, AclOperation.ALTER_CONFIGS): NEW_CONFIGS,
    (TOPICS, READ): SEEN_TOPIC,
    (TOPICS, AclOperation.WRITE): SEEN_TOPIC,
    (TOPICS, AclOperation.CREATE): set(),
    (TOPICS, AclOperation.DELETE): SEEN_TOPIC,
    (TOPICS, AclOperation.ALTER): SEEN_TOPIC,
    (TOPICS, DESCRIBE): SEEN_TOPIC,
    (TOPICS, AclOperation.DESCRIBE_CONFIGS): set(),
    (TOPICS, AclOperation.ALTER_CONFIGS): set(),
    (CLUSTERS, AclOperation.CREATE): set(),
    (CLUSTERS, AclOperation.ALTER): {"listed"},
    (CLUSTERS, DESCRIBE): {"listed"},
    (CLUSTERS, AclOperation.CLUSTER_ACTION): STATE,
    (CLUSTERS, AclOperation.DESCRIBE_CONFIGS): set(),
    (CLUSTERS, AclOperation.ALTER_CONFIGS): set(),
    (CLUSTERS, AclOperation.IDEMPOTENT_WRITE): set(),
    (CLUSTERS, AclOperation.ALL): STATE | {"listed"},
}
"""The requests that are refused in another way, or no more, for who has this right and no other."""


class Gateway(NamedTuple):
    """A gateway, and the user that has each of these rights alone."""

    address: Address
    users: dict[tuple[ResourceType, AclOperation], str]


@pytest.fixture(scope="module")
def gateway(cluster_of_users: ClusterOfUsers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The group GROUP is there, and in the cluster, too."""
    users = dict(zip(OPENED_BY, OTHERS, strict=False))
    rules = [cluster_of_users.allow(user, kind, NAMES[kind], one) for (kind, one), user in users.items()]
    with gateway_of_users(cluster_of_users, tmp_path_factory.mktemp("state")) as address:
        for place in (address, cluster_of_users.servers):
            with asking_as(place, ALICE) as alice:
                wait_for(lambda asked=alice: _joins(asked))
        yield Gateway(address, users)
    cluster_of_users.take_back(rules)


def _joins(alice: Asking) -> bool:
    """A broker makes the topic of its coordinators when somebody looks for one."""
    alice.ask(apis.FIND_COORDINATOR, key_type=0, coordinator_keys=(GROUP,))
    return heartbeat(alice, GROUP, TOPIC) == ErrorCode.none


@pytest.fixture(scope="module")
def hidden_id(cluster_of_users: ClusterOfUsers) -> Any:
    return uuid_of(cluster_of_users.source.log.describe(HIDDEN).topic_id)


def refusals(client: Asking, topic_id: Any) -> dict[str, ErrorCode]:
    """The requests about the group OTHER and the topic HIDDEN that are refused, and with which error. A group that is
    not listed counts as refused."""
    codes = _about_topics(client) | _about_groups(client, topic_id) | _about_state(client, topic_id)
    return {name: code for name, code in codes.items() if code in NO_RIGHT}


def _about_topics(client: Asking) -> dict[str, ErrorCode]:
    wanted = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    offsets = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": HIDDEN, "partitions": wanted}]}
    limit = {"response_partition_limit": 9, "cursor": None}
    described = client.ask(apis.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": HIDDEN}], **limit)
    return {
        "metadata": metadata(client, HIDDEN)[HIDDEN],
        "topic": described.topics[0].error_code,
        "offset": client.ask(apis.LIST_OFFSETS, **offsets).topics[0].partitions[0].error_code,
    }


def _about_groups(client: Asking, topic_id: Any) -> dict[str, ErrorCode]:
    with_configs = {"resource_type": 32, "resource_name": OTHER}
    wanted = {"resources": [{**with_configs, "configuration_keys": None}]}
    changed = {"resources": [{**with_configs, "configs": ()}], "validate_only": True}
    described = {"include_synonyms": False, "include_documentation": False}
    sought = client.ask(apis.FIND_COORDINATOR, key_type=0, coordinator_keys=(OTHER,))
    asked = [{"group_id": OTHER, "topics": None}]
    return {
        "listed": ErrorCode.none if GROUP in client.listed() else NO_GROUP,
        "coordinator": sought.coordinators[0].error_code,
        "described": client.described(OTHER).error_code,
        "offsets described": client.ask(apis.DESCRIBE_SHARE_GROUP_OFFSETS, groups=asked).groups[0].error_code,
        "offsets deleted": client.delete_offsets(HIDDEN, group_id=OTHER).error_code,
        "deleted": ErrorCode(client.delete(OTHER)),
        "configs": client.ask(apis.DESCRIBE_CONFIGS, **wanted, **described).results[0].error_code,
        "new configs": client.ask(apis.INCREMENTAL_ALTER_CONFIGS, **changed).responses[0].error_code,
        "heartbeat": _joined_and_left(client),
        "altered": _of_partitions(client.alter((HIDDEN, 0, 0), group_id=OTHER)),
        "fetch": _of_partitions(share_fetch(client, OTHER, topic_id)),
    }


def _joined_and_left(client: Asking) -> ErrorCode:
    error = heartbeat(client, OTHER, HIDDEN)
    client.heartbeat(OTHER, "me", epoch=-1)
    return error


def _of_partitions(answer: Any) -> ErrorCode:
    """The error of an answer, or that of its first partition."""
    if answer.error_code or not answer.responses:
        return answer.error_code
    return answer.responses[0].partitions[0].error_code


def _about_state(client: Asking, topic_id: Any) -> dict[str, ErrorCode]:
    def error(api: apis.Api, **said: object) -> ErrorCode:
        topics = [{"topic_id": topic_id, "partitions": [{"partition": 0, **said}]}]
        return client.ask(api, group_id=OTHER, topics=topics).results[0].partitions[0].error_code

    state = {"state_epoch": 0, "start_offset": 0}
    return {
        "initialized": error(apis.INITIALIZE_SHARE_GROUP_STATE, **state),
        "state written": error(apis.WRITE_SHARE_GROUP_STATE, **state, leader_epoch=0, state_batches=()),
        "state read": error(apis.READ_SHARE_GROUP_STATE, leader_epoch=0),
        "state summary": error(apis.READ_SHARE_GROUP_STATE_SUMMARY, leader_epoch=0),
        "state deleted": error(apis.DELETE_SHARE_GROUP_STATE),
    }


@pytest.fixture(scope="module")
def closed(cluster_of_users: ClusterOfUsers, gateway: Gateway, hidden_id: Any) -> dict[str, ErrorCode]:
    """What is refused to who has no right: at the gateway what the cluster refuses."""
    with asking_as(cluster_of_users.servers, NOBODY) as kafka, asking_as(gateway.address, NOBODY) as client:
        found = refusals(client, hidden_id)
        assert found == refusals(kafka, hidden_id)
    return found


@pytest.mark.parametrize("right", OPENED_BY, ids=lambda right: f"{right[0].name}-{right[1].name}")
def test_each_right_alone_opens_what_it_opens_at_kafka(
    cluster_of_users: ClusterOfUsers,
    gateway: Gateway,
    hidden_id: Any,
    closed: dict[str, ErrorCode],
    right: tuple[ResourceType, AclOperation],
) -> None:
    """The same requests at the broker itself."""
    user = gateway.users[right]
    with asking_as(cluster_of_users.servers, user) as kafka, asking_as(gateway.address, user) as client:
        expected = refusals(kafka, hidden_id)
        assert {name for name, error in closed.items() if expected.get(name) != error} == OPENED_BY[right]
        assert refusals(client, hidden_id) == expected


@contextmanager
def ruled(cluster: ClusterOfUsers, *rules: tuple[ResourceType, str, AclOperation, AclPermissionType]) -> Iterator[None]:
    """These rules for BOB."""
    made = [cluster.rule(BOB, *rule) for rule in rules]
    time.sleep(0.5)
    try:
        yield
    finally:
        cluster.take_back(made)


@pytest.mark.parametrize(
    "rules",
    [
        ((GROUPS, OTHER, READ, ALLOW), (TOPICS, HIDDEN, READ, ALLOW)),
        ((GROUPS, OTHER, AclOperation.DELETE, ALLOW), (TOPICS, HIDDEN, READ, ALLOW)),
        ((GROUPS, OTHER, READ, ALLOW), (TOPICS, HIDDEN, READ, ALLOW), (TOPICS, HIDDEN, DESCRIBE, DENY)),
        ((GROUPS, OTHER, READ, ALLOW), (GROUPS, OTHER, DESCRIBE, DENY), (TOPICS, HIDDEN, DESCRIBE, ALLOW)),
        ((GROUPS, OTHER, AclOperation.ALL, ALLOW), (GROUPS, OTHER, READ, DENY), (TOPICS, "*", READ, ALLOW)),
        ((CLUSTERS, "kafka-cluster", AclOperation.ALL, ALLOW), (CLUSTERS, "kafka-cluster", DESCRIBE, DENY)),
        ((GROUPS, "*", AclOperation.ALL, ALLOW), (TOPICS, "*", AclOperation.ALL, ALLOW)),
    ],
)
def test_rights_together_and_taken_away_are_as_at_kafka(
    cluster_of_users: ClusterOfUsers, gateway: Gateway, hidden_id: Any, rules: tuple[Any, ...]
) -> None:
    places = cluster_of_users.servers, gateway.address
    with ruled(cluster_of_users, *rules), asking_as(places[0], BOB) as kafka, asking_as(places[1], BOB) as client:
        assert refusals(client, hidden_id) == refusals(kafka, hidden_id)


READS = ((GROUPS, GROUP, READ, ALLOW), (TOPICS, TOPIC, READ, ALLOW))


@pytest.fixture
def _soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cluster has told counts for less than a minute."""
    monkeypatch.setattr(cluster_rights, "_KEPT_S", 0.3)


@pytest.mark.usefixtures("_soon_forgotten")
def test_rights_that_are_given_and_taken_away_count_on_an_open_connection(
    cluster_of_users: ClusterOfUsers, gateway: Gateway
) -> None:
    topic_id = uuid_of(cluster_of_users.source.log.describe(TOPIC).topic_id)

    def told(client: Asking) -> tuple[ErrorCode, ErrorCode, ErrorCode]:
        time.sleep(0.6)
        fetched = _of_partitions(share_fetch(client, GROUP, topic_id))
        return metadata(client, TOPIC)[TOPIC], heartbeat(client, GROUP, TOPIC), fetched

    none = ErrorCode.none
    with asking_as(gateway.address, BOB) as client:
        assert told(client) == (NO_TOPIC, NO_GROUP, NO_GROUP)
        with ruled(cluster_of_users, READS[0]):
            with ruled(cluster_of_users, READS[1]):
                assert told(client) == (none, none, none)
            assert told(client) == (NO_TOPIC, NO_TOPIC, NO_TOPIC)
        assert told(client) == (NO_TOPIC, NO_GROUP, NO_GROUP)


@pytest.mark.usefixtures("_soon_forgotten")
def test_a_share_consumer_whose_right_is_taken_away_gets_no_more(
    cluster_of_users: ClusterOfUsers, gateway: Gateway
) -> None:
    with ExitStack() as for_bob:
        with ruled(cluster_of_users, *READS):  # before there is a consumer, which asks at once
            time.sleep(0.6)
            found = for_bob.enter_context(consumer(gateway.address, topic=TOPIC, group=GROUP, security=security(BOB)))
            produce(cluster_of_users.bootstrap, TOPIC, range(10))
            work_off(found, 10, lambda _: AcknowledgeType.ACCEPT)
        time.sleep(0.6)
        produce(cluster_of_users.bootstrap, TOPIC, range(10))
        with pytest.raises((KafkaException, AssertionError), match="authorization failed"):
            polled(found)
    with consumer(gateway.address, topic=TOPIC, group=GROUP, security=security(ALICE)) as found:
        work_off(found, 10, lambda _: AcknowledgeType.ACCEPT)


def test_a_user_who_is_made_and_deleted_while_the_gateway_runs(
    cluster_of_users: ClusterOfUsers, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Deleted users stay on their connections, as at a broker: ACLs and the lifetime of sessions end them."""
    kind = ScramMechanism.SCRAM_SHA_256
    made = UserScramCredentialUpsertion("carol", ScramCredentialInfo(kind, 4_096), SECRET.encode())
    changes = cluster_of_users.admin.alter_user_scram_credentials
    changes([made])["carol"].result(30)
    time.sleep(0.5)
    with asking_as(gateway.address, "carol", "SCRAM-SHA-256") as client:
        assert heartbeat(client, GROUP, TOPIC) == NO_GROUP
        changes([UserScramCredentialDeletion("carol", kind)])["carol"].result(30)
        time.sleep(0.5)
        with pytest.raises(LoginRefusedError), asking_as(gateway.address, "carol", "SCRAM-SHA-256"):
            pass
        assert heartbeat(client, GROUP, TOPIC) == NO_GROUP
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# ------------------------------------------------------------------------------------ by several gateways

NODES = (node(1), node(2))


@pytest.mark.usefixtures("_soon_forgotten")
def test_a_gateway_tells_the_owner_of_a_group_what_a_client_may_read(
    cluster_of_users: ClusterOfUsers, tmp_path: Path
) -> None:
    """What is told anew is told on the same way: the session, and what the client holds, stay. A star in the name of a
    group stands for itself."""
    names = [(name, f"{name}*") for name in map(str, range(99))]
    other, group = next(two for two in names if {owner_of(name, NODES) for name in two} == {NODES[1]})
    topics = "first", "second"
    for topic in topics:
        create_topic(cluster_of_users.bootstrap, topic, 1)
        produce(cluster_of_users.bootstrap, topic, range(5))
    first, second = (uuid_of(cluster_of_users.source.log.describe(topic).topic_id) for topic in topics)
    whole, none = [(0, 4, 1)], ErrorCode.none
    with (
        gateway_of_users(cluster_of_users, tmp_path, node_id=1) as elsewhere,
        gateway_of_users(cluster_of_users, tmp_path, node_id=2) as owner,
        asking_as(owner, *ROOT) as root,
        asking_as(elsewhere, BOB) as bob,
    ):
        wait_for(lambda: coordinator(root, group)[0] == coordinator(root, other)[0] == 2)
        for one in (group, other):
            assert root.heartbeat(one, "one", *topics).error_code == none
        assert fetch(bob, group, first, 0).error_code == NO_GROUP
        with ruled(cluster_of_users, (GROUPS, group, READ, ALLOW), (TOPICS, "first", READ, ALLOW)):
            wait_for(lambda: acquired(fetch(bob, group, first, 0)) == whole)
            assert told_of(second, fetch(bob, group, second, 1)) == (NO_TOPIC, [])
            assert fetch(bob, other, first, 0).error_code == NO_GROUP
            with ruled(cluster_of_users, (TOPICS, "second", READ, ALLOW)):
                assert told_of(second, fetch(bob, group, second, 2)) == (none, whole)
                assert told_of(first, fetch(bob, group, first, 3, accepted=(0, 4))) == (none, [])
            time.sleep(0.5)
            assert told_of(second, fetch(bob, group, second, 4)) == (NO_TOPIC, [])
        time.sleep(0.5)
        assert fetch(bob, group, first, 5).error_code == NO_GROUP
        assert root.offsets(group)["first", 0][0] == 5


def told_of(topic_id: Any, answer: Any) -> tuple[ErrorCode, list[tuple[int, int, int]]]:
    """What a fetch tells of partition 0 of a topic: its errors, and what was acquired."""
    assert answer.error_code == ErrorCode.none
    ((partition,),) = (topic.partitions for topic in answer.responses if topic.topic_id == topic_id)
    acquired = [(one.first_offset, one.last_offset, one.delivery_count) for one in partition.acquired_records]
    return partition.error_code or ErrorCode(partition.acknowledge_error_code), acquired


def test_a_share_consumer_comes_to_any_of_several_gateways(cluster_of_users: ClusterOfUsers, tmp_path: Path) -> None:
    """The partitions of its topic are spread over both: half of its requests are passed on."""
    create_topic(cluster_of_users.bootstrap, "spread", 8)
    with (
        gateway_of_users(cluster_of_users, tmp_path, node_id=1) as one,
        gateway_of_users(cluster_of_users, tmp_path, node_id=2) as two,
        ruled(cluster_of_users, (GROUPS, OTHER, READ, ALLOW), (TOPICS, "spread", READ, ALLOW)),
        asking_as(one, *ROOT) as root,
    ):
        wait_for(lambda: {coordinator(root, str(number))[0] for number in range(20)} == {1, 2})
        for address in (one, two):
            produce(cluster_of_users.bootstrap, "spread", range(100))
            with consumer(address, topic="spread", group=OTHER, security=security(BOB)) as found:
                work_off(found, 100, lambda _: AcknowledgeType.ACCEPT)
