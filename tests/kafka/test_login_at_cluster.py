"""Clients of a gateway who log in at a real Kafka 4.2, with the rights that its ACLs give them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from share_spark.gateway import apis, cluster_rights
from share_spark.gateway.door import Door
from share_spark.gateway.topic_source import TopicSource
from share_spark.kafka.broker_connection import Address, LoginRefusedError, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_ids import uuid_of
from tests.kafka.test_broker import TIMEOUT_S, create_topic
from tests.kafka.test_gateway_on_kafka import produce
from tests.support.asking import Asking
from tests.support.broker import free_ports, running_broker
from tests.support.gateway_client import GatewayClient
from tests.support.share_consumers import consumer, serving, settings_of, work_off
from tests.unit.gateway.test_access import heartbeat, metadata, share_fetch
from tests.unit.gateway.test_login import handshake

SECRET, TOPIC, HIDDEN, GROUP, OTHER = "hunter2", "orders", "hidden", "billing", "audit"
NO_GROUP, NO_TOPIC = ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed
READ, DELETE, DESCRIBE = AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE
TOPICS, GROUPS = ResourceType.TOPIC, ResourceType.GROUP
ACCEPT = AcknowledgeType.ACCEPT
_MODULE = "org.apache.kafka.common.security"
SETTINGS = f"""
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},SASL_PLAINTEXT://127.0.0.1:SASL_PORT
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:SASL_PORT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:gateway
listener.name.sasl_plaintext.plain.sasl.jaas.config={_MODULE}.plain.PlainLoginModule required \
user_gateway="of the gateway" user_alice="{SECRET}" user_bob="{SECRET}";
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={_MODULE}.scram.ScramLoginModule required;
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config={_MODULE}.scram.ScramLoginModule required;
listener.name.sasl_plaintext.scram-sha-512.connections.max.reauth.ms=3000
"""


class Cluster:
    """``servers``: of the listener with SASL. ``admin``: of a user who may do everything."""

    def __init__(self, bootstrap: str, servers: str) -> None:
        self.bootstrap, self.servers = bootstrap, servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def allow(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
        """Returns once it is sent; brokers know it a moment later."""
        place = kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*"
        rule = AclBinding(*place, operation, AclPermissionType.ALLOW)
        self.admin.create_acls([rule])[rule].result(TIMEOUT_S)
        return rule

    def options(self) -> KafkaOptions:
        return KafkaOptions.parse(security("gateway", password="of the gateway") | {"bootstrap.servers": self.servers})


def security(user: str, mechanism: str = "PLAIN", password: str = SECRET) -> dict[str, str]:
    login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return {"security.protocol": "SASL_PLAINTEXT", **login}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    (port,) = free_ports(1)
    users = [f"--add-scram=SCRAM-SHA-{bits}=[name=alice,password={SECRET}]" for bits in (256, 512)]
    settings = SETTINGS.replace("SASL_PORT", str(port))
    with running_broker(more_settings=settings, format_options=users) as broker:
        found = Cluster(broker.bootstrap, f"127.0.0.1:{port}")
        for topic in (TOPIC, HIDDEN):
            create_topic(broker.bootstrap, topic, partitions=1)
        for kind, name in ((TOPICS, TOPIC), (GROUPS, GROUP)):
            found.allow("alice", kind, name, READ)
        yield found


@pytest.fixture
def address(cluster: Cluster, tmp_path: Path) -> Iterator[Address]:
    config, options = settings_of({}), cluster.options()
    door = Door.of(Address("127.0.0.1", 0), tls=None, cluster=options)
    with serving(TopicSource.of_cluster(options, config), str(tmp_path), config, door=door) as found:
        yield found


@contextmanager
def asking(address: Address, settings: Mapping[str, str]) -> Iterator[Asking]:
    login = BrokerLogin.of(KafkaOptions.parse({"bootstrap.servers": "b:1", **settings}))
    with connected(address, login, 30) as connection:
        yield Asking(connection)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_of_the_cluster_consumes(cluster: Cluster, address: Address, mechanism: str) -> None:
    produce(cluster.bootstrap, TOPIC, range(100))
    with consumer(address, topic=TOPIC, group=GROUP, security=security("alice", mechanism)) as found:
        work_off(found, 100, lambda _: ACCEPT)


@pytest.mark.parametrize(
    ("group", "topic", "reason"), [(OTHER, TOPIC, "Group authorization"), (GROUP, HIDDEN, "Topic authorization")]
)
def test_a_share_consumer_without_a_right_is_told(address: Address, group: str, topic: str, reason: str) -> None:
    told, until = "", time.monotonic() + 20
    with consumer(address, topic=topic, group=group, security=security("alice")) as found:
        while reason not in told and time.monotonic() < until:
            try:
                told += "".join(str(message.error()) for message in found.poll(timeout=0.5))
            except KafkaException as fault:
                told += str(fault)
    assert reason in told


def refusals(client: Asking, topic_id: Any) -> dict[str, int]:
    """The requests for the group OTHER, or in GROUP for the topic HIDDEN, that are refused, and with which error."""
    described = {"include_synonyms": False, "include_documentation": False}
    resource = {"resource_type": 32, "resource_name": OTHER, "configuration_keys": None}
    changed = {"resource_type": 32, "resource_name": OTHER, "configs": ()}
    wanted = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    offsets = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": HIDDEN, "partitions": wanted}]}
    limit = {"response_partition_limit": 9, "cursor": None}
    codes = {
        "metadata": metadata(client, HIDDEN)[HIDDEN],
        "topic": client.ask(apis.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": HIDDEN}], **limit).topics[0].error_code,
        "offset": client.ask(apis.LIST_OFFSETS, **offsets).topics[0].partitions[0].error_code,
        "coordinator": client.ask(apis.FIND_COORDINATOR, key_type=0, coordinator_keys=(OTHER,))
        .coordinators[0]
        .error_code,
        "group heartbeat": heartbeat(client, OTHER, TOPIC),
        "topic heartbeat": heartbeat(client, GROUP, HIDDEN),
        "fetch": share_fetch(client, OTHER, topic_id).error_code,
        "described": client.described(OTHER).error_code,
        "altered": client.alter((TOPIC, 0, 0), group_id=OTHER).error_code,
        "offsets deleted": client.delete_offsets(TOPIC, group_id=OTHER).error_code,
        "deleted": client.delete(OTHER),
        "configs": client.ask(apis.DESCRIBE_CONFIGS, resources=[resource], **described).results[0].error_code,
        "new configs": client.ask(apis.INCREMENTAL_ALTER_CONFIGS, resources=[changed], validate_only=True)
        .responses[0]
        .error_code,
    }
    return {name: int(code) for name, code in codes.items() if code in (NO_GROUP, NO_TOPIC)}


@pytest.mark.parametrize(
    "given",
    [
        (),
        ((GROUPS, OTHER, READ),),
        ((GROUPS, OTHER, DESCRIBE), (TOPICS, HIDDEN, DESCRIBE)),
        ((GROUPS, OTHER, DELETE), (TOPICS, HIDDEN, READ)),
        ((GROUPS, OTHER, AclOperation.DESCRIBE_CONFIGS),),
        ((GROUPS, OTHER, AclOperation.ALTER_CONFIGS), (TOPICS, HIDDEN, AclOperation.DELETE)),
    ],
)
def test_what_is_refused_is_what_kafka_refuses(cluster: Cluster, address: Address, given: tuple[Any, ...]) -> None:
    """The same requests at the broker itself, for each kind of right by itself."""
    standing = [(TOPICS, TOPIC, READ), (GROUPS, GROUP, READ)]
    rules = [cluster.allow("bob", *each) for each in (*standing, *given)]
    time.sleep(0.5)
    host, port = cluster.servers.split(":")
    (topic_id,) = [
        uuid_of(one.topic_id)
        for one in [TopicSource.of_cluster(cluster.options(), settings_of({})).log.describe(TOPIC)]
    ]
    try:
        with asking(Address(host, int(port)), security("bob")) as kafka:
            expected = refusals(kafka, topic_id)
        with asking(address, security("bob")) as client:
            assert refusals(client, topic_id) == expected
    finally:
        for rule in rules:
            cluster.admin.delete_acls([_filter(rule)])[_filter(rule)].result(TIMEOUT_S)


def _filter(rule: AclBinding) -> AclBindingFilter:
    place = rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host
    return AclBindingFilter(*place, rule.operation, rule.permission_type)


def test_a_right_that_is_taken_away_ends(cluster: Cluster, address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_rights, "_KEPT_S", 0.3)
    rules = [cluster.allow("bob", *each) for each in ((GROUPS, GROUP, READ), (TOPICS, TOPIC, READ))]
    time.sleep(0.5)
    with asking(address, security("bob")) as client:
        assert heartbeat(client, GROUP, TOPIC) == ErrorCode.none
        for rule in rules:
            cluster.admin.delete_acls([_filter(rule)])[_filter(rule)].result(TIMEOUT_S)
        time.sleep(1)
        assert heartbeat(client, GROUP, TOPIC) == NO_GROUP
        assert metadata(client, TOPIC) == {TOPIC: NO_TOPIC}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_in_the_words_of_the_cluster(
    address: Address, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = security("alice", mechanism, "very wrong")
    with pytest.raises(LoginRefusedError, match="Authentication failed") as fault, asking(address, wrong):
        pass
    assert caplog.records
    assert "very wrong" not in caplog.text + str(fault.value)


def test_mechanisms_are_those_of_the_cluster(address: Address) -> None:
    with GatewayClient(address) as client:
        answer = handshake(client, "GSSAPI")
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
        assert set(answer.mechanisms) == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
        assert client.is_closed()


def test_who_does_not_log_in_again_in_time_is_disconnected_and_who_does_stays(address: Address) -> None:
    said = security("alice", "SCRAM-SHA-512")
    again = BrokerLogin.of(KafkaOptions.parse({"bootstrap.servers": "b:1", **said}))
    assert again.begin is not None
    with asking(address, said) as stays, asking(address, said) as goes:
        time.sleep(2)
        stays.connection.log_in("SCRAM-SHA-512", again.begin())
        time.sleep(1.5)
        assert heartbeat(stays, GROUP, TOPIC) == ErrorCode.none
        with pytest.raises(ConnectionError):
            heartbeat(goes, GROUP, TOPIC)
