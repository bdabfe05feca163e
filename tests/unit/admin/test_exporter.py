"""The metrics of all groups of a location, from tables that were made without Spark: what a scrape gets, whatever of
them is broken."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from share_spark.admin.location_metrics import LocationMetrics
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.maintenance.heartbeat import EndKind
from share_spark.metrics.location_definitions import EXPORTER_METRICS, GROUP_METRICS
from tests.support.group_details import run
from tests.support.heartbeats import VANISHED_MS, write_beat, write_end
from tests.support.letter_tables import NOON, make_letters, row, set_columns
from tests.support.state_logs import BEGAN_MS, StateLog, snapshot

ROOT = Path(__file__).parents[3]
NOW_MS = BEGAN_MS + 60_000
NAMED = re.compile(r"\bshare_spark_[a-z_]+\b")


class Exported:
    """What the exporter of a location says."""

    def __init__(self, location: Path, letters: str | None = None) -> None:
        self.location = location
        self.metrics = LocationMetrics(ShareGroupAdmin(str(location)), letters, clock=lambda: NOW_MS)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def read(self) -> Exported:
        self.metrics.read()
        return self

    def value(self, name: str, group: str | None = "billing", **labels: str) -> float | None:
        shared = {} if group is None else {"group": group}
        return self.registry.get_sample_value(f"share_spark_{name}", {**shared, **labels})

    def all_of(self, name: str, group: str = "billing") -> dict[tuple[str, ...], float]:
        """By the values of its own labels."""
        samples = [one for family in self.metrics.collect() for one in family.samples if one.name.endswith(name)]
        return {
            tuple(text for label, text in one.labels.items() if label != "group"): one.value
            for one in samples
            if one.labels["group"] == group
        }

    def groups(self, name: str) -> set[str]:
        return {
            one.labels["group"]
            for family in self.metrics.collect()
            for one in family.samples
            if one.name.endswith(name)
        }

    def faults(self, group: str = "billing") -> Mapping[str, float]:
        return {part: value for (part,), value in self.all_of("group_read_failed", group).items()}


def make_group(location: Path, name: str = "billing") -> StateLog:
    """Three partitions of a topic and one of another; some records wait for their time."""
    log = StateLog(location, name)
    log.claim()
    delayed = run("V", 10, 14, 2)._replace(lock_deadline_ms=NOW_MS + 1_000)
    over = run("V", 15, 16, 2)._replace(lock_deadline_ms=NOW_MS - 1_000)
    log.records(
        snapshot(0, run("Q", 0, 9), delayed, over, run("D", 17, 19), group_id=name),
        snapshot(7, partition=1, group_id=name),
        snapshot(7, partition=2, group_id=name),
        snapshot(0, run("X", 0, 3, 5), run("V", 4, 4), topic="bills", group_id=name),
    )
    return log


@pytest.fixture
def location(tmp_path: Path) -> Path:
    make_group(tmp_path / "state")
    return tmp_path / "state"


def test_what_is_in_the_windows(location: Path) -> None:
    found = Exported(location).read()
    assert found.all_of("in_flight_records") == {
        ("orders", "Available"): 7,
        ("orders", "Acquired"): 10,
        ("orders", "Acknowledged"): 3,
        ("orders", "Archived"): 0,
        ("bills", "Available"): 1,
        ("bills", "Acquired"): 0,
        ("bills", "Acknowledged"): 0,
        ("bills", "Archived"): 4,
    }
    assert found.all_of("delayed_records") == {("orders",): 5, ("bills",): 0}
    assert found.value("group_last_commit_timestamp_seconds") == (BEGAN_MS + 1_000) / 1_000
    assert found.value("exporter_last_read_timestamp_seconds", None) == NOW_MS / 1_000
    assert found.value("exporter_read_failed", None) == 0


def test_where_the_topics_are_not_known_there_is_no_lag(location: Path) -> None:
    found = Exported(location).read()
    assert found.all_of("lag_records") == {}
    assert found.all_of("oldest_unfinished_seconds") == {}
    assert found.faults() == {"state": 0, "topics": 1, "settings": 0}


@pytest.mark.parametrize("kind", EndKind)
def test_how_the_last_engine_has_ended(location: Path, kind: EndKind) -> None:
    if kind is EndKind.VANISHED:
        at_ms = write_beat(location, silent_ms=VANISHED_MS, breaker_open_ms=1)
    else:
        at_ms = write_end(location, "billing", kind, "why", silent_ms=VANISHED_MS)
    found = Exported(location).read()
    assert found.value("group_engine_running") == 0
    (ended,) = found.all_of("engine_end_timestamp_seconds").items()
    assert ended == ((kind.value,), pytest.approx(at_ms / 1_000, abs=60))
    assert found.value("group_breaker_open") == 0


@pytest.mark.parametrize("is_open", [False, True])
def test_an_engine_that_runs(location: Path, is_open: bool) -> None:
    write_beat(location, breaker_open_ms=NOW_MS if is_open else 0)
    found = Exported(location).read()
    assert (found.value("group_engine_running"), found.value("group_breaker_open")) == (1, float(is_open))
    assert found.all_of("engine_end_timestamp_seconds") == {}


def test_what_is_paused(location: Path) -> None:
    admin = ShareGroupAdmin(str(location))
    admin.set_pauses("billing", admin.plan_pause("billing", {"orders": [0, 2]}))
    found = Exported(location)
    assert found.read().all_of("paused_partitions") == {("orders",): 2, ("bills",): 0}
    admin.set_pauses("billing", admin.plan_pause("billing"))
    assert found.read().all_of("paused_partitions") == {("orders",): 3, ("bills",): 1}
    admin.set_pauses("billing", admin.plan_resume("billing"))
    assert set(found.read().all_of("paused_partitions").values()) == {0}


def test_dead_letters_that_were_not_sent_again(location: Path, tmp_path: Path) -> None:
    make_group(location, "audit")
    make_group(location, "silent")
    table = make_letters(tmp_path / "dead", [row(0), row(1), row(2, group_id="audit")], [row(3, error="other")])
    for name in ("billing", "audit"):
        write_beat(location, name, letters=table)
    found = Exported(location).read()
    assert [found.value("group_unredriven_letters", name) for name in ("billing", "audit", "silent")] == [3, 1, None]
    set_columns(table, 1, redriven_at=NOON, redrive_id="again")
    assert found.read().value("group_unredriven_letters") == 2
    assert Exported(location, table).read().value("group_unredriven_letters", "silent") == 0


def test_what_is_broken_takes_nothing_from_the_others(
    location: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("audit", "shipping", "returns"):
        make_group(location, name)
        write_beat(location, name, letters=str(tmp_path / "none"))
    reader = ShareGroupAdmin(str(location)).look().reader
    for path, file in reader.log.active.items():
        if file.values["group_id"] == "audit":
            (Path(reader.directory) / path).unlink()
    configs = reader.dynamic_config_file("shipping").file.path
    Path(configs).parent.mkdir()
    Path(configs).write_text("nonsense")
    write_beat(location, "returns", letters=make_letters(tmp_path / "dead", [row(0, group_id="returns")]))
    found = Exported(location)
    with caplog.at_level(logging.WARNING):
        found.read().read()
    assert found.faults("audit") == {"state": 1}
    assert found.value("group_engine_running", "audit") == 1
    fine = {"state": 0, "topics": 1, "settings": 0}  # where the topics are nobody says
    assert found.faults("shipping") == {**fine, "settings": 1, "dead letters": 1}
    assert found.faults("returns") == {**fine, "dead letters": 0}
    assert found.faults("billing") == fine
    assert found.groups("in_flight_records") == {"billing", "shipping", "returns"}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)), lines
    assert any("the state of group 'audit' cannot be read" in line for line in lines)


def test_a_group_that_was_deleted_has_no_metrics(location: Path) -> None:
    log = make_group(location, "gone")
    found = Exported(location)
    assert found.read().groups("engine_running") == {"billing", "gone"}
    log.delete()
    assert found.read().groups("engine_running") == {"billing"}
    assert found.groups("group_read_failed") == {"billing"}


def test_a_scrape_reads_nothing_and_a_location_that_is_gone_is_told(location: Path) -> None:
    found = Exported(location)
    assert found.value("exporter_read_failed", None) is None
    found.read()
    shutil.rmtree(location)
    assert found.value("group_in_flight_records", topic="orders", state="Acquired") == 10
    found.read()
    assert found.value("exporter_read_failed", None) == 1
    assert found.groups("in_flight_records") == set()


def test_what_is_listed_is_served_once_and_nothing_else(location: Path) -> None:
    served = [family.name for family in Exported(location).read().metrics.collect()]
    assert sorted(served) == sorted(one.exported_as for one in (*GROUP_METRICS, *EXPORTER_METRICS))


def test_the_alert_rules_name_metrics_that_are_served() -> None:
    named = set(NAMED.findall((ROOT / "conf" / "exporter-alert-rules.yml").read_text()))
    assert named - {one.exported_as for one in (*GROUP_METRICS, *EXPORTER_METRICS)} == set()
    assert named
