"""The state at an earlier time: which versions there are, and what pages and reports show of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from share_spark import cli
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.admin.state_versions import StateVersion, StateVersions
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.table_log import GoneFileError, TableLog
from share_spark.model.errors import ConfigError
from share_spark.spark.public_files import LocalFiles
from share_spark.web.server import PageSource
from tests.support.group_details import NOW_MS, run
from tests.support.page_elements import Elements
from tests.support.state_logs import BEGAN_MS, StateLog, snapshot, update

pytestmark = pytest.mark.usefixtures("row_form")

CREATED, CLAIMED, FIRST, SECOND, THIRD = range(5)
"""Versions of the log."""


@pytest.fixture
def log(tmp_path: Path) -> StateLog:
    """At second 1 records 0 to 9 are acquired, at 11 some are done, at 21 all are, and more are acquired."""
    log = StateLog(tmp_path / "state")
    log.claim()
    assert log.records(snapshot(0, run("Q", 0, 9))) == FIRST
    assert log.records(update(-1, run("D", 3, 5)), seconds=10) == SECOND
    assert log.records(update(10, run("Q", 10, 29)), seconds=10) == THIRD
    return log


def commit_path(log: StateLog, version: int) -> Path:
    return Path(log.directory) / "_delta_log" / f"{version:020d}.json"


def test_the_newest_version_by_a_time(log: StateLog) -> None:
    versions = StateVersions(log.location)
    times = {at: versions.at(BEGAN_MS + at).number for at in (1_020, 5_000, 11_019, 11_020, 99_000)}
    assert times == {1_020: FIRST, 5_000: FIRST, 11_019: FIRST, 11_020: SECOND, 99_000: THIRD}
    assert versions.version(SECOND) == StateVersion(SECOND, BEGAN_MS + 11_020)


def test_some_versions_for_a_slider(log: StateLog) -> None:
    versions = StateVersions(log.location)
    assert [one.number for one in versions.some(10)] == [0, 1, 2, 3, 4]
    assert [one.number for one in versions.some(3)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("number", "at", "message"),
    [
        (
            "9",
            None,
            r"version 9 of the state log is not there: it has .* 0 \(.*Z\) to 4 \(2025-11-22T14:00:21Z\)",
        ),
        ("x", None, "version 'x' is not a number from 0 up"),
        (None, "yesterday", "'yesterday' is no time: YYYY-MM-DDThh:mm:ss.sss"),
        (None, "2999-01-01", "2999-01-01 is in the future"),
        (None, "1999-01-01", "the state at 1999-01-01T00:00:00Z is not known: it has versions 0"),
    ],
)
def test_what_is_not_there_says_what_there_is(log: StateLog, number: str | None, at: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StateVersions(log.location).asked(number, at)


def test_after_a_log_clean_up_versions_begin_with_a_checkpoint(log: StateLog) -> None:
    for version in (CREATED, CLAIMED):
        commit_path(log, version).unlink()
    files = CommitFiles(LocalFiles(), log.directory)
    assert list(files.readable_versions()) == [], "commits alone do not tell the beginning"
    (Path(log.directory) / "_delta_log" / f"{FIRST:020d}.checkpoint.parquet").touch()
    assert list(files.readable_versions()) == [FIRST, SECOND, THIRD]
    with pytest.raises(ConfigError, match="version 1 of the state log is not there: it has versions 2"):
        StateVersions(log.location).version(CLAIMED)
    with pytest.raises(GoneFileError, match="commit 0 is gone"):
        TableLog.open(files, version=CLAIMED)


def page(log: StateLog, path: str, query: str) -> tuple[int, str]:
    status, found = PageSource(ShareGroupAdmin(log.location), lambda: NOW_MS).page(path, query)
    return int(status), found


def test_a_group_as_it_was(log: StateLog) -> None:
    status, found = page(log, "/groups/billing", f"version={SECOND}")
    assert status == 200
    text = Elements(found).text
    assert f"as of version {SECOND}, 2025-11-22 14:00:11 UTC" in text
    assert "7 acquired, 3 acknowledged" in text
    assert "At an earlier time members, lag, dead letters and what operators had set are not known." in text
    assert "data-refresh-ms" not in found.partition("<main>")[0].partition("</style>")[2], "it does not change"
    assert f'<a id="all" href="/?version={SECOND}">' in found
    assert page(log, "/groups/billing", "at=2025-11-22T14:00:15")[1] == found


def test_charts_and_delivery_counts_as_they_were(log: StateLog) -> None:
    """Of the micro-batches up to that version, and no later one."""
    _, found = page(log, "/groups/billing", f"version={SECOND}")
    assert re.search(r'<table class="deliveries"><tr><td>once</td><td class="number">7</td>', found)
    assert charted(found) == ("2025-11-22 14:00:01 UTC", "2025-11-22 14:00:12 UTC")
    assert charted(page(log, "/groups/billing", "")[1]) == ("2025-11-22 14:00:01 UTC", "2025-11-22 14:00:22 UTC")


def charted(found: str) -> tuple[str, str]:
    """The first and the last time in the charts."""
    times = re.findall(r"2025-11-22 14:00:\d\d UTC", found.partition('<div class="charts">')[2].partition("<h3>")[0])
    return min(times), max(times)


def test_all_groups_as_they_were(log: StateLog) -> None:
    other = StateLog(Path(log.location), "audit")
    other.claim()
    other.records(snapshot(0, run("Q", 0, 9)))
    assert "audit" in page(log, "/", "")[1]
    status, found = page(log, "/", f"version={THIRD}")
    assert (status, "audit" in found) == (200, False)
    assert f'href="/groups/billing?version={THIRD}"' in found
    assert "There are no share groups here yet" in page(log, "/", f"version={CREATED}")[1]


def test_a_page_has_a_slider_over_the_versions(log: StateLog) -> None:
    _, found = page(log, "/groups/billing", "")
    assert re.search(r'<input id="version" [^>]*type="range" [^>]*min="0" max="4" value="4">', found)
    assert f'<option value="{SECOND}" label="2025-11-22 14:00:11 UTC">' in found
    assert 'value="3"' in page(log, "/groups/billing", f"version={SECOND}")[1]
    assert page(log, "/groups/billing", "version=77")[0] == 404
    assert "it has versions 0" in page(log, "/groups/billing", "at=2001-01-01T00:00")[1]


def test_where_vacuum_was_faster_that_is_said(log: StateLog) -> None:
    log.claim()
    log.records(snapshot(10, run("Q", 10, 29)))
    for path in Path(log.directory).rglob("segment=0/*.parquet"):
        path.unlink()
    for path in Path(log.directory).glob("*.parquet"):
        path.unlink()
    status, found = page(log, "/groups/billing", f"version={SECOND}")
    assert status == 200
    said = f"the state of group 'billing' at version {SECOND} of the log is gone: VACUUM has removed its files"
    assert said in Elements(found).text


def report(log: StateLog, file: Path, *arguments: str) -> int:
    return cli.main(["report", "--location", log.location, "--html", str(file), *arguments])


def test_a_report_of_an_earlier_time(log: StateLog, tmp_path: Path) -> None:
    for arguments in (["--version", str(SECOND)], ["--at", "2025-11-22T14:00:12Z"]):
        assert report(log, tmp_path / "queues.html", *arguments) == 0
        found = (tmp_path / "queues.html").read_text()
        assert f"as of version {SECOND}, 2025-11-22 14:00:11 UTC" in found
        assert "7 acquired, 3 acknowledged" in found
        assert "<script" not in found
        assert "<form" not in found


@pytest.mark.parametrize("arguments", [["--version", "9"], ["--at", "1999-01-01"], ["--at", "x", "--version", "1"]])
def test_a_report_of_no_time_is_none(
    log: StateLog, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert report(log, tmp_path / "queues.html", *arguments) == cli.FAILED
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "queues.html").exists()
