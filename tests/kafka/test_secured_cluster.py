"""The share groups of a real Kafka 4.2 behind TLS and SASL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer

from share_spark.cli import main
from share_spark.kafka.batch_reader import KafkaBatchReader
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.share_groups import ClusterShareGroups
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from tests.kafka.test_broker import TIMEOUT_S, create_topic
from tests.support.broker import free_ports, running_broker
from tests.support.certificates import Authority

PASSWORD = "hunter2"

SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},PROTOCOLS
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROTOCOLS
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location=KEYSTORE
ssl.truststore.type=PEM
ssl.truststore.location=AUTHORITY
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
"""
LOGIN = (
    "listener.name.{name}.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_me="{password}";\n'
    "listener.name.{name}.scram-sha-256.sasl.jaas.config="
    "org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
    "listener.name.{name}.scram-sha-512.sasl.jaas.config="
    "org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
)
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Secured:
    """``servers`` by protocol."""

    servers: dict[str, str]
    authority: Authority

    def options(self, protocol: str, mechanism: str = "", password: str = PASSWORD) -> dict[str, str]:
        found = {"bootstrap.servers": self.servers[protocol], "security.protocol": protocol}
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.authority.ca)
        if protocol == "SSL":
            certificate, key = self.authority.certificate("us")
            found |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
        if mechanism:
            found |= {"sasl.mechanism": mechanism, "sasl.username": "me", "sasl.password": password}
        return found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """With a share group that has a member."""
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory)
    certificate, key = authority.certificate("localhost")
    store = directory / "keystore.pem"
    store.write_text(key.read_text() + certificate.read_text())
    servers = {name: f"localhost:{port}" for name, port in zip(PROTOCOLS, free_ports(3), strict=True)}
    settings = SETTINGS.replace("PROTOCOLS", ",".join(f"{name}://{place}" for name, place in servers.items()))
    settings = settings.replace("KEYSTORE", str(store)).replace("AUTHORITY", str(authority.ca))
    settings += "".join(LOGIN.format(name=name, password=PASSWORD) for name in ("sasl_plaintext", "sasl_ssl"))
    users = [f'SCRAM-SHA-{bits}=[name=me,password="{PASSWORD}"]' for bits in (256, 512)]
    with running_broker(more_settings=settings, format_options=[f"--add-scram={user}" for user in users]) as broker:
        create_topic(broker.bootstrap, "watched", partitions=1)
        consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "watchers"})
        consumer.subscribe(["watched"])
        consumer.poll(1.0)
        try:
            yield Secured(servers, authority)
        finally:
            consumer.close()


def groups_seen(options: dict[str, str]) -> list[str]:
    found = ClusterShareGroups(KafkaOptions.parse(options), TIMEOUT_S * 1_000).look()
    return [f"{one.group_id}: {len(one.members)}" for one in found.groups]


WAYS = [("SSL", "")]
WAYS += [(protocol, name) for protocol in PROTOCOLS[1:] for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_groups_are_seen(secured: Secured, protocol: str, mechanism: str) -> None:
    assert groups_seen(secured.options(protocol, mechanism)) == ["watchers: 1"]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_record_batches_are_read(secured: Secured, protocol: str, mechanism: str) -> None:
    options = KafkaOptions.parse(secured.options(protocol, mechanism))
    producer = Producer(options.librdkafka())
    producer.produce("watched", b"a value", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    first, *_ = KafkaBatchReader(options, TIMEOUT_S * 1_000).read(TopicPartition("watched", 0), 0, 1 << 20)
    assert (first.base_offset, b"a value" in first.content) == (0, True)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_one_line(secured: Secured, mechanism: str) -> None:
    """By our own connection, as librdkafka would be refused before it."""
    options = secured.options("SASL_SSL", mechanism, password="very wrong")
    groups = ClusterShareGroups(KafkaOptions.parse(options), TIMEOUT_S * 1_000)
    host, port = secured.servers["SASL_SSL"].split(":")
    with pytest.raises(TopicUnreachableError, match="Authentication failed") as fault:
        groups._groups(Address(host, int(port)))
    assert "very wrong" not in str(fault.value)


def test_a_login_that_is_refused_is_no_outage(secured: Secured) -> None:
    """An engine does not ride it out."""
    options = KafkaOptions.parse(secured.options("SASL_SSL", "PLAIN", password="very wrong"))
    with pytest.raises(TopicError, match="Authentication failed") as fault:
        KafkaTopicLog(options, request_timeout_ms=5_000).describe("any")
    assert not isinstance(fault.value, TopicUnreachableError)


def test_a_report_takes_the_logins_from_a_file(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a command line everybody on the machine could read them."""
    options = secured.options("SASL_SSL", "SCRAM-SHA-512")
    file, page = tmp_path / "job.toml", tmp_path / "cluster.html"
    file.write_text("[kafka]\n" + "".join(f"\"{name}\" = '{value}'\n" for name, value in options.items()))
    assert main(["report", "--config", str(file), "--html", str(page)]) == 0, capsys.readouterr().err
    assert "watchers" in page.read_text()
    assert PASSWORD not in page.read_text() + capsys.readouterr().out
