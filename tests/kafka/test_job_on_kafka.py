"""The main job on a real Kafka, by its command line: a run with a dead-letter topic, runs whose output goes to a topic,
and names that do not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import Ack, EmbeddedTopicLog, Message, Record, cli
from share_spark.delivery.record_sources import RecordSources
from share_spark.engine.ports import OffsetSpan
from tests.kafka.test_kafka_topic_log import KafkaLab
from tests.kafka.test_output_to_kafka import headers as headers_of
from tests.kafka.test_output_to_kafka import read
from tests.support.topic_log_cases import Sent, fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rejects_seven(record: Record) -> Ack:
    if record.value == b"7" and record.delivery_count == 1:
        raise ValueError("not yet")
    return Ack.reject("seven") if record.value == b"7" else Ack.ACCEPT


def bill(record: Record) -> tuple[Ack, str]:
    return Ack.ACCEPT, f"bill {(record.value or b'').decode()}"


def order(broker: str, state: Path, topic: str, *more: str, handler: str = "rejects_seven") -> list[str]:
    what = ["--group", "billing", "--topic", topic, "--handler", f"{__name__}:{handler}", "--state", str(state)]
    return ["run", "--bootstrap-server", broker, *what, "--available-now", "--starting", "earliest", *more]


def test_a_run_with_a_dead_letter_topic(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab, topic, dead = KafkaLab(broker), fresh_name(), fresh_name("dead")
    lab.create(topic, 2)
    lab.create(dead, 1)
    lab.put(topic, {p: [Sent(value=b"%d" % (2 * n + p)) for n in range(10)] for p in range(2)})
    assert cli.main(order(broker, tmp_path / "state", topic, "--dead-letter", dead)) == 0
    output = capsys.readouterr().out
    assert "accepted                19" in output
    assert "rejected                 1" in output
    (letter,) = lab.log.read(spark, [OffsetSpan(dead, 0, 0, 0)], 1).collect()
    headers = {key: bytes(value).decode() for key, value in letter.headers if key.startswith("__dlq.")}
    assert bytes(letter.value) == b"7"
    assert headers["__dlq.errors.message"] == "seven"
    assert headers["__dlq.errors.delivery.count"] == "2"


def test_a_run_with_output_to_a_topic(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    lab, topic, bills = KafkaLab(broker), fresh_name(), fresh_name("bills")
    lab.create(topic, 2)
    lab.create(bills, 2)
    lab.put(topic, {p: [Sent(value=b"%d" % (2 * n + p)) for n in range(10)] for p in range(2)})
    assert cli.main(order(broker, tmp_path / "state", topic, "--to-kafka", bills, handler="bill")) == 0
    found = {message.value(): headers_of(message) for message in read(broker, bills)}
    assert found.keys() == {b"bill %d" % n for n in range(20)}
    told = found[b"bill 7"]
    assert (told["share_spark.topic"], told["share_spark.partition"], told["share_spark.offset"]) == (topic, "1", "3")


FILE = """
[job]
group = "billing"
topic = ["orders"]
handler = "typed:bill"
value-from = "typed:pounds"
topic-table = "./topics"
state = "./state"
to-kafka = "{bills}"
output-bootstrap-server = "{broker}"
starting = "earliest"
available-now = true
[output_kafka]
client.id = "bills"
"""

TYPED = """
from share_spark import Ack

def pounds(value: bytes) -> int:
    return int(value)

def bill(price: int):
    return Ack.ACCEPT, {"key": "ann", "value": f"{price:.2f}"}
"""


@pytest.mark.slow
def test_a_file_with_a_decoder_and_output_to_the_topic_of_a_cluster(broker: str, tmp_path: Path) -> None:
    """A process of its own; topics in a table, as they have no cluster. One value has no price."""
    bills = fresh_name("bills")
    KafkaLab(broker).create(bills, 1)
    topics = EmbeddedTopicLog(None, str(tmp_path / "topics"))
    topics.create_topic("orders", 1)
    topics.append("orders", [Message(value) for value in (b"9", b"oops", b"12")])
    (tmp_path / "job.toml").write_text(FILE.format(bills=bills, broker=broker))
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "share_spark.cli", "run", "--config", "job.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "rejected                 1" in done.stdout
    assert [(message.key(), message.value()) for message in read(broker, bills)] == [
        (b"ann", b"9.00"),
        (b"ann", b"12.00"),
    ]


@pytest.mark.parametrize("missing", ["topic", "dead", "output"])
def test_a_topic_that_does_not_exist(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    there, gone = fresh_name(), fresh_name("no-such")
    KafkaLab(broker).create(there, 1)
    topic = gone if missing == "topic" else there
    target = ["--to-kafka" if missing == "output" else "--dead-letter", there if missing == "topic" else gone]
    assert cli.main(order(broker, tmp_path / "state", topic, *target)) == cli.BAD_INPUT
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert gone in output
    assert list(tmp_path.iterdir()) == []


LAST_YEARS_US, LAST_YEARS_NS = 1_700_000_000_000_000, 1_700_000_000_000_000_000
"""Producers that take microseconds, or nanoseconds, for milliseconds."""


@pytest.mark.parametrize("reader", ["worker", "Spark"])
def test_records_of_any_year(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    lab, topic, dead = KafkaLab(broker), fresh_name(), fresh_name("dead")
    lab.create(topic, 1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    lab.create(dead, 1)
    times = [LAST_YEARS_US, 1_000, *([LAST_YEARS_NS] if reader == "worker" else [])]
    lab.put(topic, {0: [Sent(value=value, timestamp_ms=time) for time in times for value in (b"7", b"8")]})
    if reader == "Spark":
        monkeypatch.setattr(RecordSources, "_reader", lambda *_: None)
    assert cli.main(order(broker, tmp_path / "state", topic, "--dead-letter", dead)) == 0
    letters = lab.log.read(spark, [OffsetSpan(dead, 0, 0, len(times) - 1)], 1).collect()
    stamps = [dict(row.headers)["kafka_dlt-original-timestamp"] for row in letters]
    assert sorted(int.from_bytes(stamp) for stamp in stamps)[:2] == [1_000, LAST_YEARS_US]
    assert len(stamps) == len(times)
