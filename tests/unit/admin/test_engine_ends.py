"""How the last engine of a group has ended, where operators look: a group that was stopped, and one whose engine died,
do not look the same."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from share_spark import cli
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.maintenance.heartbeat import EndKind
from share_spark.web.server import PageSource
from tests.support.heartbeats import VANISHED_MS, write_beat, write_end
from tests.support.page_elements import Elements
from tests.support.state_logs import StateLog, log_of_ten_acquired

ERROR = "SinkError: the table /lake/bills is full <of> bills"


@pytest.fixture
def log(tmp_path: Path) -> StateLog:
    return log_of_ten_acquired(tmp_path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


def state_of(log: StateLog, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    place = ["--location", log.location, "--group", "billing"]
    return shown(capsys, "groups", *place, "--describe", "--state", *arguments)


def page_of(log: StateLog, path: str) -> str:
    source = PageSource(ShareGroupAdmin(log.location), lambda: time.time_ns() // 1_000_000)
    return Elements(source.page(path)[1]).text


def end_of(log: StateLog, kind: EndKind) -> None:
    if kind is EndKind.VANISHED:
        write_beat(log.location, silent_ms=VANISHED_MS)
    else:
        write_end(log.location, "billing", kind, ERROR if kind is EndKind.FAILED else "", silent_ms=VANISHED_MS)


@pytest.mark.parametrize("kind", EndKind)
def test_the_state_of_a_group_says_how_its_engine_ended(
    log: StateLog, kind: EndKind, capsys: pytest.CaptureFixture[str]
) -> None:
    end_of(log, kind)
    head, row = state_of(log, capsys).splitlines()
    assert head.split()[5:] == ["LAST-END", *(["LAST-ERROR"] if kind is EndKind.FAILED else [])]
    assert f"Empty 0        {kind}, 2" in row
    assert row.endswith(ERROR if kind is EndKind.FAILED else " UTC")
    (found,) = json.loads(state_of(log, capsys, "--json"))
    assert (found["last_end"]["kind"], found["last_end"]["error"]) == (kind, ERROR if kind is EndKind.FAILED else "")
    assert abs(time.time() * 1_000 - VANISHED_MS - found["last_end"]["at_ms"]) < 60_000


def test_an_engine_that_runs_has_no_end(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    write_beat(log.location)
    assert not {"LAST-END", "CALLS"} & {*state_of(log, capsys).split()}
    assert json.loads(state_of(log, capsys, "--json"))[0]["last_end"] is None
    assert "The last one" not in page_of(log, "/groups/billing")


def test_the_calls_of_an_engine_are_in_its_groups_state(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    write_beat(log.location, calls="8 calls running (at most 10), 12 waiting")
    head, row = state_of(log, capsys).splitlines()
    assert head.split()[5:] == ["CALLS"]
    assert row.endswith("8 calls running (at most 10), 12 waiting")
    assert "8 calls running (at most 10)" in json.loads(state_of(log, capsys, "--json"))[0]["calls"]
    assert "8 calls running (at most 10), 12 waiting." in page_of(log, "/groups/billing")


@pytest.mark.parametrize(
    ("kind", "mark", "said"),
    [
        (EndKind.STOPPED, "", "The last one (worker-7.example, process 4711) was stopped 5 min ago, at 2"),
        (EndKind.WORKED_OFF, "", "had worked off everything 5 min ago"),
        (EndKind.FAILED, "Failed", f" UTC: {ERROR}"),
        (EndKind.VANISHED, "Engine gone", "has not said that it ended: its last heartbeat was 5 min ago"),
    ],
)
def test_a_page_marks_the_group_of_an_engine_that_died(log: StateLog, kind: EndKind, mark: str, said: str) -> None:
    end_of(log, kind)
    group, overview = page_of(log, "/groups/billing"), page_of(log, "/")
    assert said in group
    for page in (group, overview):
        assert {one for one in ("Failed", "Engine gone") if one in page} == {mark} - {""}


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        *((kind, f"Empty {kind} 5 min ago") for kind in EndKind),
        (None, "Stable running"),
    ],
)
def test_the_terminal_view_says_it_too(
    log: StateLog, kind: EndKind | None, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind is None:
        write_beat(log.location)
    else:
        end_of(log, kind)
    text = shown(capsys, "top", "--location", log.location, "--interval", "0.1", "--count", "1")
    assert word in " ".join(text.split())


def test_a_group_that_no_engine_has_said_anything_of(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    assert "LAST-END" not in state_of(log, capsys)
    assert "Empty -" in shown(capsys, "top", "--location", log.location, "--interval", "0.1", "--count", "1")
    assert "The last one" not in page_of(log, "/groups/billing")
