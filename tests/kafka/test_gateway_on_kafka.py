"""librdkafka's share consumer on topics of a real Kafka, whose own share groups nobody uses: the group is ours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from share_spark import ShareGroupAdmin, cli
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.gateway.topic_source import TopicSource
from share_spark.kafka import fetch
from share_spark.kafka.batch_reader import KafkaBatchReader
from share_spark.kafka.broker_connection import Address, known_versions
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.open_connections import OpenConnections
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model import ids
from share_spark.model.errors import TopicError, TopicUnreachableError
from tests.kafka.test_broker import TIMEOUT_S, create_topic
from tests.kafka.test_kafka_topic_log import wait_until
from tests.support.broker import free_ports, running_broker, started_again, stop
from tests.support.share_consumers import GROUP, consumer, polled, refuse_errors, serving, settings_of, work_off
from tests.support.topic_log_cases import fresh_name

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def topic() -> str:
    return fresh_name("shared")


@contextmanager
def gateway(broker: str, state: Path, **settings: object) -> Iterator[Address]:
    config = settings_of(settings)
    source = TopicSource.of_cluster(KafkaOptions.parse({"bootstrap.servers": broker}), config)
    with serving(source, str(state), config) as address:
        yield address


def produce(broker: str, topic: str, values: range, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker, **{key.replace("_", "."): one for key, one in settings.items()}})
    for value in values:
        producer.produce(topic, b"%d" % value)
    assert producer.flush(TIMEOUT_S) == 0


def finished(found: ShareConsumer, records: int, seconds: float = 30.0) -> list[int]:
    """The values of so many records, in the order of their delivery; all are accepted."""
    values: list[int] = []
    until = time.monotonic() + seconds
    while len(values) < records and time.monotonic() < until:
        messages = polled(found, max(0.0, until - time.monotonic()))
        for message in messages:
            found.acknowledge(message, ACCEPT)
        values += [int(message.value() or b"") for message in messages]
        refuse_errors(found.commit_sync())
    return values


def test_records_of_several_partitions_are_accepted_released_and_rejected(
    broker: str, tmp_path: Path, topic: str
) -> None:
    create_topic(broker, topic, partitions=3)
    produce(broker, topic, range(3_000))
    seen: Counter[int] = Counter()

    def answer(message: Message) -> AcknowledgeType:
        value = int(message.value() or b"")
        seen[value] += 1
        if value == 711:
            return REJECT
        return RELEASE if value % 100 == 0 and seen[value] == 1 else ACCEPT

    with gateway(broker, tmp_path) as address, consumer(address, topic=topic) as found:
        said = work_off(found, 3_000, answer)
        produce(broker, topic, range(3_000, 3_100))
        assert sorted(finished(found, 100)) == [*range(3_000, 3_100)]
    assert {value for value, answered in said if answered == RELEASE} == {*range(0, 3_000, 100)}
    assert {value for value, answered in said if answered == REJECT} == {711}
    assert {value for value, answered in said if answered == ACCEPT} == {*range(3_000)} - {711}
    assert max(said.values()) == 1


def test_a_rejected_record_of_a_kafka_topic_is_a_dead_letter(broker: str, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    producer = Producer({"bootstrap.servers": broker})
    for value in range(200):
        producer.produce(topic, b"%d" % value, key=b"key", headers=[("trace", b"7")] if value == 47 else None)
    assert producer.flush(TIMEOUT_S) == 0
    config, letters = settings_of({}), str(tmp_path / "letters")
    source = TopicSource.of_cluster(KafkaOptions.parse({"bootstrap.servers": broker}), config)
    with (
        serving(source, str(tmp_path / "state"), config, dead_letters=letters) as address,
        consumer(address, topic=topic) as found,
    ):
        work_off(found, 200, lambda message: REJECT if message.value() in (b"47", b"48") else ACCEPT)
        columns = ["group_id", "topic", "key", "value", "headers", "delivery_count", "reason"]
        wait_until(lambda: DeltaTable(letters).to_pyarrow_table().num_rows == 2)
    rows = DeltaTable(letters).to_pyarrow_table(columns=columns).sort_by("value").to_pylist()
    expected = {"group_id": GROUP, "topic": topic, "key": b"key", "delivery_count": 1, "reason": "rejected"}
    headers = [{"key": "trace", "value": b"7"}]
    assert rows == [expected | {"value": b"47", "headers": headers}, expected | {"value": b"48", "headers": None}]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_come_through_as_they_are(broker: str, tmp_path: Path, topic: str, compression: str) -> None:
    create_topic(broker, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker, "compression.type": compression, "linger.ms": 50})
    headers = [("trace", b"\x00\xff"), ("none", None), ("trace", b"again")]
    for number in range(500):
        key = None if number % 2 else b"key %d" % number
        producer.produce(topic, b"value " * 20, key, timestamp=1_000_000 + number, headers=headers)
    producer.produce(topic, None, b"tombstone", timestamp=7)
    assert producer.flush(TIMEOUT_S) == 0
    found: list[Message] = []
    with gateway(broker, tmp_path) as address, consumer(address, topic=topic) as client:
        while len(found) < 501:
            messages = polled(client)
            assert messages, f"{len(found)} records have come"
            found += messages
            for message in messages:
                client.acknowledge(message, ACCEPT)
    assert [message.offset() for message in found] == [*range(501)]
    assert [message.key() for message in found[:3]] == [b"key 0", None, b"key 2"]
    assert {message.value() for message in found[:-1]} == {b"value " * 20}
    assert all(message.headers() == headers for message in found[:-1])
    assert [message.timestamp()[1] for message in found] == [*range(1_000_000, 1_000_500), 7]
    assert (found[-1].key(), found[-1].value()) == (b"tombstone", None)


def transact(broker: str, topic: str, values: range, *, commits: bool) -> None:
    producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid4().hex, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, b"%d" % value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    (producer.commit_transaction if commits else producer.abort_transaction)(TIMEOUT_S)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_records_of_transactions_by_the_isolation_level(broker: str, tmp_path: Path, topic: str, level: str) -> None:
    create_topic(broker, topic, partitions=1)
    produce(broker, topic, range(10))
    transact(broker, topic, range(10, 20), commits=False)
    transact(broker, topic, range(20, 30), commits=True)
    produce(broker, topic, range(30, 40))
    transact(broker, topic, range(40, 50), commits=False)
    wanted = [*range(10), *range(20, 40)] if level == "read_committed" else [*range(50)]
    with gateway(broker, tmp_path, share__isolation__level=level) as address, consumer(address, topic=topic) as found:
        assert finished(found, len(wanted)) == wanted
        assert polled(found, 1) == []
        transact(broker, topic, range(50, 60), commits=True)
        assert finished(found, 10) == [*range(50, 60)]
        # Of 60 records and 4 marks; a fetch comes upon the last mark.
        wait_until(lambda: polled(found, 0.1) == [] and start_offset(tmp_path) == 64)


def start_offset(state: Path) -> int:
    (row,) = ShareGroupAdmin(str(state)).describe_offsets(GROUP)
    return row.start_offset


def test_records_of_an_open_transaction_come_once_it_is_committed(broker: str, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid4().hex, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"0", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    produce(broker, topic, range(1, 5))
    settings = {"share__isolation__level": "read_committed"}
    with gateway(broker, tmp_path, **settings) as address, consumer(address, topic=topic) as found:
        assert polled(found, 2) == []
        producer.commit_transaction(TIMEOUT_S)
        assert finished(found, 5) == [*range(5)]


def test_a_client_goes_on_at_the_start_of_a_log_that_has_moved(broker: str, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=1)
    produce(broker, topic, range(200), linger_ms=0, batch_num_messages=10)
    with gateway(broker, tmp_path) as address, consumer(address, topic=topic) as found:
        first = polled(found)
        assert first[0].offset() == 0
        trim(broker, topic, 150)
        for message in first:
            found.acknowledge(message, RELEASE)
        found.commit_sync()
        rest = finished(found, 50)
    assert rest[-50:] == [*range(150, 200)]
    assert not set(rest[:-50]) & set(range(150, 200))


def test_a_client_that_waits_at_the_end_of_a_log_that_is_emptied_gets_what_comes(
    broker: str, tmp_path: Path, topic: str
) -> None:
    create_topic(broker, topic, partitions=1)
    produce(broker, topic, range(20))
    settings = {"share__auto__offset__reset": "latest"}
    with gateway(broker, tmp_path, **settings) as address, consumer(address, topic=topic) as found:
        assert polled(found, 2) == []
        trim(broker, topic, 20)
        produce(broker, topic, range(20, 30))
        assert finished(found, 10) == [*range(20, 30)]


def trim(broker: str, topic: str, offset: int) -> None:
    """Deletes the records below."""
    admin = AdminClient({"bootstrap.servers": broker})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(TIMEOUT_S)


def reader_of(broker: str) -> KafkaBatchReader:
    return KafkaBatchReader(KafkaOptions.parse({"bootstrap.servers": broker}), TIMEOUT_S * 1_000)


@pytest.fixture
def batches_of_ten(broker: str, topic: str) -> ids.TopicPartition:
    """Five of them."""
    create_topic(broker, topic, partitions=1)
    for first in range(0, 50, 10):
        produce(broker, topic, range(first, first + 10), linger_ms=5_000, batch_num_messages=10)
    return ids.TopicPartition(topic, 0)


@pytest.mark.parametrize("version", ["by id", "by name"])
def test_a_read_begins_with_the_batch_that_holds_the_offset_and_ends_at_the_limit(
    broker: str, batches_of_ten: ids.TopicPartition, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == "by name":
        monkeypatch.setattr(fetch, "_BY_ID", -1)  # as a broker before 3.1, which does not know that version
    reader = reader_of(broker)
    found = reader.read(batches_of_ten, 17, 1 << 20)
    assert [(one.base_offset, one.last_offset) for one in found] == [(10, 19), (20, 29), (30, 39), (40, 49)]
    size = len(found[0].content)
    for most_bytes, batches in ((1, 1), (size - 1, 1), (2 * size, 2), (2 * size + 60, 2)):
        assert reader.read(batches_of_ten, 17, most_bytes) == found[:batches]
    assert reader.read(batches_of_ten, 50, 1 << 20) == ()
    assert reader.read(batches_of_ten, 51, 1 << 20) == ()
    trim(broker, batches_of_ten.topic, 25)
    assert reader.read(batches_of_ten, 17, 1 << 20) == ()
    assert reader.read(batches_of_ten, 25, 1 << 20) == found[1:]


def test_a_leader_that_has_moved_is_looked_up_again(broker: str, batches_of_ten: ids.TopicPartition) -> None:
    reader = reader_of(broker)
    found = reader.read(batches_of_ten, 0, 1 << 20)
    leader = reader._leaders[batches_of_ten]
    for outdated in (
        leader._replace(broker=Address("127.0.0.1", free_ports(1)[0])),
        leader._replace(topic_id=UUID(int=4711)),
    ):
        reader._leaders[batches_of_ten] = outdated
        assert reader.read(batches_of_ten, 0, 1 << 20) == found
        assert reader._leaders[batches_of_ten] == leader


def test_connections_are_kept_and_after_an_error_none_is(broker: str) -> None:
    host, port = broker.split(":")
    address, connections = Address(host, int(port)), OpenConnections(BrokerLogin(), TIMEOUT_S)
    with connections.to(address) as one, connections.to(address) as other:
        assert one.broker is not other.broker
    with connections.to(address) as again:
        assert again in (one, other)
        assert known_versions(again.broker) == again.versions
    with pytest.raises(ValueError, match="the answer is cut"), connections.to(address):
        raise ValueError("the answer is cut")
    assert [each.broker.socket.fileno() for each in (one, other)] == [-1, -1]
    with connections.to(address) as new:
        assert known_versions(new.broker) == new.versions
    connections.close()
    assert new.broker.socket.fileno() == -1


def test_what_is_not_there_is_one_line(broker: str, topic: str) -> None:
    with pytest.raises(TopicError, match="does not exist"):
        reader_of(broker).read(ids.TopicPartition(topic, 0), 0, 1 << 20)
    create_topic(broker, topic, partitions=1)
    with pytest.raises(TopicUnreachableError, match=f"{topic}-1 has no leader"):
        reader_of(broker).read(ids.TopicPartition(topic, 1), 0, 1 << 20)


def test_a_client_goes_on_after_the_broker_was_stopped_and_started_again(tmp_path: Path) -> None:
    with running_broker() as broker:
        create_topic(broker.bootstrap, "orders", partitions=2)
        produce(broker.bootstrap, "orders", range(100))
        reader = reader_of(broker.bootstrap)
        settings = {"request__timeout__ms": 1_000}
        with gateway(broker.bootstrap, tmp_path, **settings) as address, consumer(address, topic="orders") as found:
            values = finished(found, 100)
            stop(broker.process)
            assert polled(found, 3) == []
            with pytest.raises(TopicUnreachableError):
                reader.read(ids.TopicPartition("orders", 0), 0, 1 << 20)
            with started_again(broker):
                assert reader.read(ids.TopicPartition("orders", 0), 0, 1 << 20)
                produce(broker.bootstrap, "orders", range(100, 200))
                values += finished(found, 100)
                assert polled(found, 1) == []
    assert sorted(values) == [*range(200)]


def test_a_topic_that_is_deleted_and_created_again_stops_no_other(broker: str, tmp_path: Path, topic: str) -> None:
    other, admin = f"{topic}-other", AdminClient({"bootstrap.servers": broker})
    for name, values in ((topic, range(10)), (other, range(10, 20))):
        create_topic(broker, name, partitions=1)
        produce(broker, name, values)
    with gateway(broker, tmp_path) as address, consumer(address, topic=topic) as found:
        found.subscribe([topic, other])
        assert sorted(finished(found, 20)) == [*range(20)]
        admin.delete_topics([other])[other].result(TIMEOUT_S)
        produce(broker, topic, range(20, 30))
        assert finished(found, 10) == [*range(20, 30)]
        wait_until(lambda: other not in admin.list_topics(timeout=TIMEOUT_S).topics)
        create_topic(broker, other, partitions=1)
        produce(broker, other, range(30, 40))
        assert finished(found, 10) == [*range(30, 40)]


def test_all_topics_are_described_at_once_without_the_clusters_own(broker: str, topic: str) -> None:
    for number in range(3):
        create_topic(broker, f"{topic}-{number}", partitions=number + 1)
    catalog = TopicCatalog(KafkaTopicLog(KafkaOptions.parse({"bootstrap.servers": broker})))
    found = catalog.all()
    assert [found[f"{topic}-{number}"].partitions for number in range(3)] == [1, 2, 3]
    assert not [name for name in found if name.startswith("__")]
    assert found == catalog.of(found)
    ids_of = {found[name].topic_id: name for name in found}
    assert TopicCatalog(catalog.log).by_id(ids_of) == ids_of


def test_the_command_serves_a_cluster(broker: str, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=1)
    produce(broker, topic, range(10))
    settings = tmp_path / "job.toml"
    settings.write_text(f'[job]\nbootstrap-server = "{broker}"\nstarting = "earliest"\n')
    command = [sys.executable, "-m", "share_spark.cli", "gateway", "--state", str(tmp_path / "state")]
    command += ["--config", str(settings), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ExitStack() as if_it_fails:
        if_it_fails.callback(process.kill)
        assert process.stdout is not None
        said = re.search(r"connect to 127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert said is not None
        with consumer(Address("127.0.0.1", int(said[1])), topic=topic) as found:
            assert finished(found, 10) == [*range(10)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_bad_places_are_one_line_and_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    oauth = {f"sasl.oauthbearer.{name}": "x" for name in ("client.id", "client.secret", "token.endpoint.url")}
    oauth |= {"sasl.mechanism": "OAUTHBEARER", "security.protocol": "SASL_SSL"}
    for given, told in (
        ([], "choose where the topics are: --bootstrap-server or --topic-table"),
        (["--bootstrap-server", nobody, "--topic-table", "t"], "choose where the topics are"),
        (["--bootstrap-server", nobody, "--option", "request.timeout.ms=1000"], f"Kafka at {nobody} gave no answer"),
        (
            ["--bootstrap-server", nobody, *(f"--kafka-option={key}={value}" for key, value in oauth.items())],
            "our own connections to Kafka",
        ),
    ):
        command = ["gateway", "--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0", *given]
        assert cli.main(command) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
    assert not (tmp_path / "state").exists()
