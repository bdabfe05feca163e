"""The metrics of running groups, as a scraper gets them."""

from __future__ import annotations

import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from share_spark import Ack, EmbeddedTopicLog, Message, ShareGroup
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 6


@pytest.fixture
def topics(spark: SparkSession, tmp_path: Path) -> str:
    log = EmbeddedTopicLog(spark, str(tmp_path / "topics"))
    log.create_topic("orders", 2)
    log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in range(RECORDS)])
    return str(tmp_path / "topics")


def group(spark: SparkSession, tmp_path: Path, topics: str, name: str, port: int, **options: Any) -> ShareGroup:
    found = ShareGroup(name, spark=spark, state=str(tmp_path / "state")).table(topics).subscribe("orders")
    found = found.process(lambda record: Ack.ACCEPT if record.offset else Ack.REJECT)
    return found.options(**{"share.auto.offset.reset": "earliest", "metrics.port": port, **options})


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def scraped(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def labels(**named: str) -> frozenset[tuple[str, str]]:
    return frozenset(named.items())


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What the process traces."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return found


def test_two_groups_serve_their_own_metrics_until_they_end(
    spark: SparkSession, tmp_path: Path, topics: str, exporter: InMemorySpanExporter
) -> None:
    """And trace their micro-batches."""
    ports = dict(zip(("billing", "audit"), free_ports(2), strict=True))
    queries = {name: group(spark, tmp_path, topics, name, port).start() for name, port in ports.items()}
    for query in queries.values():
        query.processAllAvailable()
    for name, port in ports.items():
        found = scraped(port)
        mine = {"group": name, "topic": "orders"}
        acknowledged = "kafka_server_share_group_metrics_record_acknowledgement_total"
        assert found[acknowledged, labels(**mine, ack_type="Accept")] == RECORDS - 2
        assert found["share_spark_archived_records_total", labels(**mine, reason="rejected")] == 2
        assert [found["share_spark_lag_records", labels(**mine, partition=one)] for one in "01"] == [0, 0]
        assert found["share_spark_writer_epoch", labels(group=name)] == 1
        assert {dict(one).get("group") for _, one in found} == {name}
    for query in queries.values():
        query.stop()
    for port in ports.values():
        with pytest.raises(OSError, match="refused"):
            scraped(port)
    accepted = Counter[object]()
    for span in exporter.get_finished_spans():
        if span.attributes and "share_spark.accepted" in span.attributes:
            accepted[span.attributes["share_spark.group"]] += span.attributes["share_spark.accepted"]
    assert accepted == {"billing": RECORDS - 2, "audit": RECORDS - 2}


def test_a_port_that_is_taken_claims_nothing(spark: SparkSession, tmp_path: Path, topics: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            group(spark, tmp_path, topics, "billing", port).start()
    assert not (tmp_path / "state").exists()


def test_a_start_that_fails_frees_the_port(spark: SparkSession, tmp_path: Path, topics: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(Exception, match="does not exist"):
        group(spark, tmp_path, topics, "billing", port).subscribe("no-such-topic").start()
    socket.create_server(("127.0.0.1", port)).close()
