"""Metrics: what micro-batches add up to, what a scrape gets, and that all who name a metric name one there is."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from random import Random

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from share_spark.engine.outage import Outage
from share_spark.metrics.definitions import METRICS, MetricKind
from share_spark.metrics.endpoint import GroupMetrics, MetricsServer
from share_spark.metrics.location_definitions import EXPORTER_METRICS, GROUP_METRICS
from share_spark.metrics.oldest import MOST_MARKS, Front, LogEndMarks, Mark
from share_spark.metrics.totals import BOUNDS_S, SecondsHistogram
from share_spark.model.errors import ConfigError
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import Loss
from tests.support.engine_world import ACCEPT, GROUP, REJECT, RELEASE, TOPIC, EngineLife, InMemoryGroup

ROOT = Path(__file__).parents[3]
KEY = SharePartitionKey(GROUP, "topic-id", 0)
NAMED = re.compile(r"\b(?:kafka_server|share_spark)_[a-z_]+\b")


class Watched:
    """A group whose engine is watched; record 0 is rejected, record 1 always released, the others are accepted."""

    def __init__(self, partitions: int = 1, late: Random | None = None) -> None:
        answers = {0: REJECT, 1: RELEASE}
        self.world = InMemoryGroup(
            partitions=partitions,
            late=late,
            handler=lambda _topic, _partition, offset, _count: answers.get(offset, ACCEPT),
            share__delivery__count__limit="2",
        )
        self.metrics = GroupMetrics(group_id=GROUP, clock=self.world.clock)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def engine(self) -> EngineLife:
        found = self.world.engine()
        self.metrics.look = found.engine.look
        return found

    def run(self, engine: EngineLife, times: int = 1) -> None:
        for _ in range(times):
            progress = engine.run()
            if not progress.idle:
                self.metrics.note(progress)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"group": GROUP, **labels})


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_counters_add_up_what_micro_batches_did(watched: Watched) -> None:
    watched.world.produce(5)
    watched.run(watched.engine(), 4)
    acknowledged = "kafka_server_share_group_metrics_record_acknowledgement_total"
    assert [watched.value(acknowledged, topic=TOPIC, ack_type=kind) for kind in ("Accept", "Release", "Reject")] == [
        3,
        2,
        1,
    ]
    assert watched.value("share_spark_acquired_records_total", topic=TOPIC) == 6
    assert watched.value("share_spark_redelivered_records_total", topic=TOPIC) == 1
    archived = "share_spark_archived_records_total"
    assert watched.value(archived, topic=TOPIC, reason="rejected") == 1
    assert watched.value(archived, topic=TOPIC, reason="delivery limit reached") == 1
    assert watched.value(archived, topic=TOPIC, reason="no record at this offset") == 0
    assert watched.value("kafka_server_share_group_metrics_share_acknowledgement_total") == 2
    assert watched.value("kafka_server_share_coordinator_metrics_write_total") == 3
    assert watched.value("share_spark_commit_seconds_count") == 3


def test_windows_and_lag_are_those_of_the_moment_of_a_scrape(watched: Watched) -> None:
    watched.world.produce(5)
    engine = watched.engine()
    watched.run(engine)
    in_flight = "share_spark_in_flight_records"
    assert watched.value(in_flight, topic=TOPIC, state="Acquired") == 5
    assert watched.value("share_spark_lag_records", topic=TOPIC, partition="0") == 5
    watched.run(engine)
    assert [watched.value(in_flight, topic=TOPIC, state=state) for state in ("Acquired", "Acknowledged")] == [1, 3]
    assert watched.value("share_spark_lag_records", topic=TOPIC, partition="0") == 1
    watched.run(engine)
    assert watched.value("share_spark_lag_records", topic=TOPIC, partition="0") == 0
    assert watched.value("share_spark_writer_epoch") == 1
    assert watched.value("share_spark_last_micro_batch_timestamp_seconds") == watched.world.clock() / 1_000


def test_before_the_claim_there_is_no_look_at_the_engine(watched: Watched) -> None:
    assert watched.value("share_spark_writer_epoch") is None
    assert watched.value("kafka_server_share_coordinator_metrics_write_total") == 0


def test_an_assignment_is_counted_when_partitions_were_added(watched: Watched) -> None:
    engine = watched.engine()
    watched.world.produce(1)
    watched.run(engine, 3)
    rebalances = "kafka_server_group_coordinator_metrics_rebalance_total"
    assert watched.value(rebalances, protocol="share") == 1
    watched.world.topics.add_partitions(TOPIC, 2)
    watched.run(engine, 2)
    assert watched.value(rebalances, protocol="share") == 2
    assert watched.value("kafka_server_group_coordinator_metrics_num_partitions", protocol="share") == 3


def test_the_oldest_record_is_as_old_as_the_scrape_that_saw_it_first(watched: Watched) -> None:
    engine = watched.engine()
    age = "share_spark_oldest_unfinished_seconds"
    watched.world.produce(1)
    watched.run(engine)
    assert watched.value(age, topic=TOPIC) == 0
    watched.world.clock.advance(7_000)
    assert watched.value(age, topic=TOPIC) == 7
    watched.run(engine)
    assert watched.value(age, topic=TOPIC) == 0


def test_a_mark_ends_where_the_spso_has_passed_it() -> None:
    marks = LogEndMarks().looked([(KEY, Front(0, 100))], 1_000).looked([(KEY, Front(0, 140))], 2_000)
    assert marks.age_ms(KEY, 3_000) == 2_000
    assert marks.looked([(KEY, Front(120, 140))], 3_000).age_ms(KEY, 3_000) == 1_000
    assert marks.looked([(KEY, Front(140, 140))], 3_000) == LogEndMarks()


def test_marks_are_few_and_the_oldest_stays() -> None:
    marks = LogEndMarks()
    for at in range(10 * MOST_MARKS):
        marks = marks.looked([(KEY, Front(0, at + 1))], at)
    assert len(marks.marks[KEY]) <= MOST_MARKS
    assert marks.marks[KEY][0] == Mark(0, 1)


def test_a_histogram_counts_each_time_once() -> None:
    found = SecondsHistogram().plus(0.001).plus(0.0011).plus(1_000)
    assert (found.counts[0], found.counts[1], found.counts[-1]) == (1, 1, 1)
    assert (found.count, found.max_s, len(found.counts)) == (3, 1_000, len(BOUNDS_S) + 1)


def exported(metrics: GroupMetrics) -> Iterator[str]:
    return (f"{one.name}_total" if one.type == "counter" else one.name for one in metrics.collect())


def test_what_is_listed_is_exported_once_and_nothing_else(watched: Watched) -> None:
    watched.world.produce(1)
    watched.run(watched.engine(), 2)
    assert sorted(exported(watched.metrics)) == sorted(metric.exported_as for metric in METRICS)


def sample_names() -> set[str]:
    endings = ("_bucket", "_sum", "_count")
    histograms = {metric.name + end for metric in METRICS if metric.kind is MetricKind.HISTOGRAM for end in endings}
    return histograms | {metric.exported_as for metric in METRICS if metric.kind is not MetricKind.HISTOGRAM}


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "alert-rules.yml"])
def test_dashboard_and_alerts_name_metrics_that_there_are(file: str) -> None:
    named = set(NAMED.findall((ROOT / "conf" / file).read_text()))
    assert named
    assert named - sample_names() == set()


def test_the_dashboard_is_json_with_panels_side_by_side() -> None:
    panels = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) >= 9


def test_the_page_on_metrics_lists_them_all() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    listed = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert listed == {metric.exported_as: metric.labels for metric in (*METRICS, *GROUP_METRICS, *EXPORTER_METRICS)}


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_names_that_users_chose_are_escaped(free_port: int) -> None:
    """As a scraper reads them."""
    server = MetricsServer.open(GroupMetrics(group_id='a"b\\c\nd', clock=lambda: 0), "127.0.0.1", free_port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        server.close()
    groups = {one.labels["group"] for family in text_string_to_metric_families(text) for one in family.samples}
    assert groups == {'a"b\\c\nd'}


def test_a_port_that_is_taken_is_one_line(free_port: int) -> None:
    metrics = GroupMetrics(group_id=GROUP, clock=lambda: 0)
    first = MetricsServer.open(metrics, "127.0.0.1", free_port)
    with pytest.raises(ConfigError, match=rf"metrics.port: cannot listen on 127.0.0.1:{free_port}: Address already in"):
        MetricsServer.open(metrics, "127.0.0.1", free_port)
    first.close()
    MetricsServer.open(metrics, "127.0.0.1", free_port).close()


def test_a_host_that_is_none_is_one_line(free_port: int) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.port: cannot listen on no\.such\.host"):
        MetricsServer.open(GroupMetrics(group_id=GROUP, clock=lambda: 0), "no.such.host.invalid", free_port)


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/metrics", "localhost", 200),
        ("/", "127.0.0.1:9404", 200),
        ("/metrics", "rebound.example", 403),
        ("/secrets", "localhost", 404),
    ],
)
def test_only_metrics_are_served_and_only_to_this_machine(watched: Watched, path: str, host: str, status: int) -> None:
    server = MetricsServer.open(watched.metrics, "127.0.0.1", 0)
    try:
        connection = HTTPConnection("127.0.0.1", server._server.server_port)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        assert answer.status == status
        assert (b"share_spark_commit_seconds" in answer.read()) == (status == 200)
        connection.close()
    finally:
        server.close()


def test_an_outage_is_a_number_of_seconds(watched: Watched) -> None:
    engine = watched.engine()
    watched.run(engine)
    assert watched.value("share_spark_unreachable_seconds") == 0
    reach = engine.engine._reach
    reach.outage = Outage(since_ms=watched.world.clock() - 30_000, what="broker", reason="")
    assert watched.value("share_spark_unreachable_seconds") == 30


def test_throttled_records_are_counted_by_themselves() -> None:
    watched = Watched()
    watched.world.handler = lambda *_: (Loss.THROTTLED, "429", 60_000)
    watched.world.produce(5)
    watched.run(watched.engine(), 2)
    assert watched.value("share_spark_throttled_records_total", topic=TOPIC) == 5
    assert watched.value("share_spark_not_entered_records_total", topic=TOPIC) == 0


def test_calls_that_outlast_micro_batches_are_shown_as_they_are_now() -> None:
    watched = Watched(late=Random(3))
    watched.world.handler = lambda *_: (Loss.THROTTLED, "429", 60_000)
    watched.world.produce(40)
    engine = watched.engine()
    watched.run(engine, 3)
    look = engine.engine.look().calls
    assert look is not None
    shown = [watched.value(f"share_spark_calls_{name}") for name in ("running", "waiting", "limit", "throttled")]
    assert shown == [look.running, look.waiting, look.limit, look.throttled]
    assert look.throttled > 0
    assert watched.value("share_spark_calls_oldest_seconds") == 0


def test_a_handler_that_does_not_wait_has_no_such_calls(watched: Watched) -> None:
    watched.run(watched.engine())
    assert watched.value("share_spark_calls_running") is None
