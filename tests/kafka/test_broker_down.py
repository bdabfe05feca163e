"""Groups whose broker does not answer: what the state says is shown all the same, and the broker is named."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from share_spark import cli
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.kafka.broker_admin import EARLIEST, LATEST, BrokerAdmin
from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import TopicUnreachableError
from tests.kafka.test_kafka_topic_log import wait_until
from tests.support.broker import Broker, free_ports
from tests.support.group_details import run
from tests.support.heartbeats import VANISHED_MS, write_beat
from tests.support.state_logs import StateLog, snapshot
from tests.support.topic_log_cases import fresh_name

TOPICS = ("orders", "bills", "orders-late")
TIMEOUT_MS = "400"


@pytest.fixture
def stopped_broker(pausing_broker: Broker) -> str:
    """It accepts connections, and answers nothing."""
    os.kill(pausing_broker.process.pid, signal.SIGSTOP)
    return pausing_broker.bootstrap


@pytest.fixture(params=["closed port", "stopped process"])
def silent(request: pytest.FixtureRequest) -> str:
    if request.param == "stopped process":
        return str(request.getfixturevalue("stopped_broker"))
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
def state(tmp_path: Path, silent: str) -> str:
    """Of three groups with a topic each; their engines say that the topics are at ``silent``, and are gone."""
    for topic in TOPICS:
        log = StateLog(tmp_path, f"group of {topic}")
        log.claim()
        log.records(snapshot(5, run("Q", 5, 14), topic=topic, group_id=log.group_id))
        write_beat(tmp_path, log.group_id, kafka=silent, silent_ms=VANISHED_MS)
    return str(tmp_path)


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_the_rows_are_there_without_the_lag(
    state: str, silent: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["groups", "--location", state, "--describe", "--all-groups", "--timeout", TIMEOUT_MS, *more]
    assert cli.main(command) == cli.FAILED
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines() if line.startswith("group of ")]
    names = ["START-OFFSET", "LAG", *(["LAG-TIME"] if more else [])]
    assert [row[-7 if more else -2 :][: len(names)] for row in rows] == [["5", "-", "-"][: len(names)]] * 3
    lines = shown.err.splitlines()
    assert all(line.startswith(f"share-spark: the lag is not known: Kafka at {silent} gave no ans") for line in lines)
    assert len(lines) == len(set(lines)) > 0
    assert cli.main([*command, "--json"]) == cli.FAILED
    assert [one["lag"] for one in json.loads(capsys.readouterr().out)] == [None] * 3


def test_the_terminal_view_shows_what_is_known(state: str, silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["top", "--location", state, "--interval", "0.1", "--count", "1", "--timeout", TIMEOUT_MS]
    assert cli.main(command) == cli.FAILED
    shown = capsys.readouterr()
    assert [line.split()[-5:] for line in shown.out.splitlines()[1:-1]] == [["-", "0", "-", "10", "0"]] * 3
    assert f"the lag is not known: Kafka at {silent}" in shown.err


def test_a_cluster_that_is_down_is_asked_twice_at_most(
    state: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    look = ShareGroupAdmin(state, request_timeout_ms=int(TIMEOUT_MS)).look()
    ends = look.ends(f"group of {TOPICS[0]}").ends
    log_ends = type(ends).log_ends

    def noted(log: object, topic: str) -> object:
        asked.append(topic)
        return log_ends(log, topic)

    monkeypatch.setattr(type(ends), "log_ends", noted)
    assert all(look.known_offsets(f"group of {topic}").ends_fault for topic in TOPICS * 2)
    assert asked == list(TOPICS[:2])


def test_a_topic_that_is_gone_hides_no_other(tmp_path: Path, broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = AdminClient({"bootstrap.servers": broker})
    client.create_topics([NewTopic("there", 1, 1)])["there"].result(20)
    for topic in ("gone", "there"):
        log = StateLog(tmp_path, f"group of {topic}")
        log.claim()
        log.records(snapshot(0, topic=topic, group_id=log.group_id))
    admin = ShareGroupAdmin(str(tmp_path), KafkaOptions.parse({"bootstrap.servers": broker}))
    assert [row.lag for row in admin.describe_offsets("group of there")] == [0]
    command = ["groups", "--location", str(tmp_path), "--bootstrap-server", broker, "--describe", "--all-groups"]
    assert cli.main(command) == cli.FAILED
    shown = capsys.readouterr()
    lags = [line.split()[-1] for line in shown.out.splitlines() if line.startswith("group of ")]
    assert lags == ["-", "0"]
    assert shown.err == (f"share-spark: the lag is not known: topic 'gone' does not exist (Kafka at {broker})\n")


def is_stopped(process: int) -> bool:
    """Has the signal reached all threads?"""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def has_leader(client: AdminClient, topic: str) -> bool:
    """Can the topic be read? A broker says so a moment after it has made the topic."""
    partitions = client.list_topics(topic).topics[topic].partitions
    return bool(partitions) and partitions[0].leader >= 0


def answers(admin: BrokerAdmin, topic: str) -> bool:
    """Does the broker answer in time? The first request of a client may take longer."""
    try:
        return admin.offsets(topic, [0], [EARLIEST, LATEST], committed=False) == [{0: 0}, {0: 0}]
    except TopicUnreachableError:
        return False


@pytest.mark.parametrize("is_warm", [True, False])
def test_offsets_of_a_broker_that_pauses_are_no_offsets(pausing_broker: Broker, is_warm: bool) -> None:
    """librdkafka answers -1001 without an error, or "no leaders found"."""
    bootstrap, topic, process = pausing_broker.bootstrap, fresh_name(), pausing_broker.process.pid
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(topic, 1)])[topic].result()
    wait_until(lambda: has_leader(client, topic))
    admin = BrokerAdmin(KafkaOptions.parse({"bootstrap.servers": bootstrap}), int(TIMEOUT_MS))
    if is_warm:
        wait_until(lambda: answers(admin, topic))
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: is_stopped(process))
    for _ in range(3):
        with pytest.raises(TopicUnreachableError, match="gave no answer"):
            admin.offsets(topic, [0], [EARLIEST, LATEST], committed=False)
    os.kill(process, signal.SIGCONT)
    wait_until(lambda: answers(admin, topic))
