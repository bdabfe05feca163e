"""Clients of a gateway who log in at a real Kafka 4.2."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, KafkaException
from kio.schema.errors import ErrorCode

from share_spark import ShareGroup
from share_spark.kafka.broker_connection import Address, LoginRefusedError
from tests.kafka.test_gateway_on_kafka import produce
from tests.support.cluster_of_users import (
    ALICE,
    GROUP,
    HIDDEN,
    OTHER,
    TOPIC,
    ClusterOfUsers,
    asking_as,
    gateway_of_users,
    login_of,
    security,
)
from tests.support.gateway_client import GatewayClient
from tests.support.share_consumers import consumer, work_off
from tests.unit.gateway.test_access import heartbeat
from tests.unit.gateway.test_login import handshake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACCEPT = AcknowledgeType.ACCEPT


@pytest.fixture
def address(cluster_of_users: ClusterOfUsers, tmp_path: Path) -> Iterator[Address]:
    with gateway_of_users(cluster_of_users, tmp_path) as found:
        yield found


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_of_the_cluster_consumes(cluster_of_users: ClusterOfUsers, address: Address, mechanism: str) -> None:
    produce(cluster_of_users.bootstrap, TOPIC, range(100))
    with consumer(address, topic=TOPIC, group=GROUP, security=security(ALICE, mechanism)) as found:
        work_off(found, 100, lambda _: ACCEPT)


def test_a_spark_query_that_listens_lets_users_of_the_cluster_in(
    spark: SparkSession, cluster_of_users: ClusterOfUsers, tmp_path: Path
) -> None:
    produce(cluster_of_users.bootstrap, TOPIC, range(20))
    options = dict(cluster_of_users.options().values)
    group = ShareGroup(GROUP, spark=spark, state=str(tmp_path)).kafka(options.pop("bootstrap.servers"), **options)
    group = group.subscribe(TOPIC).option("share.auto.offset.reset", "earliest")
    query = group.listen_on("127.0.0.1:0", login="cluster").start()
    address = Address.parse(str(query.listensOn))
    with consumer(address, topic=TOPIC, group=GROUP, security=security(ALICE)) as found:
        work_off(found, 20, lambda _: ACCEPT)
    with pytest.raises(LoginRefusedError), asking_as(address, ALICE, password="wrong"):
        pass
    query.stop()
    assert query.exception() is None


@pytest.mark.parametrize(
    ("group", "topic", "reason"), [(OTHER, TOPIC, "Group authorization"), (GROUP, HIDDEN, "Topic authorization")]
)
def test_a_share_consumer_without_a_right_is_told(address: Address, group: str, topic: str, reason: str) -> None:
    told, until = "", time.monotonic() + 20
    with consumer(address, topic=topic, group=group, security=security(ALICE)) as found:
        while reason not in told and time.monotonic() < until:
            try:
                told += "".join(str(message.error()) for message in found.poll(timeout=0.5))
            except KafkaException as fault:
                told += str(fault)
    assert reason in told


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_in_the_words_of_the_cluster(
    address: Address, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = asking_as(address, ALICE, mechanism, "very wrong")
    with pytest.raises(LoginRefusedError, match="Authentication failed") as fault, wrong:
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
    said = ALICE, "SCRAM-SHA-512"
    again = login_of(security(*said))
    assert again.begin is not None
    with asking_as(address, *said) as stays, asking_as(address, *said) as goes:
        time.sleep(2)
        stays.connection.log_in("SCRAM-SHA-512", again.begin())
        time.sleep(1.5)
        assert heartbeat(stays, GROUP, TOPIC) == ErrorCode.none
        with pytest.raises(ConnectionError):
            heartbeat(goes, GROUP, TOPIC)
