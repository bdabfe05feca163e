"""What operators have set for a group is seen where they look when it behaves oddly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from share_spark import cli
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.web.server import PageSource
from tests.support.group_details import NOW_MS
from tests.support.page_elements import Elements
from tests.support.state_logs import StateLog, log_of_ten_acquired

LIMIT = "delivery.rate.limit"


@pytest.fixture
def log(tmp_path: Path) -> StateLog:
    return log_of_ten_acquired(tmp_path)


def state_of(log: StateLog, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["groups", "--location", log.location, "--describe", "--state", "--all-groups", *arguments]) == 0
    return capsys.readouterr().out


def page_of(log: StateLog, path: str, query: str = "") -> str:
    return Elements(PageSource(ShareGroupAdmin(log.location), lambda: NOW_MS).page(path, query)[1]).text


def test_nothing_set_takes_no_place(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    assert state_of(log, capsys).splitlines()[0].split() == ["GROUP", "COORDINATOR", "(ID)", "STATE", "#MEMBERS"]
    assert "Set by operators" not in page_of(log, "/groups/billing")
    (found,) = json.loads(state_of(log, capsys, "--json"))
    assert (found["paused"], found["dynamic_configs"]) == ([], {})


def test_dynamic_configs_and_pauses_are_in_the_state_and_on_the_page(
    log: StateLog, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = ShareGroupAdmin(log.location)
    admin.alter_configs("billing", {LIMIT: "50", "delivery.max.concurrency": 2})
    admin.set_pauses("billing", admin.plan_pause("billing", {"orders": [0]}))
    head, row = state_of(log, capsys).splitlines()
    assert head.split()[-2:] == ["PAUSED", "DYNAMIC-CONFIGS"]
    assert row.endswith(f"orders:0 {LIMIT}=50.0, delivery.max.concurrency=2")
    (found,) = json.loads(state_of(log, capsys, "--json"))
    assert found["dynamic_configs"] == {LIMIT: "50.0", "delivery.max.concurrency": "2"}
    shown = page_of(log, "/groups/billing")
    for said in ("Set by operators", "Paused in part", "orders:0", LIMIT, "50.0"):
        assert said in shown, said
    assert "Paused in part" in page_of(log, "/")


def test_a_file_that_is_broken_is_said_and_hides_nothing(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    admin = ShareGroupAdmin(log.location)
    admin.alter_configs("billing", {LIMIT: "50"})
    Path(admin.look().reader.dynamic_config_file("billing").file.path).write_text("nonsense")
    shown = page_of(log, "/groups/billing")
    assert "What operators have set is not known: " in shown
    assert "does not say the configs of a group" in shown
    assert "10 acquired" in shown
    assert cli.main(["groups", "--location", log.location, "--describe", "--state", "--group", "billing"]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not say the configs of a group" in line


def test_a_file_that_may_not_be_read_hides_nothing(log: StateLog) -> None:
    admin = ShareGroupAdmin(log.location)
    admin.alter_configs("billing", {LIMIT: "50"})
    file = Path(admin.look().reader.dynamic_config_file("billing").file.path)
    file.unlink()
    file.mkdir()  # cannot be read
    shown = page_of(log, "/groups/billing")
    assert "What operators have set is not known: " in shown
    assert "10 acquired" in shown


def test_of_an_earlier_time_it_is_not_known(log: StateLog) -> None:
    ShareGroupAdmin(log.location).alter_configs("billing", {LIMIT: "50"})
    shown = page_of(log, "/groups/billing", "version=2")
    assert LIMIT not in shown
    assert "what operators had set are not known" in shown
