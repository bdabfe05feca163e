"""A real Kafka with users, and a gateway at which they log in.

Users log in by SASL, as ``ALICE`` also by SCRAM, and have the rights that ACLs give them; the plain listener is for who
may do everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from share_spark.gateway.door import Door
from share_spark.gateway.topic_source import TopicSource
from share_spark.kafka.broker_connection import Address, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from tests.support.asking import Asking
from tests.support.broker import Broker, free_ports, running_broker
from tests.support.share_consumers import serving, settings_of

SECRET, TOPIC, HIDDEN, GROUP, OTHER = "hunter2", "orders", "hidden", "billing", "audit"
ALICE, BOB = "alice", "bob"
"""``ALICE`` may read TOPIC, by GROUP; ``BOB`` what a test allows."""

ROOT = "gateway", "PLAIN", "of the gateway"
"""The user of the gateway itself, who may do everything: name, mechanism and password."""

NOBODY, OTHERS = "nobody", tuple(f"user-{number}" for number in range(32))
"""Without rights, until a test allows some to one of the others."""

_TIMEOUT_S = 30
_MODULE = "org.apache.kafka.common.security"
_USERS = " ".join(f'user_{name}="{SECRET}"' for name in (ALICE, BOB, NOBODY, *OTHERS))
_SETTINGS = f"""
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},SASL_PLAINTEXT://127.0.0.1:SASL_PORT
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:SASL_PORT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{ROOT[0]}
listener.name.sasl_plaintext.plain.sasl.jaas.config={_MODULE}.plain.PlainLoginModule required \
user_{ROOT[0]}="{ROOT[-1]}" {_USERS};
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={_MODULE}.scram.ScramLoginModule required;
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config={_MODULE}.scram.ScramLoginModule required;
listener.name.sasl_plaintext.scram-sha-512.connections.max.reauth.ms=3000
"""


class ClusterOfUsers:
    """``servers``: the listener with SASL. ``admin``: of a user who may do everything."""

    def __init__(self, broker: Broker, servers: Address) -> None:
        self.broker, self.bootstrap, self.servers = broker, broker.bootstrap, servers
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def allow(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
        """As ``rule``."""
        return self.rule(user, kind, name, operation, AclPermissionType.ALLOW)

    def rule(
        self, user: str, kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType
    ) -> AclBinding:
        """Returns once it is sent; brokers know it a moment later."""
        place = kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*"
        made = AclBinding(*place, operation, permission)
        self.admin.create_acls([made])[made].result(_TIMEOUT_S)
        return made

    def take_back(self, rules: Sequence[AclBinding]) -> None:
        for rule in rules:
            place = rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host
            same = AclBindingFilter(*place, rule.operation, rule.permission_type)
            self.admin.delete_acls([same])[same].result(_TIMEOUT_S)

    def options(self, servers: Address | None = None) -> KafkaOptions:
        """Those of the gateway. ``servers``: another way to the listener with SASL."""
        return KafkaOptions.parse(security(*ROOT) | {"bootstrap.servers": str(servers or self.servers)})

    @property
    def source(self) -> TopicSource:
        return TopicSource.of_cluster(self.options(), settings_of({}))


@contextmanager
def cluster_of_users() -> Iterator[ClusterOfUsers]:
    (port,) = free_ports(1)
    users = [f"--add-scram=SCRAM-SHA-{bits}=[name={ALICE},password={SECRET}]" for bits in (256, 512)]
    settings = _SETTINGS.replace("SASL_PORT", str(port))
    with running_broker(more_settings=settings, format_options=users) as broker:
        found = ClusterOfUsers(broker, Address("127.0.0.1", port))
        for made in found.admin.create_topics([NewTopic(topic, 1, 1) for topic in (TOPIC, HIDDEN)]).values():
            made.result(_TIMEOUT_S)
        for kind, name in ((ResourceType.TOPIC, TOPIC), (ResourceType.GROUP, GROUP)):
            found.allow(ALICE, kind, name, AclOperation.READ)
        yield found


@contextmanager
def gateway_of_users(
    cluster: ClusterOfUsers, state: Path, logins: Address | None = None, *, node_id: int = 1
) -> Iterator[Address]:
    """A gateway with its logins at the cluster. ``logins``: another way there."""
    door = Door.of(Address("127.0.0.1", 0), tls=None, cluster=cluster.options(logins))
    with serving(cluster.source, str(state), settings_of({}), door=door, node_id=node_id) as address:
        yield address


def security(user: str, mechanism: str = "PLAIN", password: str = SECRET) -> dict[str, str]:
    login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return {"security.protocol": "SASL_PLAINTEXT", **login}


def login_of(settings: Mapping[str, str]) -> BrokerLogin:
    return BrokerLogin.of(KafkaOptions.parse({"bootstrap.servers": "b:1", **settings}))


@contextmanager
def asking_as(address: Address, user: str, mechanism: str = "PLAIN", password: str = SECRET) -> Iterator[Asking]:
    with connected(address, login_of(security(user, mechanism, password)), 30) as connection:
        yield Asking(connection)
