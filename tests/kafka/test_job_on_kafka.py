"""The main job on a real Kafka, by its command line: a run with a dead-letter topic, and names that do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import Ack, Record, cli
from share_spark.delivery.record_sources import RecordSources
from share_spark.engine.ports import OffsetSpan
from tests.kafka.test_kafka_topic_log import KafkaLab
from tests.support.topic_log_cases import Sent, fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rejects_seven(record: Record) -> Ack:
    if record.value == b"7" and record.delivery_count == 1:
        raise ValueError("not yet")
    return Ack.reject("seven") if record.value == b"7" else Ack.ACCEPT


def order(broker: str, state: Path, topic: str, *more: str) -> list[str]:
    what = ["--group", "billing", "--topic", topic, "--handler", f"{__name__}:rejects_seven", "--state", str(state)]
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


@pytest.mark.parametrize("missing", ["topic", "dead"])
def test_a_topic_that_does_not_exist(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    there, gone = fresh_name(), fresh_name("no-such")
    KafkaLab(broker).create(there, 1)
    names = (gone, there) if missing == "topic" else (there, gone)
    assert cli.main(order(broker, tmp_path / "state", names[0], "--dead-letter", names[1])) == cli.BAD_INPUT
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
