"""A group whose topics were all deleted stays until it is deleted itself, and then leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark import cli
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.maintenance.heartbeat import EndKind
from share_spark.model.errors import StateError
from tests.support.heartbeats import write_end
from tests.support.state_logs import StateLog, log_of_ten_acquired, snapshot

SETTINGS = {"delivery.rate.limit": "50.0"}


@pytest.fixture
def log(tmp_path: Path) -> StateLog:
    """With settings, a pause and the heartbeat of an engine that has ended."""
    log = log_of_ten_acquired(tmp_path)
    admin = ShareGroupAdmin(log.location)
    admin.alter_configs("billing", SETTINGS)
    admin.set_pauses("billing", admin.plan_pause("billing"))
    write_end(log.location, "billing", EndKind.STOPPED)
    return log


def groups(log: StateLog) -> list[str]:
    return [one.group_id for one in ShareGroupAdmin(log.location).list_groups()]


def test_a_group_that_is_kept_is_there_without_share_partitions(
    log: StateLog, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = ShareGroupAdmin(log.location)
    admin.look().reader.empty_group_file("billing").write()
    assert len(admin.describe_offsets("billing")) == 1, "as long as it has some, they are what counts"
    log.delete()
    assert groups(log) == ["billing"]
    assert admin.describe_offsets("billing") == []
    assert admin.describe_group("billing").phase.value == "Empty"
    assert admin.look().operator_settings("billing").dynamic_configs == SETTINGS
    assert cli.main(["groups", "--location", log.location, "--describe", "--group", "billing"]) == 0
    assert capsys.readouterr().out == "Share group 'billing' has no offset information.\n", "as Kafka says it"


def test_the_terminal_view_has_a_row_for_it(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    ShareGroupAdmin(log.location).look().reader.empty_group_file("billing").write()
    log.delete()
    assert cli.main(["top", "--location", log.location, "--count", "1", "--interval", "0.1"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[:3], row[-6:]) == (["billing", "Empty", "stopped"], ["-", "-", "0", "-", "0", "0"])


def test_a_group_that_is_not_kept_is_gone(log: StateLog) -> None:
    log.delete()
    assert groups(log) == []
    with pytest.raises(StateError, match="Group 'billing' does not exist"):
        ShareGroupAdmin(log.location).describe_offsets("billing")


def test_after_its_deletion_nothing_is_left_beside_the_log(log: StateLog) -> None:
    reader = ShareGroupAdmin(log.location).look().reader
    reader.empty_group_file("billing").write()
    log.delete()
    reader.delete_beside("billing")
    assert groups(log) == []
    assert [path for path in Path(log.location).rglob("_share_spark/**/*") if path.is_file()] == []


def test_a_group_id_is_any_text(tmp_path: Path) -> None:
    name = "bills/2026 %2F, ü"
    log = StateLog(tmp_path, name)
    log.claim()
    log.records(snapshot(0, group_id=name))
    ShareGroupAdmin(log.location).look().reader.empty_group_file(name).write()
    log.delete()
    assert groups(log) == [name]


def test_at_an_earlier_time_the_log_alone_says_it(log: StateLog) -> None:
    admin = ShareGroupAdmin(log.location)
    admin.look().reader.empty_group_file("billing").write()
    log.delete()
    version = admin.look().reader.log.version
    assert [one.group_id for one in admin.look(version).list_groups()] == []
    assert [one.group_id for one in admin.look(version - 2).list_groups()] == ["billing"]
