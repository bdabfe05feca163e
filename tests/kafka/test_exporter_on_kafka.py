"""The exporter beside a real broker: lags and ages, how little it asks for, the command as a process without a JVM."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from share_spark import cli
from share_spark.admin import location_metrics
from share_spark.admin.location_metrics import LocationMetrics
from share_spark.admin.share_group_admin import ShareGroupAdmin
from tests.support.group_details import run
from tests.support.heartbeats import VANISHED_MS, write_beat
from tests.support.state_logs import StateLog, snapshot

NO_JVM = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
PARTITIONS = 3
HOUR_MS = 3_600_000


@pytest.fixture
def topic(broker: str) -> str:
    """Ten records in each partition, the first of each an hour old, the next a minute less, and so on."""
    name = f"orders-{uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": broker})
    client.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(20)
    producer, now_ms = Producer({"bootstrap.servers": broker}), time.time_ns() // 1_000_000
    for offset in range(10):
        for partition in range(PARTITIONS):
            producer.produce(name, b"x", partition=partition, timestamp=now_ms - HOUR_MS + offset * 60_000)
    assert producer.flush(20) == 0
    return name


@pytest.fixture
def log(tmp_path: Path, topic: str, broker: str) -> StateLog:
    """Of a group whose engine has vanished; it is at offset 2, 4 and the end, and has finished one record beyond."""
    log = StateLog(tmp_path)
    log.claim()
    log.records(
        snapshot(2, run("Q", 2, 4), run("D", 5, 5), topic=topic),
        snapshot(4, topic=topic, partition=1),
        snapshot(10, topic=topic, partition=2),
    )
    write_beat(tmp_path, kafka=broker, silent_ms=VANISHED_MS)
    return log


def values(metrics: LocationMetrics, name: str) -> dict[str, float]:
    """By the last label of each."""
    samples = [one for family in metrics.collect() for one in family.samples if one.name == f"share_spark_group_{name}"]
    return {list(one.labels.values())[-1]: one.value for one in samples}


def test_lags_and_the_age_of_the_oldest_record(log: StateLog, topic: str) -> None:
    metrics = LocationMetrics(ShareGroupAdmin(log.location))
    metrics.read()
    assert values(metrics, "lag_records") == {"0": 7, "1": 6, "2": 0}
    assert values(metrics, "oldest_unfinished_seconds") == {topic: pytest.approx(HOUR_MS / 1_000 - 120, abs=60)}
    assert values(metrics, "read_failed") == {"state": 0, "topics": 0, "settings": 0}
    log.records(*(snapshot(10, topic=topic, partition=partition) for partition in range(PARTITIONS)))
    metrics.read()
    assert values(metrics, "oldest_unfinished_seconds") == {topic: 0}


def test_few_records_are_asked_for_and_none_twice(log: StateLog, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[int, int]] = []
    monkeypatch.setattr(location_metrics, "MOST_ASKED", 1)
    admin = ShareGroupAdmin(log.location)
    ends = type(admin.look().ends("billing"))
    times_at = ends.times_at

    def noted(of: object, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        asked.append(dict(offsets))
        found: Mapping[int, int] = times_at(of, topic, offsets)
        return found

    monkeypatch.setattr(ends, "times_at", noted)
    metrics = LocationMetrics(admin)
    for _ in range(4):
        metrics.read()
    assert asked == [{0: 2}, {1: 4}]
    log.records(snapshot(2, topic=topic), snapshot(6, topic=topic, partition=1))
    metrics.read()
    assert asked[2:] == [{1: 6}]


def test_a_broker_that_is_gone_takes_the_lag_and_nothing_else(log: StateLog, topic: str) -> None:
    write_beat(log.location, kafka="127.0.0.1:1")
    metrics = LocationMetrics(ShareGroupAdmin(log.location, request_timeout_ms=300))
    metrics.read()
    assert values(metrics, "lag_records") == values(metrics, "oldest_unfinished_seconds") == {}
    assert values(metrics, "read_failed") == {"state": 0, "topics": 1, "settings": 0}
    assert values(metrics, "engine_running") == {"billing": 1}


def test_the_command_serves_until_it_is_asked_to_end(log: StateLog, topic: str) -> None:
    command = [sys.executable, "-m", "share_spark.cli", "exporter", "--location", log.location, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=NO_JVM) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.fullmatch(r"share-spark: (http://127\.0\.0\.1:\d+/metrics), until Ctrl-C\n", said)
            assert found is not None
            with urllib.request.urlopen(found[1], timeout=30) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    lags = [one for family in families for one in family.samples if one.name == "share_spark_group_lag_records"]
    assert [(one.labels["group"], one.labels["topic"], one.value) for one in lags][:2] == [
        ("billing", topic, 7),
        ("billing", topic, 6),
    ]
    (end,) = [one for family in families for one in family.samples if one.name.endswith("end_timestamp_seconds")]
    assert end.labels == {"group": "billing", "end": "vanished"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no share-group state at"),
        (["--dead-letter", "/none"], "there is no dead-letter table at /none"),
        (["--host", "no.such.host.invalid", "--port", "9"], "--port: cannot listen on no.such.host.invalid:9"),
        (["--interval", "0"], "is not a number of seconds"),
    ],
)
def test_bad_input_is_one_line(
    log: StateLog, tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    location = log.location if arguments else str(tmp_path / "none")
    assert cli.main(["exporter", "--location", location, *arguments]) == cli.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
