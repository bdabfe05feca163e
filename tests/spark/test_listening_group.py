"""A share group in a Spark query that clients of Kafka's protocol join, alone and beside a handler."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType

from share_spark import Ack, ShareGroup
from share_spark.kafka.broker_connection import Address
from share_spark.model.errors import ConfigError, EnvironmentFault, FencedError
from tests.kafka.test_broker import create_topic, produce
from tests.support.cluster import ROOT
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, polled, refuse_errors, work_off
from tests.support.topic_log_cases import fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark import Record
    from share_spark.api.query import ShareGroupQuery

OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OAUTH |= {f"sasl.oauthbearer.{name}": "x" for name in ("client.id", "client.secret", "token.endpoint.url")}

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


def share_group(spark: SparkSession, place: Place) -> ShareGroup:
    group = ShareGroup(GROUP, spark=spark, state=place.state).table(place.topics).subscribe(TOPIC)
    return group.option("share.auto.offset.reset", "earliest").listen_on("127.0.0.1:0")


def address_of(query: ShareGroupQuery) -> Address:
    assert query.listensOn is not None
    host, _, port = query.listensOn.rpartition(":")
    return Address(host, int(port))


def test_a_group_without_a_handler_is_for_clients(spark: SparkSession, tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 2_000)
    query = share_group(spark, place).start()
    with consumer(address_of(query)) as found:
        said = work_off(found, 2_000, lambda message: RELEASE if message.delivery_count() == 1 else ACCEPT)
    query.stop()
    assert query.exception() is None
    assert sum(said.values()) == 4_000
    rows = spark.read.format("delta").load(f"{place.state}/share_partition_state").collect()
    assert sorted((row.partition, row.start_offset, row.in_flight) for row in rows) == [(n, 500, []) for n in range(4)]


def test_a_handler_and_clients_have_the_records_of_a_group_between_them(spark: SparkSession, tmp_path: Path) -> None:
    place, sink = Place.below(tmp_path), str(tmp_path / "bills")
    place.produce(1, 200)

    def bill(record: Record) -> tuple[Ack, dict[str, int]]:
        return Ack.ACCEPT, {"value": int(record.value or b"")}

    group = share_group(spark, place).process(bill, output="value int").to_delta(sink)
    query = group.option("max.records.per.trigger", 20).start()
    values: list[int] = []
    with consumer(address_of(query)) as found:
        for first in range(201, 2_001, 200):
            place.produce(first, first + 199)
            messages = polled(found, seconds=5)
            for message in messages:
                found.acknowledge(message, ACCEPT)
            refuse_errors(found.commit_sync())
            values += [int(message.value() or b"") for message in messages]
    query.processAllAvailable()
    query.stop()
    billed = [row.value for row in spark.read.format("delta").load(sink).collect()]
    assert values
    assert billed
    assert set(billed) | set(values) == set(range(1, 2_001))
    assert len(billed) == len(set(billed))
    assert not set(billed) & set(values)


def test_a_query_that_is_replaced_refuses_its_clients_and_the_other_serves_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 100)
    first = share_group(spark, place).start()
    second = share_group(spark, place).option("checkpointLocation", str(tmp_path / "other")).start()
    with consumer(address_of(second)) as found:
        assert sum(work_off(found, 100, lambda _: ACCEPT).values()) == 100
    place.produce(101, 200)
    with consumer(address_of(first)) as late:
        assert polled(late, seconds=2) == []
        with pytest.raises(FencedError):
            first.awaitTermination(60)
    with consumer(address_of(second)) as found:
        assert sum(work_off(found, 100, lambda _: ACCEPT).values()) == 100
    second.stop()


@pytest.mark.slow
def test_the_job_lets_consumers_in(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 100)
    job = [sys.executable, str(ROOT / "jobs" / "share_gateway.py"), "--group", GROUP, "--topic", TOPIC]
    ways = ["--topic-table", place.topics, "--state", place.state, "--starting", "earliest", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*job, *ways], stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if "connect to " in line)
        host, _, port = told.strip().rpartition("connect to ")[2].rpartition(":")
        with consumer(Address(host, int(port))) as found:
            assert sum(work_off(found, 100, lambda _: ACCEPT).values()) == 100
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 0, rest


def test_bad_input_is_one_line_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    group = share_group(spark, place)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentFault, match=f"cannot listen on 127.0.0.1:{port}"):
            group.listen_on(f"127.0.0.1:{port}").start()
    with pytest.raises(ConfigError, match=r"our own connections to Kafka .* not with OAUTHBEARER"):
        group.kafka("127.0.0.1:1", **OAUTH).start()
    with pytest.raises(ConfigError, match="availableNow ends"):
        group.trigger(availableNow=True).start()
    with pytest.raises(ConfigError, match=r"delivery\.order cannot be kept"):
        group.ordered_by_key().start()
    with pytest.raises(ConfigError, match="is not an address"):
        group.listen_on("9092")
    with pytest.raises(ConfigError, match="login 'kerberos'"):
        group.listen_on("127.0.0.1:0", login="kerberos").start()
    with pytest.raises(ConfigError, match="choose one"):
        group.listen_on("127.0.0.1:0", login="cluster", users="users.toml").start()
    with pytest.raises(ConfigError, match="a table of topics has no cluster"):
        group.listen_on("127.0.0.1:0", login="cluster").start()
    with pytest.raises(ConfigError, match="there is no handler"):
        group.to_delta(str(tmp_path / "bills")).start()
    assert not Path(place.state).exists()


def test_topics_of_a_kafka_cluster_are_served_too(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    topic = fresh_name("served")
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, [b"%d" % number for number in range(500)])
    group = ShareGroup(GROUP, spark=spark, state=str(tmp_path)).kafka(broker).subscribe(topic)
    query = group.option("share.auto.offset.reset", "earliest").listen_on("127.0.0.1:0").start()
    with consumer(address_of(query), topic=topic) as found:
        said = work_off(found, 500, lambda message: RELEASE if message.delivery_count() == 1 else ACCEPT)
    query.stop()
    assert query.exception() is None
    assert said == {(number, int(answer)): 1 for number in range(500) for answer in (ACCEPT, RELEASE)}
